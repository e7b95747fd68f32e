"""How a host looks at what lies before the places where it last found work; pure.

There may be a retry, a job that committed late, one that was given back; and the remains of all jobs since a snapshot was
taken that is still held. As long as that is cheap, the look begins at the head, at every claim: such a look is followed by
others without one for `SHARE` times as long as it took longer than they do, but never for longer than `most`: how long a
claim took is also how slow the network was, and a job must not wait for that in front of idle workers.

When it is not cheap, the claims behind it must not wait for all of it: it is made in steps, from the place down to the head,
each over so many ids as are not slow to go through. Quick steps become longer, until one reaches the head. A round that
takes longer than `most` gets more of the time, `HASTE` instead of `SHARE`; its steps stay short. (docs/adr/2003, 2501)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf

from pgworkers.job.claim import EVERYWHERE, Claimed

SHARE = 20
HASTE = 3
#: A step has no fewer ids than this.
LEAST = 1 << 14

_FIRST = EVERYWHERE[0].first

Places = Mapping[str, Mapping[int, int]]


class Before:
    def __init__(self, most: float) -> None:
        self._most = most
        self._depth = inf  # ids before the place that one look goes through; inf: from the head
        self._rounds: dict[
            str, tuple[int, float]
        ] = {}  # queue -> before which id its next step is; since when
        self._late = False  # a round takes too long
        self.at = 0.0  # not before this time

    @property
    def whole(self) -> bool:
        """Is one look enough?"""
        return self._depth == inf

    def due(self, now: float) -> bool:
        return now >= self.at

    def step(self, queue: str, levels: Mapping[int, int]) -> tuple[int, int]:
        """The next step of a queue with these places: from this id on, before that one."""
        below = self._rounds[queue][0] if queue in self._rounds else max(levels.values())
        return (int(below - self._depth) if below > self._depth else _FIRST), below

    def stepped(
        self, claimed: Sequence[Claimed], wants: Mapping[str, int], places: Places, now: float
    ) -> bool:
        """A look came back, that wanted so many of each queue. True: it was the end of a whole one."""
        got = Counter(job.queue for job in claimed)
        before = {
            job.queue for job in claimed if job.id < places.get(job.queue, {}).get(job.priority, _FIRST)
        }
        for queue, count in wants.items():
            if self.whole or queue not in places:
                self._rounds.pop(queue, None)
                continue
            first, below = self.step(queue, places[queue])
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

    def took(self, longer: float, now: float, places: Places, *, slow: bool) -> None:
        """A look took so many seconds longer than one without it; `slow`: others waited for that."""
        self.at = now + min((HASTE if self._late else SHARE) * longer, self._most)
        if slow:
            self._depth = LEAST if self.whole else max(LEAST, self._depth / 2)
        elif not self.whole:
            self._depth *= 2
            if self._depth > max((max(levels.values()) for levels in places.values()), default=0):
                self._depth = inf
