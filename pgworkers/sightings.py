"""Facts that are measurements: what was seen at one moment, for gauges. Nobody logs them; `events` lists them with all."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """One queue in a snapshot. Counts are capped; `limit` is None when there is none."""

    queue: str
    ready: int
    scheduled: int
    running: int
    oldest: float  # seconds that the oldest ready job has waited; 0 when nothing is ready
    paused: bool
    limit: int | None  # workers over all hosts
    throttled: bool
    is_exact: bool = True  # False: the table `host` was locked, so what hosts claimed ahead counts as running


@dataclass(frozen=True, slots=True)
class QueuesSeen:
    """The leader's snapshot of all queues. Told by the leader only, so that sums over hosts count nothing twice."""

    queues: list[QueueDepth]


@dataclass(frozen=True, slots=True)
class ScheduleTimes:
    """One schedule (all its scopes) in a snapshot: Unix times of its last tick and of the next; None: there is none."""

    schedule: str
    last: float | None
    next: float | None


@dataclass(frozen=True, slots=True)
class SchedulesSeen:
    """The leader's snapshot of all schedules."""

    schedules: list[ScheduleTimes]


@dataclass(frozen=True, slots=True)
class TableSize:
    """One table, its partitions and indexes included."""

    table: str
    dead: int
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class StorageSeen:
    """The leader's snapshot of the tables, and of the oldest transaction that holds back vacuum; `who` is empty: none."""

    tables: list[TableSize]
    oldest: float
    who: str


@dataclass(frozen=True, slots=True)
class MemorySeen:
    """Bytes that the workers of each queue use with their children, all together and the largest alone."""

    total: dict[str, int]
    largest: dict[str, int]


@dataclass(frozen=True, slots=True)
class LoopWoke:
    """The master's loop slept, and woke up so many seconds late."""

    late: float


@dataclass(frozen=True, slots=True)
class HandlerMeasured:
    """What a handler said by `ctx.metrics`, as its worker sent it; `observe.handlers` reads it."""

    task: str
    body: bytes


SIGHTINGS = (QueuesSeen, SchedulesSeen, StorageSeen, MemorySeen, LoopWoke, HandlerMeasured)
