"""Where in its queues a host looks for work; pure.

While some snapshot is held for long, nothing of what was done is vacuumed, and the head of the index of ready jobs
fills with the remains of jobs that are gone: a look from the head takes longer and longer. So the host remembers
where it last found work, by queue and priority, and begins there. Higher priorities, and priorities in which it never
found anything, are looked at as a whole every time.

What lies before the remembered place (a retry, a job that committed late, one that was given back) is found from the
head. That is done at every claim as long as it is cheap: a look from the head is followed by others without one for
`SHARE` times as long as it took, but never for longer than `most`: how long a claim took is also how slow the network
was, and a job must not wait for that in front of idle workers. Looks that take the oldest first (ageing) begin at heads
as well and count as such. The same share keeps a probe for jobs behind limits that became slow from eating the time of
the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgworkers.job.claim import EVERYWHERE, HIGHEST, LOWEST, Claimed, Range

SHARE = 20
LEVELS = 16  # priorities of a queue that are remembered
SLOW, SLOW_PER_JOB = (
    0.01,
    0.00003,
)  # seconds; a claim that took longer than this makes its probe for limits rarer

_FIRST = EVERYWHERE[0].first


class Positions:
    def __init__(self, most: float) -> None:
        self._most = most
        self._places: dict[str, dict[int, int]] = {}  # queue -> priority -> the id to begin at
        self._head_at = 0.0  # not before this time from the head
        self._gates_at = 0.0

    def head_is_due(self, now: float) -> bool:
        return now >= self._head_at

    def gates_are_due(self, now: float) -> bool:
        return now >= self._gates_at

    def whole_at(self) -> float:
        """When a look may be a whole one again."""
        return max(self._head_at, self._gates_at)

    def places(self, queues: Iterable[str]) -> dict[str, Sequence[Range]]:
        """Where to look in each queue that is known, without its head."""
        return {queue: _ranges(self._places[queue]) for queue in queues if queue in self._places}

    def found(self, claimed: Sequence[Claimed]) -> None:
        """Jobs were found: the next look begins behind them, wherever they were."""
        last: dict[tuple[str, int], int] = {}
        for job in claimed:
            key = job.queue, job.priority
            last[key] = max(last.get(key, 0), job.id)
        for (queue, priority), job_id in last.items():
            levels = self._places.setdefault(queue, {})
            levels.pop(priority, None)
            levels[priority] = job_id + 1
            if len(levels) > LEVELS:
                del levels[next(iter(levels))]  # the one that was of no use for longest

    def took(self, seconds: float, now: float, *, head: bool, gates: bool, jobs: int) -> None:
        """How long a claim took that has just come back."""
        if head:
            self._head_at = now + min(SHARE * seconds, self._most)
        elif gates:
            slow = seconds > SLOW + SLOW_PER_JOB * jobs
            self._gates_at = now + min(SHARE * seconds, self._most) if slow else 0.0


def _ranges(levels: dict[int, int]) -> list[Range]:
    """The remembered places, and everything between them, the highest priorities first."""
    found = []
    above = HIGHEST
    for priority in sorted(levels, reverse=True):
        if priority < above:
            found.append(Range(priority + 1, above, _FIRST))
        found.append(Range(priority, priority, levels[priority]))
        above = priority - 1
    if above >= LOWEST:
        found.append(Range(LOWEST, above, _FIRST))
    return found
