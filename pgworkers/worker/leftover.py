"""What threads that jobs left behind use, seen while there is no job. Pure."""

from __future__ import annotations

#: Share of a core over all the time that is looked at. A thread that wakes up to push metrics uses a hundredth of it. A
#: thread that burns gets far less than a whole core on an overloaded machine, so this is closer to the former.
SHARE = 0.1
#: How many beats' worth of time without a job is looked at before it is judged.
BEATS = 10


class Leftover:
    """CPU time between two looks without a job between them, added up: also of a worker that never idles for long."""

    def __init__(self, heartbeat: float) -> None:
        self._enough = int(BEATS * heartbeat * 1e9)
        self._mark = 0
        self._now = self._cpu = 0  # at the last look
        self._time = self._used = 0  # nanoseconds, of all looks since the last judgement

    def is_too_much(self, mark: int, now: int, cpu: int) -> bool:
        """`mark`: the number of the job before, 0 while there is one or before the first. Times in nanoseconds."""
        if mark and mark == self._mark:
            self._time += now - self._now
            self._used += cpu - self._cpu
        self._mark, self._now, self._cpu = mark, now, cpu
        if self._time < self._enough:
            return False
        burns = self._used >= SHARE * self._time
        self._time = self._used = 0
        return burns
