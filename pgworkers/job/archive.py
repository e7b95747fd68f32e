"""Archive: history and attempts lie in daily partitions; keeping them ahead of time and dropping the old ones.

A partition is retired in two acts. `keep_rows` moves what must outlive it, in portions and with row locks only. `drop`
then takes a short exclusive lock and copies nothing. A failure costs one day and no other.
"""

from __future__ import annotations

from typing import Any

from pgworkers.job.walk import Step
from pgworkers.postgres.statements import Query, Statement

_MAKE = Statement.beside(__file__, "archive_make")
_OLD = Statement.beside(__file__, "archive_old")
_KEEP = Statement.beside(__file__, "archive_keep")
_DROP = Statement.beside(__file__, "archive_drop")
_PRUNE = Statement.beside(__file__, "archive_prune")
_PRUNE_ATTEMPTS = Statement.beside(__file__, "archive_prune_attempts")

#: Partitions that take the rows of days without a partition. `keep_rows` empties them.
DEFAULT_PARTITIONS = ("history_default", "attempt_default")


def make_partitions(ahead: int) -> Query[int]:
    """Make the partitions of today and of `ahead` days to come. Answers how many were missing."""
    return Query(_MAKE, {"ahead": ahead}, lambda rows: int(rows[0][0]))


def old_partitions(retention: float) -> Query[list[str]]:
    """The names of partitions that ended more than `retention` seconds ago, the oldest first.

    A queue that keeps its jobs longer keeps every partition as long; what others had in it is deleted by `prune`.
    """
    return Query(_OLD, {"retention": retention}, lambda rows: [row[0] for row in rows])


def keep_rows(name: str, dead: float, portion: int, after: int | None = None) -> Query[Step[int]]:
    """Move what must outlive a partition, such as jobs that died less than `dead` seconds ago; one portion.

    Everything that lies in a default partition is moved.
    """

    def read(rows: list[tuple[Any, ...]]) -> Step[int]:
        following, moved = rows[0]
        return Step(following, moved or 0, is_blocked=moved is None)

    return Query(_KEEP, {"name": name, "dead": dead, "after": _key(after), "portion": portion}, read)


def drop(name: str) -> Query[bool | None]:
    """Drop one partition that `old_partitions` named, after `keep_rows` has come to its end.

    False: another host was faster. None: it could not be locked, and the next run of the duty tries again.
    """
    return Query(_DROP, {"name": name}, lambda rows: rows[0][0])


def prune(
    retention: float, dead: float, portion: int, after: int | None = None, *, kept: bool = False
) -> Query[Step[int]]:
    """Delete finished jobs that are too old for their queue, with their attempts; one portion of a walk over history.

    Dead jobs only after `dead` as well. `kept`: walk over what outlived its partition, instead of the daily partitions.
    """
    params = {"retention": retention, "dead": dead, "portion": portion, "after": _key(after), "kept": kept}
    return Query(_PRUNE, params, _read_step)


def prune_attempts(retention: float, portion: int, after: int | None = None) -> Query[Step[int]]:
    """Delete post-mortems that had been kept with a dead job that is gone now; one portion of a walk."""
    params = {"retention": retention, "portion": portion, "after": _key(after)}
    return Query(_PRUNE_ATTEMPTS, params, _read_step)


def _key(after: int | None) -> int:
    # Not the least bigint: a client-side cursor writes that as -9223372036854775808::bigint, which is out of range.
    return -(2**63) + 1 if after is None else after


def _read_step(rows: list[tuple[Any, ...]]) -> Step[int]:
    return Step(rows[0][0], rows[0][1])
