"""Queues whose claims take too long: what is done about it, queue by queue and in bounded steps; pure.

The usual cause are jobs of tasks that this host does not know: a claim walks over all of them. So a queue whose claim was
slow is *crowded*: such jobs are parked, one portion at a time, and a claim looks only at what lies before the end of the
last portion, and at the newest jobs. The queue is left alone when a portion had nothing to park, or came to the end of it.

When that was not the cause, the queues of a claim that timed out are claimed one by one. A queue that times out alone rests
for a while, so that the others have nearly all of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgworkers.job.claim import EVERYWHERE, HIGHEST, Range, Wants

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
    def __init__(self) -> None:
        self._places: dict[str, Place | None] = {}  # crowded queue -> the end of its last portion
        self._newest: dict[str, int] = {}  # crowded queue -> the newest id when its first portion was parked
        self._checked: dict[str, float] = {}  # queue -> when there was nothing to park
        self._alone: list[str] = []  # queues that are claimed one by one
        self._resting: dict[str, float] = {}  # queue -> until when

    @property
    def waiting(self) -> bool:
        """True if the next claim is due, whatever is heard."""
        return bool(self._places or self._alone)

    @property
    def is_parking(self) -> bool:
        """True if a portion is left to park."""
        return bool(self._places)

    def slow(self, queues: Iterable[str], now: float) -> bool:
        """A claim of these queues took too long. True: some of them are crowded now."""
        fresh = [queue for queue in queues if now - self._checked.get(queue, -AGAIN) >= AGAIN]
        for queue in fresh:
            self._places.setdefault(queue, None)
        return bool(fresh)

    def next(self) -> str | None:
        """The queue whose next portion is due."""
        return next(iter(self._places), None)

    def parked(self, queue: str, jobs: int, place: Place | None, newest: int, now: float) -> bool:
        """A portion moved so many jobs and came to this place; None: to the end of the queue. False: the queue is done."""
        self._places.pop(queue, None)
        newest = self._newest.pop(queue, newest)
        if not jobs or place is None:
            self._checked[queue] = now
            return False
        self._newest[queue] = newest
        self._places[queue] = place  # behind the others
        return True

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
        return {queue for queue, place in self._places.items() if place is None} | self._resting.keys()

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
