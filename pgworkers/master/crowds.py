"""Queues whose claims take too long: what is done about it, queue by queue and in bounded steps; pure.

The usual cause are jobs of tasks that this host does not know: a claim walks over all of them. So a queue whose claim was
slow is *crowded*: such jobs are parked, one portion at a time, and a claim looks only at what lies before the end of the
last portion, and at the newest jobs. The queue is left alone when a portion had nothing to park, or came to the end of it.
A portion that times out is halved, and the next one is tried after a pause. Meanwhile the queue is claimed.

When that was not the cause, the queues of a claim that timed out are claimed one by one. A queue that times out alone rests
for a while, so that the others have nearly all of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgworkers.job.claim import EVERYWHERE, HIGHEST, Range, Wants
from pgworkers.job.park import PORTION
from pgworkers.master.batch_size import BatchSize

#: Seconds that a claim may take before its queues are crowded.
SLOW_CLAIM = 0.2
#: Seconds until a queue in which there was nothing to park is looked at again.
AGAIN = 60.0
#: So many of the newest ids are looked at in a crowded queue, and all that come later.
NEWEST = 10_000
#: A queue that timed out alone rests for so many times as long as that took.
REST = 12

Place = tuple[int, int]
_FIRST, _LAST = EVERYWHERE[0].first, EVERYWHERE[0].last


class Crowds:
    def __init__(self, limit: float) -> None:
        """`limit`: seconds that a statement may take."""
        self._limit = limit
        self._places: dict[str, Place | None] = {}  # crowded queue -> the end of its last portion
        self._newest: dict[str, int] = {}  # crowded queue -> the newest id when its first portion was parked
        self._sizes: dict[str, BatchSize] = {}  # crowded queue -> how many jobs its next portion looks at
        self._due: dict[
            str, float
        ] = {}  # crowded queue -> when its next portion is due, after one that timed out
        self._open: set[str] = set()  # crowded queues that are claimed although their first portion timed out
        self._checked: dict[str, float] = {}  # queue -> when there was nothing to park
        self._alone: list[str] = []  # queues that are claimed one by one
        self._resting: dict[str, float] = {}  # queue -> until when

    def waiting(self, now: float) -> bool:
        """True if the next claim is due, whatever is heard."""
        return bool(self._alone) or self.is_parking(now)

    def is_parking(self, now: float) -> bool:
        """True if a portion is due."""
        return self.next(now) is not None

    def slow(self, queues: Iterable[str], now: float) -> bool:
        """A claim of these queues took too long. True: some of them are crowded now."""
        fresh = [queue for queue in queues if now - self._checked.get(queue, -AGAIN) >= AGAIN]
        for queue in fresh:
            self._places.setdefault(queue, None)
        return bool(fresh)

    def next(self, now: float) -> str | None:
        """The queue whose next portion is due."""
        return next((queue for queue in self._places if self._due.get(queue, now) <= now), None)

    def portion(self, queue: str) -> int:
        """How many jobs of a queue its next portion looks at."""
        return self._sizes.setdefault(queue, BatchSize(PORTION, self._limit)).now

    def parked(
        self, queue: str, jobs: int, place: Place | None, newest: int, now: float, took: float = 0.0
    ) -> bool:
        """A portion moved so many jobs and came to this place; None: to the end of the queue. False: the queue is done."""
        self._places.pop(queue, None)
        self._due.pop(queue, None)
        self._open.discard(queue)
        newest = self._newest.pop(queue, newest)
        if not jobs or place is None:
            self._sizes.pop(queue, None)
            self._checked[queue] = now
            return False
        size = self._sizes.get(queue)
        if size is not None:
            size.written(size.now, took)
        self._newest[queue] = newest
        self._places[queue] = place  # behind the others
        return True

    def not_parked(self, queue: str, took: float, now: float) -> None:
        """A portion timed out. A smaller one is tried after a pause, so that claims have half of the time.

        The queue is claimed meanwhile: that it is slow to write says little about how slow it is to claim. If one job is too
        many, it is left alone as a queue with nothing to park.
        """
        portion = self.portion(queue)
        if portion <= 1:
            self.parked(queue, 0, None, 0, now)
            return
        self._sizes[queue].failed(portion, slow=True)
        self._places[queue] = self._places.pop(queue, None)  # behind the others
        self._due[queue] = now + took
        self._open.add(queue)

    def close(self, queues: Iterable[str]) -> None:
        """A claim of these queues timed out: none is tried again before a portion was parked, where one is left to park."""
        self._open.difference_update(queues)

    def apart(self, queues: Sequence[str], took: float, now: float) -> None:
        """A claim of these queues timed out, and there was nothing to park."""
        if len(queues) == 1:
            self._resting[queues[0]] = now + REST * took
        else:
            self._alone = list(queues)

    def closed(self, now: float) -> set[str]:
        """Queues that no claim may ask for now: those before their first portion, and those that rest.

        A queue whose rest is over is claimed alone first, so that a timeout names it and no other queue is set apart.
        """
        for queue in [queue for queue, until in self._resting.items() if until <= now]:
            del self._resting[queue]
            self._alone.append(queue)
        unparked = {queue for queue, place in self._places.items() if place is None}
        return (unparked - self._open) | self._resting.keys()

    def allowed(self, wants: list[Wants], now: float) -> list[Wants]:
        """What the next claim may ask for."""
        closed = self.closed(now)
        wants = [want for want in wants if want.queue not in closed]
        while self._alone:
            queue = self._alone.pop(0)
            if one := [want for want in wants if want.queue == queue]:
                return one
        return wants

    def ranges(self, queues: Iterable[str]) -> dict[str, Sequence[Range]]:
        """Where to look in the queues that are crowded: up to the end of the last portion, and the newest jobs."""
        found: dict[str, Sequence[Range]] = {}
        for queue in queues:
            if (place := self._places.get(queue)) is not None:
                priority, last = place
                above = [Range(priority + 1, HIGHEST, _FIRST, _LAST)] if priority < HIGHEST else []
                before = Range(priority, priority, _FIRST, last)
                found[queue] = [
                    *above,
                    before,
                    Range(priority, priority, max(last, self._newest[queue] - NEWEST) + 1, _LAST),
                ]
        return found
