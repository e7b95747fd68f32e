"""Gauges of the leader: how many jobs wait in each queue, and tasks that no host knows.

One statement counts what is small. A `DepthCount` goes on in slices, so that no statement is long, however long the
backlog is.

`unknown_tasks` finds ready jobs of tasks that no host of their queue knows. No host claims such jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pgworkers.events import QueueDepth
from pgworkers.postgres.statements import Query, Statement

_GAUGE_DEPTH = Statement.from_file(__file__, "gauge_depth")
_GAUGE_DEPTH_READY = Statement.from_file(__file__, "gauge_depth_ready")
_GAUGE_DEPTH_SCHEDULED = Statement.from_file(__file__, "gauge_depth_scheduled")

#: No count goes beyond this: the gauge of a longer backlog means "at least this many", and costs no more.
MAX_COUNTED_DEPTH = 100_000
#: Nor that of jobs behind a concurrency limit, which one statement counts.
MAX_LIMITED_DEPTH = 10_000
#: What one statement counts at most.
DEPTH_SLICE_ROWS = 5_000
#: The first slice counts at least this many in each queue, however many queues there are.
MIN_FIRST_SLICE_ROWS = 500
#: How many jobs and priorities are looked at for the oldest behind what is counted.
OLDEST_SCAN_ROWS = 30


class DepthCount:
    """A count under way.

    `next_query()` returns the statement that goes on, or None when everything is counted.
    """

    def __init__(self, rows: list[tuple[Any, ...]], max_count: int, slice_: int) -> None:
        self._max_count, self._slice = max_count, slice_
        self._queues: dict[str, QueueDepth] = {}
        self._ready: dict[str, tuple[int, int]] = {}  # where to count on: the place of the last one
        self._scheduled: tuple[str, int] | None = None
        self._scheduled_count = (
            0  # how many scheduled jobs were counted, also of queues that are not reported
        )
        for *row, place, run_at, last in rows:
            one = QueueDepth(*row)
            self._queues[one.queue] = one
            if place is not None:
                self._ready[one.queue] = -place[0], place[1]
            if last is not None:
                self._scheduled = run_at, last
                self._scheduled_count = slice_

    @property
    def queues(self) -> list[QueueDepth]:
        return list(self._queues.values())

    def next_query(self) -> Query[None] | None:
        for queue, (priority, last) in self._ready.items():
            where = {"queue": queue, "priority": priority, "id": last, "slice": self._slice}
            return Query(_GAUGE_DEPTH_READY, where, partial(self._count_ready, queue))
        if self._scheduled is not None:
            run_at, last = self._scheduled
            return Query(
                _GAUGE_DEPTH_SCHEDULED,
                {"run_at": run_at, "id": last, "slice": self._slice},
                self._count_scheduled,
            )
        return None

    def _count_ready(self, queue: str, rows: list[tuple[Any, ...]]) -> None:
        ((jobs, oldest, place),) = rows
        one = self._queues[queue]
        ready, oldest = min(one.ready + jobs, self._max_count), max(one.oldest, oldest or 0.0)
        self._queues[queue] = replace(one, ready=ready, oldest=oldest)
        if jobs < self._slice or ready >= self._max_count:
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
        self._scheduled_count += counted
        if counted < self._slice or self._scheduled_count >= self._max_count:
            self._scheduled = None


def start_depth_count(
    queues: int, max_count: int = MAX_COUNTED_DEPTH, slice_: int = DEPTH_SLICE_ROWS
) -> Query[DepthCount]:
    """Begin to count each queue that is declared or has ready jobs.

    `queues`: about how many there are.
    """
    first = max(MIN_FIRST_SLICE_ROWS, slice_ // max(1, queues))
    where = {
        "max_count": min(first, max_count),
        "held": MAX_LIMITED_DEPTH,
        "running": MAX_COUNTED_DEPTH,
        "max_rows": OLDEST_SCAN_ROWS,
    }
    return Query(_GAUGE_DEPTH, where, lambda rows: DepthCount(rows, max_count, slice_))


def count_depth(max_count: int) -> Query[list[QueueDepth]]:
    """Count all queues in one statement, for a single read."""
    where = {
        "max_count": max_count,
        "held": max_count // 10,
        "running": max_count,
        "max_rows": OLDEST_SCAN_ROWS,
    }
    return Query(_GAUGE_DEPTH, where, lambda rows: DepthCount(rows, max_count, max_count).queues)


_GAUGE_UNKNOWN_TASKS = Statement.from_file(__file__, "gauge_unknown_tasks")
#: How many ready jobs of a queue are looked at.
UNKNOWN_TASK_SCAN_ROWS = 1000


@dataclass(frozen=True, slots=True)
class UnknownTask:
    """A task that no living host of the queue has, or no deploy ever had."""

    queue: str
    task: str
    jobs: int
    oldest_seconds: float


#: How many queues one statement looks at.
QUEUES_PER_STATEMENT = 20


def unknown_tasks(queues: Sequence[str]) -> Query[list[UnknownTask]]:
    params = {"queues": list(queues), "max_rows": UNKNOWN_TASK_SCAN_ROWS}
    return Query(_GAUGE_UNKNOWN_TASKS, params, lambda rows: [UnknownTask(*row) for row in rows])
