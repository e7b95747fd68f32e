"""Batches: many jobs, and one that begins after the last of them. Counted from the jobs, never in a row of their own.

When a job of a batch ends, `pgworkers.ended` looks whether any other lives. Sessions that end the last ones at one moment
cannot see each other's; then the batch is *notified* (`batch:<id>` on the channel of the schema) and somebody settles it
after their commits. `sweep` is the bound on a notification that nobody heard.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pgworkers.job.new import OnFailed
from pgworkers.job.walk import Step
from pgworkers.postgres.statements import Query, Statement

_OPEN = Statement.beside(__file__, "batch_open")
_SEAL = Statement.beside(__file__, "batch_seal")
_SETTLE = Statement.beside(__file__, "batch_settle")
_SWEEP = Statement.beside(__file__, "batch_sweep")
_GET = Statement.beside(__file__, "batch_get")
_COUNTS = Statement.beside(__file__, "batch_counts")
_CANCEL = Statement.beside(__file__, "batch_cancel")
_CANCEL_JOBS = Statement.beside(__file__, "batch_cancel_jobs")
_PRUNE = Statement.beside(__file__, "batch_prune")

#: Ids that one statement of a count looks at, from the first job that was not counted yet.
COUNT_PORTION = 20_000

Settled = Literal["live", "busy", "waiting", "finished"]


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch as its row says. `finished_at`: none of its jobs lives and what comes after it was released."""

    id: int
    total: int
    then_id: int | None
    on_failed: str
    created_at: datetime
    cancelled_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Counts:
    """How far a batch is. `failed`: dead or cancelled."""

    total: int
    live: int
    failed: int

    @property
    def succeeded(self) -> int:
        return max(0, self.total - self.live - self.failed)


@dataclass(frozen=True, slots=True)
class CountStep:
    """One portion of a count. `next`: the id to go on from; None: that was all."""

    counts: Counts
    next: int | None


def open_batch(on_failed: OnFailed) -> Query[int]:
    """The id of a new batch; its jobs and `seal` follow in the same transaction."""
    return Query(_OPEN, {"on_failed": on_failed}, lambda rows: int(rows[0][0]))


def seal(batch_id: int, total: int, then_id: int | None) -> Query[None]:
    return Query(_SEAL, {"id": batch_id, "total": total, "then_id": then_id}, lambda rows: None)


def settle(batch_id: int) -> Query[Settled]:
    """Complete the batch if nothing of it lives. "busy": somebody is ending its jobs just now, ask again soon."""
    return Query(_SETTLE, {"id": batch_id}, lambda rows: rows[0][0])


def sweep(portion: int, after: int | None = None) -> Query[Step[int]]:
    """Settle the open batches of which nothing lives; one portion of a walk. It counts those that completed."""

    def read(rows: list[tuple[Any, ...]]) -> Step[int]:
        finished = sum(row[1] == "finished" for row in rows)
        return Step(rows[-1][0] if len(rows) >= portion else None, finished)

    return Query(_SWEEP, {"portion": portion, "after": after or 0}, read)


def get(batch_id: int) -> Query[BatchView | None]:
    return Query(_GET, {"id": batch_id}, lambda rows: BatchView(*rows[0]) if rows else None)


def counts(batch_id: int, before: CountStep | None = None) -> Query[CountStep | None]:
    """One portion of a count, added to the portions `before` it. None: there is no such batch."""
    live, failed, after = (before.counts.live, before.counts.failed, before.next) if before else (0, 0, 0)

    def read(rows: list[tuple[Any, ...]]) -> CountStep | None:
        if not rows:
            return None
        ((total, more_live, more_failed, reached),) = rows
        return CountStep(Counts(total, live + more_live, failed + more_failed), reached)

    return Query(_COUNTS, {"id": batch_id, "after": after, "portion": COUNT_PORTION}, read)


def cancel(batch_id: int) -> Query[bool]:
    """Mark it and cancel what comes after it. False: there is no such batch. `cancel_jobs` follows until nothing is left."""
    return Query(_CANCEL, {"id": batch_id}, bool)


def cancel_jobs(batch_id: int, limit: int) -> Query[tuple[int, bool]]:
    """Cancel at most so many of its jobs: how many, and whether there are more to ask for."""
    return Query(
        _CANCEL_JOBS, {"id": batch_id, "limit": limit}, lambda rows: (int(rows[0][0]), bool(rows[0][1]))
    )


def prune(older: float, limit: int) -> Query[int]:
    """Forget at most so many batches that finished more than `older` seconds ago. Answers how many."""
    return Query(_PRUNE, {"older": older, "limit": limit}, len)
