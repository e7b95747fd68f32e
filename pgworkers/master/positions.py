"""Where in its queues a host looks for work; pure.

While some snapshot is held for long, nothing of what was done is vacuumed, and the head of the index of ready jobs
fills with the remains of jobs that are gone: a look from the head takes longer and longer. So the host remembers
where it last found work, by queue and priority, and begins there. Higher priorities, and priorities in which it never
found anything, are looked at as a whole every time. What lies before the remembered places is found by looks before them
(`before`), as often as they are cheap.

Looks that take the oldest first (ageing) have the same places, and steps of their own before them: an ordinary look does not
get to the lower priorities, which are what those are for.

A share of the time also keeps a probe for jobs behind limits that became slow from eating the time of the others. As long as
it brings jobs, that is half of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from pgworkers.job.claim import EVERYWHERE, HIGHEST, LOWEST, Claimed, Range
from pgworkers.master.before import HASTE, SHARE, Before

LEVELS = 16  # priorities of a queue that are remembered
#: Seconds that a claim, and each of its jobs, may take longer than one at the places only: else it is slow.
SLOW, SLOW_PER_JOB = 0.01, 0.00003
#: Seconds that a job behind a limit may take more than that.
SLOW_PER_LIMITED_JOB = 0.0003
#: A slow look behind limits that was in vain is not repeated for this long, or `HASTE` times as long as it took if that is
#: longer. The first look of a host is slow where a snapshot is held. It makes marks, and the next one is quick.
GATES_PAUSE_SECONDS = 1.0
#: At most one claim in so many takes the oldest jobs first.
OUT_OF_TURN = 10

_FIRST, _LAST = EVERYWHERE[0].first, EVERYWHERE[0].last


class Positions:
    def __init__(self, most: float) -> None:
        self._most = most
        self._places: dict[str, dict[int, int]] = {}  # queue -> priority -> the id to begin at
        self._heads = Before(most)
        self._ages = Before(most)
        self._plain = 0.0  # seconds that a claim takes which looks at the places only, without its jobs
        self._per_limited_job = 0.0  # seconds that a job behind a limit adds to such a claim: an average
        self._gates_at = 0.0

    def head_is_due(self, now: float) -> bool:
        return self._heads.due(now)

    def aged_is_due(self, now: float) -> bool:
        return self._ages.due(now)

    def gates_are_due(self, now: float) -> bool:
        return now >= self._gates_at

    def again_at(self, *, whole: bool, gates: bool) -> float:
        """When a look may go where one did not go that was, or was not, a whole one and one behind limits."""
        return min(inf if whole else self._heads.at, inf if gates else self._gates_at)

    def places(
        self, queues: Iterable[str], *, head: bool = False, aged: bool = False
    ) -> dict[str, Sequence[Range]]:
        """Where to look in each queue that is known, and before its places if `head` or `aged`; everywhere in the others."""
        before = self._ages if aged else self._heads if head else None
        if before is not None and before.whole:
            return {}
        known = ((queue, self._places[queue]) for queue in queues if queue in self._places)
        return {
            queue: _ranges(levels, before.step(queue, levels) if before is not None else None)
            for queue, levels in known
        }

    def stepped(
        self, claimed: Sequence[Claimed], wants: Mapping[str, int], now: float, *, aged: bool = False
    ) -> bool:
        """A look before the places came back, that wanted so many of each queue. True: it was the end of a whole look."""
        return (self._ages if aged else self._heads).stepped(claimed, wants, self._places, now)

    def found(self, claimed: Sequence[Claimed]) -> None:
        """Jobs were found: the next look begins behind them, wherever they were. (Steps before a place do not move it.)"""
        last: dict[tuple[str, int], int] = {}
        for job in claimed:
            key = job.queue, job.priority
            last[key] = max(last.get(key, 0), job.id)
        for (queue, priority), job_id in last.items():
            levels = self._places.setdefault(queue, {})
            stepping = not (self._heads.whole and self._ages.whole)
            if stepping and job_id < levels.get(priority, _FIRST):
                continue
            levels.pop(priority, None)
            levels[priority] = job_id + 1
            if len(levels) > LEVELS:
                del levels[next(iter(levels))]  # the one that was of no use for longest

    def took(
        self,
        seconds: float,
        now: float,
        *,
        head: bool,
        gates: bool,
        jobs: int,
        limited: int = 0,
        aged: bool = False,
    ) -> None:
        """How long a claim took that has just come back with so many jobs, some of them from behind a limit."""
        seconds = max(0.0, seconds - SLOW_PER_JOB * jobs)
        if head or aged:
            seconds = max(0.0, seconds - self._per_limited_job * limited)
            slow = seconds > SLOW + 2 * self._plain
            before = self._ages if aged else self._heads
            before.took(max(0.0, seconds - self._plain), now, self._places, slow=slow)
            self._plain = min(seconds, self._plain)
            return
        if gates:
            longer = max(0.0, seconds - SLOW_PER_LIMITED_JOB * limited)
            share = 1 if limited else SHARE  # what brings jobs has half of the time
            pause = min(share * longer, max(GATES_PAUSE_SECONDS, HASTE * longer), self._most)
            self._gates_at = now + pause if longer > SLOW else 0.0
        if limited:
            self._per_limited_job += (seconds / limited - self._per_limited_job) / 4
        self._plain = max(0.0, seconds - self._per_limited_job * limited)


def _ranges(levels: dict[int, int], step: tuple[int, int] | None) -> list[Range]:
    """The remembered places, each after its step, and everything between them, the highest priorities first."""
    found = []
    above = HIGHEST
    for priority in sorted(levels, reverse=True):
        place = levels[priority]
        if priority < above:
            found.append(Range(priority + 1, above, _FIRST, _LAST))
        if step is not None and step[0] < place:
            found.append(Range(priority, priority, step[0], min(step[1], place) - 1))
        found.append(Range(priority, priority, place, _LAST))
        above = priority - 1
    if above >= LOWEST:
        found.append(Range(LOWEST, above, _FIRST, _LAST))
    return found
