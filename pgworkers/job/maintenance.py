"""What the leader does: promote, expire, rescue, link dependencies, make and drop partitions, prune.

`due_duties` says in one statement which of these are due, and when. A duty that walks over a table reads it in portions, so
that each statement is short; a `Portion` says where the next one begins.

Promote makes jobs ready whose time has come. Expire ends those that were not started in time. Rescue takes jobs away from
hosts that stopped renewing. (If a worker dies on a live host, its own master finishes the attempt, with the true cause.)

Link settles jobs that were enqueued with `after`. Enqueueing locks no other job, because its transaction may stay open for
long; it inserts a row into `dependency`. The leader marks the parent in a short transaction of its own, or settles the link
if the parent has ended in the meantime.

History and attempts are in daily partitions, which are made ahead of time. A partition is removed in two steps.
`move_kept_rows` moves the rows that must outlive it, in portions and with row locks only. `drop_partition` then takes a
short exclusive lock and copies nothing. A failure affects one day only.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from pgworkers.job import sanitize
from pgworkers.job.model import MAX_CONSECUTIVE_LOSSES, JobState
from pgworkers.job.sanitize import MAX_ERROR_LINE_CHARACTERS
from pgworkers.postgres.statements import Query, Statement

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Portion(Generic[P]):
    """One portion: how many rows it changed, and the key to continue from (None at the end of the table)."""

    next_key: P | None
    changed_rows: int
    is_blocked: bool = False  #: another session holds a row of this portion, so nothing was changed


_DUE_DUTIES = Statement.from_file(__file__, "due_duties")

#: The duties that are performed when `due_duties` finds work for them.
DUTIES_WITH_DUE_TIME = (
    "promote",
    "fire_schedules",
    "expire",
    "link_dependencies",
    "batches",
    "share_workers",
)


def due_duties() -> Query[dict[str, float | None]]:
    """In how many seconds each of these duties has something to do; None: nothing that is known."""

    def read(rows: list[tuple[Any, ...]]) -> dict[str, float | None]:
        return {
            name: None if within is None else float(within)
            for name, within in zip(DUTIES_WITH_DUE_TIME, rows[0], strict=True)
        }

    return Query(_DUE_DUTIES, {}, read)


_PROMOTE = Statement.from_file(__file__, "promote")
_EXPIRE = Statement.from_file(__file__, "expire")


@dataclass(frozen=True, slots=True)
class PromoteResult:
    """How many became ready, and in how many seconds the next one is due (None: nothing is scheduled)."""

    count: int
    next_in_seconds: float | None


def promote_due(limit: int) -> Query[PromoteResult]:
    """Make at most `limit` due jobs ready, the earliest first."""

    def read(rows: list[tuple[Any, ...]]) -> PromoteResult:
        count, next_in = rows[0][:2]
        return PromoteResult(count, 0.0 if count >= limit else next_in)

    return Query(_PROMOTE, {"limit": limit}, read)


def expire_jobs(limit: int) -> Query[int]:
    """End at most `limit` jobs that were not started in time. Answers how many."""
    return Query(_EXPIRE, {"limit": limit}, lambda rows: int(rows[0][0]))


_RESCUE = Statement.from_file(__file__, "rescue")
_RESCUE_CANDIDATES = Statement.from_file(__file__, "rescue_candidates")


@dataclass(frozen=True, slots=True)
class RescuedJob:
    """A job that was taken from its lost host, and what became of it: scheduled, dead or cancelled."""

    id: int
    lease: int
    queue: str
    task: str
    attempt: int
    state: JobState
    error: str  # why its host counts as lost
    max_attempts: int


def rescue_jobs(
    host: str,
    limit: int,
    *,
    host_clock: datetime | None = None,
    only_job: int | None = None,
    refusal: str | None = None,
) -> Query[list[RescuedJob]]:
    """Rescue at most `limit` jobs, none of `host` itself.

    Only a host that has renewed without a gap may ask.

    `host_clock`: the database's time as the host estimates it; whether a host is lost is decided by the earlier of the two.
    `only_job`: this job and no other. `refusal`: why the database will not schedule it again, so that it ends instead.
    """
    cause = None if refusal is None else sanitize.one_line(refusal, MAX_ERROR_LINE_CHARACTERS)
    params = {
        "host": host,
        "limit": limit,
        "clock": host_clock,
        "only": only_job,
        "refused": cause,
        "max_losses": MAX_CONSECUTIVE_LOSSES,
    }
    return Query(_RESCUE, params, _read_rescued)


def rescue_candidates(host: str, limit: int, *, host_clock: datetime | None = None) -> Query[list[int]]:
    """Which jobs a rescue would take."""
    return Query(
        _RESCUE_CANDIDATES,
        {"host": host, "limit": limit, "clock": host_clock},
        lambda rows: [row[0] for row in rows],
    )


def _read_rescued(rows: list[tuple[Any, ...]]) -> list[RescuedJob]:
    return [
        RescuedJob(
            id=row[0],
            lease=row[1],
            queue=row[2],
            task=row[3],
            attempt=row[4],
            state=JobState(row[5]),
            error=row[6],
            max_attempts=row[7],
        )
        for row in rows
    ]


_DEPENDENCY_LINK = Statement.from_file(__file__, "dependency_link")


def link_dependencies(limit: int) -> Query[int]:
    """Settle at most `limit` new links.

    Answers how many; what others hold just now is left for the next time.
    """
    return Query(_DEPENDENCY_LINK, {"limit": limit}, lambda rows: int(rows[0][0]))


_PARTITION_MAKE = Statement.from_file(__file__, "partition_make")
_PARTITION_OLD = Statement.from_file(__file__, "partition_old")
_PARTITION_MOVE_KEPT = Statement.from_file(__file__, "partition_move_kept")
_PARTITION_DROP = Statement.from_file(__file__, "partition_drop")
_HISTORY_PRUNE = Statement.from_file(__file__, "history_prune")
_ATTEMPT_PRUNE = Statement.from_file(__file__, "attempt_prune")

#: Partitions that take the rows of days without a partition. `move_kept_rows` empties them.
DEFAULT_PARTITIONS = ("history_default", "attempt_default")


def make_partitions(ahead: int) -> Query[int]:
    """Make the partitions of today and of `ahead` days to come. Returns how many were missing."""
    return Query(_PARTITION_MAKE, {"ahead": ahead}, lambda rows: int(rows[0][0]))


def old_partitions(retention: float) -> Query[list[str]]:
    """The names of partitions that ended more than `retention` seconds ago, the oldest first.

    A queue that keeps its jobs longer keeps every partition as long; `prune_history` deletes the older jobs of other queues.
    """
    return Query(_PARTITION_OLD, {"retention": retention}, lambda rows: [row[0] for row in rows])


def move_kept_rows(name: str, dead: float, portion: int, after: int | None = None) -> Query[Portion[int]]:
    """Move what must outlive a partition, such as jobs that died less than `dead` seconds ago; one portion.

    Everything that lies in a default partition is moved.
    """

    def read(rows: list[tuple[Any, ...]]) -> Portion[int]:
        following, moved = rows[0]
        return Portion(following, moved or 0, is_blocked=moved is None)

    return Query(
        _PARTITION_MOVE_KEPT,
        {"name": name, "dead": dead, "after": _start_key(after), "portion": portion},
        read,
    )


def drop_partition(name: str) -> Query[bool | None]:
    """Drop one partition that `old_partitions` named, after `move_kept_rows` has come to its end.

    False: another host was faster. None: it could not be locked, and the next run of the duty tries again.
    """
    return Query(_PARTITION_DROP, {"name": name}, lambda rows: rows[0][0])


def prune_history(
    retention: float, dead: float, portion: int, after: int | None = None, *, kept: bool = False
) -> Query[Portion[int]]:
    """Delete finished jobs that are too old for their queue, with their attempts; one portion of a walk over history.

    Dead jobs only after `dead` as well. `kept`: walk over what outlived its partition, instead of the daily partitions.
    """
    params = {
        "retention": retention,
        "dead": dead,
        "portion": portion,
        "after": _start_key(after),
        "kept": kept,
    }
    return Query(_HISTORY_PRUNE, params, _read_portion)


def prune_attempts(retention: float, portion: int, after: int | None = None) -> Query[Portion[int]]:
    """Delete post-mortems that had been kept with a dead job that is gone now; one portion of a walk."""
    params = {"retention": retention, "portion": portion, "after": _start_key(after)}
    return Query(_ATTEMPT_PRUNE, params, _read_portion)


def _start_key(after: int | None) -> int:
    # Not the smallest bigint: a client-side cursor writes it as -9223372036854775808::bigint, which is out of range.
    return -(2**63) + 1 if after is None else after


def _read_portion(rows: list[tuple[Any, ...]]) -> Portion[int]:
    return Portion(rows[0][0], rows[0][1])


_IDEMPOTENCY_KEY_PRUNE = Statement.from_file(__file__, "idempotency_key_prune")


def prune_idempotency_keys(limit: int) -> Query[int]:
    """Delete keys whose window is over, at most `limit` of them. Returns how many."""
    return Query(_IDEMPOTENCY_KEY_PRUNE, {"limit": limit}, len)
