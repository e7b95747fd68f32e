"""What `pgworkers run --burst` asks the database: is there still work, who else runs it, and what will stay behind.

A burst ends when none of its queues holds a job that runs, is due or waits for a retry, as far as a host with these tasks
could run it. Each statement reads a bounded number of rows and says where the next one continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pgworkers.job.queries import MAX_HELD_JOBS
from pgworkers.postgres.statements import Query, Statement

_BURST_BUSY_HOSTS = Statement.from_file(__file__, "burst_busy_hosts")
_BURST_UNFINISHED = Statement.from_file(__file__, "burst_unfinished")
_BURST_LEFT_BEHIND = Statement.from_file(__file__, "burst_left_behind")

#: The most jobs that are counted of what a burst leaves behind.
MAX_LEFT_BEHIND_ROWS = 10_000

#: Jobs of each part that one statement of `unfinished_work` looks at.
UNFINISHED_SCAN_ROWS = 10_000
#: Ended parents with many followers that one statement of `unfinished_work` looks at.
MAX_UNSETTLED_PARENTS = 100


@dataclass(frozen=True, slots=True)
class UnfinishedWork:
    """What a burst waits for, as one statement found it.

    `next_place`: where the next statement begins; None: that was all.

    `crowded_queues`: queues whose first ready jobs all belong to other tasks. `is_partial`: there may be more that this
    statement did not look at, and the hosts or the leader will soon have dealt with what it looked at.
    """

    jobs: int
    is_partial: bool
    crowded_queues: Sequence[str]
    next_place: tuple[str, int] | None

    @property
    def is_finished(self) -> bool:
        """True if nothing is left that the burst could run."""
        return not self.jobs and not self.is_partial and not self.crowded_queues and self.next_place is None


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """Jobs of one task that a burst leaves in one queue, for one reason."""

    queue: str
    task: str
    reason: str
    count: int
    due_in_seconds: float | None  # seconds until the first of them; None: that is not known


@dataclass(frozen=True, slots=True)
class BusyHost:
    """A host that holds jobs.

    `silent_seconds`: seconds since it renewed; after `lease_seconds` they are lost.
    """

    id: UUID
    name: str
    pid: int
    jobs: int
    silent_seconds: float
    lease_seconds: float


def unfinished_work(
    names: Sequence[str], tasks: Sequence[str], after: tuple[str, int] | None = None
) -> Query[UnfinishedWork]:
    """Jobs of these queues that run, are due, or wait for a retry, and need only a host that knows these tasks.

    While `next_place` is not None and no job was found, ask again with it as `after`.
    """
    after_time, after_id = after or ("-infinity", 0)
    params = {
        "queues": list(names),
        "tasks": list(tasks),
        "after_time": after_time,
        "after_id": after_id,
        "max_rows": UNFINISHED_SCAN_ROWS,
        "held": MAX_HELD_JOBS,
        "parents": MAX_UNSETTLED_PARENTS,
    }

    def read(rows: list[tuple[Any, ...]]) -> UnfinishedWork:
        ((jobs, is_partial, crowded, time, job_id),) = rows
        return UnfinishedWork(int(jobs), is_partial, crowded, None if time is None else (time, job_id))

    return Query(_BURST_UNFINISHED, params, read)


def other_busy_hosts(host: str, names: Sequence[str]) -> Query[list[BusyHost]]:
    """The hosts but this one that hold jobs of these queues."""
    params = {"host": host, "queues": list(names)}
    return Query(_BURST_BUSY_HOSTS, params, lambda rows: [BusyHost(*row) for row in rows])


def jobs_left_behind(names: Sequence[str], tasks: Sequence[str]) -> Query[Sequence[LeftBehind]]:
    """Why jobs of these queues stay where they are, for a host that knows these tasks."""
    params = {"queues": list(names), "tasks": list(tasks), "max_rows": MAX_LEFT_BEHIND_ROWS}
    return Query(_BURST_LEFT_BEHIND, params, lambda rows: [LeftBehind(*row) for row in rows])
