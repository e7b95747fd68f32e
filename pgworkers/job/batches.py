"""Batches: many jobs, and one that runs after the last of them.

The number of jobs is stored in the row of the batch. How many live or failed is counted from the jobs.

When a job of a batch ends, the SQL function `settle_dependents()` checks whether another job of the batch lives. Sessions
that end the last jobs at the same time cannot see each other's changes. They send `batch:<id>` on the channel of the schema,
and the leader calls `settle_batch` after their commits. `settle_open_batches` does so if that notification was lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from pgworkers.job.maintenance import Portion
from pgworkers.job.model import OnFailed
from pgworkers.postgres.statements import Query, Statement

_BATCH_OPEN = Statement.from_file(__file__, "batch_open")
_BATCH_SEAL = Statement.from_file(__file__, "batch_seal")
_BATCH_SETTLE = Statement.from_file(__file__, "batch_settle")
_BATCH_SETTLE_OPEN = Statement.from_file(__file__, "batch_settle_open")
_BATCH_GET = Statement.from_file(__file__, "batch_get")
_BATCH_COUNT = Statement.from_file(__file__, "batch_count")
_BATCH_CANCEL = Statement.from_file(__file__, "batch_cancel")
_BATCH_CANCEL_JOBS = Statement.from_file(__file__, "batch_cancel_jobs")
_BATCH_PRUNE = Statement.from_file(__file__, "batch_prune")

#: Ids that one statement of a count looks at, from the first job that was not counted yet.
COUNT_PORTION_IDS = 20_000


class SettleOutcome(StrEnum):
    """What an attempt to complete a batch found."""

    LIVE = "live"  #: a job of it lives
    BUSY = "busy"  #: other sessions are ending its jobs
    WAITING = "waiting"  #: it is not sealed yet
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch as its row says.

    `finished_at`: none of its jobs lives and what comes after it was released.
    """

    id: int
    total: int
    then_job_id: int | None
    on_failed: str
    created_at: datetime
    cancelled_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """How far a batch is. `failed`: dead or cancelled."""

    total: int
    live: int
    failed: int

    @property
    def succeeded(self) -> int:
        return max(0, self.total - self.live - self.failed)


@dataclass(frozen=True, slots=True)
class BatchCountPortion:
    """One portion of a count. `next`: the id to go on from; None: that was all."""

    counts: BatchCounts
    next: int | None


def open_batch(on_failed: OnFailed) -> Query[int]:
    """The id of a new batch; its jobs and `seal_batch` follow in the same transaction."""
    return Query(_BATCH_OPEN, {"on_failed": on_failed}, lambda rows: int(rows[0][0]))


def seal_batch(batch_id: int, total: int, then_id: int | None) -> Query[None]:
    return Query(_BATCH_SEAL, {"id": batch_id, "total": total, "then_id": then_id}, lambda rows: None)


def settle_batch(batch_id: int) -> Query[SettleOutcome]:
    """Complete the batch if no job of it lives.

    "busy": other sessions are ending its jobs; call it again soon.
    """
    return Query(_BATCH_SETTLE, {"id": batch_id}, lambda rows: SettleOutcome(rows[0][0]))


def settle_open_batches(portion: int, after: int | None = None) -> Query[Portion[int]]:
    """Settle the open batches of which nothing lives; one portion of a walk.

    It counts those that completed.
    """

    def read(rows: list[tuple[Any, ...]]) -> Portion[int]:
        finished = sum(row[1] == SettleOutcome.FINISHED for row in rows)
        return Portion(rows[-1][0] if len(rows) >= portion else None, finished)

    return Query(_BATCH_SETTLE_OPEN, {"portion": portion, "after": after or 0}, read)


def get_batch(batch_id: int) -> Query[BatchView | None]:
    return Query(_BATCH_GET, {"id": batch_id}, lambda rows: BatchView(*rows[0]) if rows else None)


def count_batch(batch_id: int, before: BatchCountPortion | None = None) -> Query[BatchCountPortion | None]:
    """One portion of a count, added to the portions `before` it. None: there is no such batch."""
    live, failed, after = (before.counts.live, before.counts.failed, before.next) if before else (0, 0, 0)

    def read(rows: list[tuple[Any, ...]]) -> BatchCountPortion | None:
        if not rows:
            return None
        ((total, more_live, more_failed, reached),) = rows
        return BatchCountPortion(BatchCounts(total, live + more_live, failed + more_failed), reached)

    return Query(_BATCH_COUNT, {"id": batch_id, "after": after, "portion": COUNT_PORTION_IDS}, read)


def cancel_batch(batch_id: int) -> Query[bool]:
    """Mark it and cancel what comes after it. Returns False if there is no such batch.

    `cancel_batch_jobs` follows, until nothing is left.
    """
    return Query(_BATCH_CANCEL, {"id": batch_id}, bool)


def cancel_batch_jobs(batch_id: int, limit: int) -> Query[tuple[int, bool]]:
    """Cancel at most `limit` of its jobs. Returns how many, and whether there are more."""
    return Query(
        _BATCH_CANCEL_JOBS, {"id": batch_id, "limit": limit}, lambda rows: (int(rows[0][0]), bool(rows[0][1]))
    )


def prune_batches(older: float, limit: int) -> Query[int]:
    """Delete at most `limit` batches that finished more than `older` seconds ago.

    Returns how many.
    """
    return Query(_BATCH_PRUNE, {"older": older, "limit": limit}, len)
