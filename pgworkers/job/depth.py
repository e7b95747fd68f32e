"""Depth: how much waits in each queue, read by the leader for everybody's gauges.

One statement counts what is small; a `Tally` goes on in slices, so that no statement is long, however long the backlog: a
hundred thousand rows at once are 33 ms of a core.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from pgworkers.postgres.statements import Query, Statement
from pgworkers.sightings import QueueDepth

_DEPTH = Statement.beside(__file__, "depth")
_READY = Statement.beside(__file__, "depth_ready")
_SCHEDULED = Statement.beside(__file__, "depth_scheduled")

#: No count goes beyond this: the gauge of a backlog of ten million says "at least so many", and costs no more.
MOST = 100_000
#: Nor that of jobs behind a concurrency limit, which one statement counts.
HELD = 10_000
#: What one statement counts at most.
SLICE = 5_000
#: But the first counts so many in each queue, were there a hundred.
LEAST = 500
#: How many jobs and priorities are looked at for the oldest behind what is counted.
LOOK = 30


class Tally:
    """A count under way: `more` is the statement that counts on, and None when everything is counted."""

    def __init__(self, rows: list[tuple[Any, ...]], most: int, slice_: int) -> None:
        self._most, self._slice = most, slice_
        self._queues: dict[str, QueueDepth] = {}
        self._ready: dict[str, tuple[int, int]] = {}  # where to count on: the place of the last one
        self._scheduled: tuple[str, int] | None = None
        self._later = 0  # how many scheduled jobs were counted, also of queues that are not told of
        for *row, place, run_at, last in rows:
            one = QueueDepth(*row)
            self._queues[one.queue] = one
            if place is not None:
                self._ready[one.queue] = -place[0], place[1]
            if last is not None:
                self._scheduled = run_at, last
                self._later = slice_

    @property
    def queues(self) -> list[QueueDepth]:
        return list(self._queues.values())

    def more(self) -> Query[None] | None:
        for queue, (priority, last) in self._ready.items():
            where = {"queue": queue, "priority": priority, "id": last, "slice": self._slice}
            return Query(_READY, where, partial(self._count_ready, queue))
        if self._scheduled is not None:
            run_at, last = self._scheduled
            return Query(
                _SCHEDULED, {"run_at": run_at, "id": last, "slice": self._slice}, self._count_scheduled
            )
        return None

    def _count_ready(self, queue: str, rows: list[tuple[Any, ...]]) -> None:
        ((jobs, oldest, place),) = rows
        one = self._queues[queue]
        ready, oldest = min(one.ready + jobs, self._most), max(one.oldest, oldest or 0.0)
        self._queues[queue] = replace(one, ready=ready, oldest=oldest)
        if jobs < self._slice or ready >= self._most:
            del self._ready[queue]
        else:
            self._ready[queue] = -place[0], place[1]

    def _count_scheduled(self, rows: list[tuple[Any, ...]]) -> None:
        counted = 0
        for queue, jobs, run_at, last in rows:
            counted += jobs
            self._scheduled = run_at, last
            if one := self._queues.get(queue):
                self._queues[queue] = replace(one, scheduled=one.scheduled + jobs)
        self._later += counted
        if counted < self._slice or self._later >= self._most:
            self._scheduled = None


def tally(queues: int, most: int = MOST, slice_: int = SLICE) -> Query[Tally]:
    """Begin to count every queue that is declared or has ready jobs; about so many of them are expected."""
    first = max(LEAST, slice_ // max(1, queues))
    where = {"most": min(first, most), "held": HELD, "running": MOST, "look": LOOK}
    return Query(_DEPTH, where, lambda rows: Tally(rows, most, slice_))


def depth(most: int) -> Query[list[QueueDepth]]:
    """The same in one statement, for one who asks once."""
    where = {"most": most, "held": most // 10, "running": most, "look": LOOK}
    return Query(_DEPTH, where, lambda rows: Tally(rows, most, most).queues)
