"""Where in its queues a host looks for work; pure.

While some snapshot is held for long, nothing of what was done is vacuumed, and the head of the index of ready jobs
fills with the remains of jobs that are gone: a look from the head takes longer and longer. So the host remembers
where it last found work, by queue and priority, and begins there. Higher priorities, and priorities in which it never
found anything, are looked at as a whole every time.

What lies before the remembered place (a retry, a job that committed late, one that was given back) is found by looks
before it. That is done at every claim as long as it is cheap: such a look is followed by others without one for
`SHARE` times as long as it took longer than they do, but never for longer than `most`: how long a claim took is also how
slow the network was, and a job must not wait for that in front of idle workers.

It begins at the head, while that is cheap. When it is not, the claims behind it must not wait for all of it: it is made in
steps, from the place down to the head, each over so many ids as are not slow to go through. Quick steps become longer, until
one reaches the head; so do all steps of a round that takes longer than `most`. (docs/adr/2003)

Looks that take the oldest first (ageing) begin at heads; they cannot be made in steps, and are rarer when they are slow.
The same share keeps a probe for jobs behind limits that became slow from eating the time of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from pgworkers.job.claim import EVERYWHERE, HIGHEST, LOWEST, Claimed, Range

SHARE = 20
LEVELS = 16  # priorities of a queue that are remembered
#: Seconds that a claim, and each of its jobs, may take longer than one at the places only: else it is slow.
SLOW, SLOW_PER_JOB = 0.01, 0.00003
#: At most one claim in so many takes the oldest jobs first; and of the looks before the places, when they are slow.
OUT_OF_TURN = 10
#: A step has no fewer ids than this.
LEAST = 1 << 14

_FIRST, _LAST = EVERYWHERE[0].first, EVERYWHERE[0].last


class Positions:
    def __init__(self, most: float) -> None:
        self._most = most
        self._places: dict[str, dict[int, int]] = {}  # queue -> priority -> the id to begin at
        self._depth = inf  # ids before the place that one look goes through; inf: from the head
        self._rounds: dict[
            str, tuple[int, float]
        ] = {}  # queue -> before which id its next step is; since when
        self._late = False  # a round takes too long
        self._plain = 0.0  # seconds that a claim takes which looks at the places only, without its jobs
        self._head_at = 0.0  # not before this time before the places
        self._aged_at = 0.0
        self._gates_at = 0.0

    def head_is_due(self, now: float) -> bool:
        return now >= self._head_at

    def aged_is_due(self, now: float) -> bool:
        return now >= max(self._head_at, self._aged_at)

    def gates_are_due(self, now: float) -> bool:
        return now >= self._gates_at

    def whole_at(self) -> float:
        """When a look may be a whole one again, or the next step of one."""
        return max(self._head_at, self._gates_at)

    def places(self, queues: Iterable[str], *, head: bool = False) -> dict[str, Sequence[Range]]:
        """Where to look in each queue that is known, before its places as well if `head`; everywhere in the others."""
        if head and self._depth == inf:
            return {}
        known = (queue for queue in queues if queue in self._places)
        return {queue: _ranges(self._places[queue], self._step(queue) if head else None) for queue in known}

    def _step(self, queue: str) -> tuple[int, int]:
        """The next step of a queue: from this id on, before that one."""
        below = self._rounds[queue][0] if queue in self._rounds else max(self._places[queue].values())
        return (int(below - self._depth) if below > self._depth else _FIRST), below

    def stepped(self, claimed: Sequence[Claimed], wants: Mapping[str, int], now: float) -> bool:
        """A look before the places came back, that wanted so many of each queue. True: it was the end of a whole look."""
        got = Counter(job.queue for job in claimed)
        before = {
            job.queue for job in claimed if job.id < self._places.get(job.queue, {}).get(job.priority, _FIRST)
        }
        for queue, count in wants.items():
            if self._depth == inf or queue not in self._places:
                self._rounds.pop(queue, None)
                continue
            first, below = self._step(queue)
            _, since = self._rounds.get(queue, (0, now))
            if queue in before and got[queue] >= count:
                self._rounds[queue] = below, since  # there may be more of them
            elif first > _FIRST:
                self._rounds[queue] = first, since
            else:
                self._rounds.pop(queue, None)
        rounds = [self._rounds[queue] for queue in wants if queue in self._rounds]
        self._late = any(now - since > self._most for _, since in rounds)
        return not rounds

    def found(self, claimed: Sequence[Claimed]) -> None:
        """Jobs were found: the next look begins behind them, wherever they were. (Steps before a place do not move it.)"""
        last: dict[tuple[str, int], int] = {}
        for job in claimed:
            key = job.queue, job.priority
            last[key] = max(last.get(key, 0), job.id)
        for (queue, priority), job_id in last.items():
            levels = self._places.setdefault(queue, {})
            if self._depth < inf and job_id < levels.get(priority, _FIRST):
                continue
            levels.pop(priority, None)
            levels[priority] = job_id + 1
            if len(levels) > LEVELS:
                del levels[next(iter(levels))]  # the one that was of no use for longest

    def took(
        self, seconds: float, now: float, *, head: bool, gates: bool, jobs: int, aged: bool = False
    ) -> None:
        """How long a claim took that has just come back."""
        seconds = max(0.0, seconds - SLOW_PER_JOB * jobs)
        slow = seconds > SLOW + 2 * self._plain
        pause = min(SHARE * (max(0.0, seconds - self._plain) if head else seconds), self._most)
        if head:
            self._head_at = now if self._late else now + pause
        elif gates:
            self._gates_at = now + pause if seconds > SLOW else 0.0
        if aged:
            self._aged_at = now + (OUT_OF_TURN * pause if slow else 0.0)
        if head and (slow or not aged):
            self._deepen(slow and not self._late)
        self._plain = min(seconds, self._plain) if head else seconds

    def _deepen(self, slow: bool) -> None:
        if slow:
            self._depth = LEAST if self._depth == inf else max(LEAST, self._depth / 2)
        elif self._depth < inf:
            self._depth *= 2
            if self._depth > max((max(levels.values()) for levels in self._places.values()), default=0):
                self._depth = inf


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
