"""Archive: history and attempts lie in daily partitions; keeping them ahead of time and dropping the old ones.

Dropping is one partition at a time: each takes a short exclusive lock, and a failure costs one day and no other.
"""

from __future__ import annotations

from pgworkers.postgres.statements import Query, Statement

_MAKE = Statement.beside(__file__, "archive_make")
_OLD = Statement.beside(__file__, "archive_old")
_DROP = Statement.beside(__file__, "archive_drop")
_PRUNE = Statement.beside(__file__, "archive_prune")
_PRUNE_ATTEMPTS = Statement.beside(__file__, "archive_prune_attempts")


def make_partitions(ahead: int) -> Query[int]:
    """Make the partitions of today and of `ahead` days to come. Answers how many were missing."""
    return Query(_MAKE, {"ahead": ahead}, lambda rows: int(rows[0][0]))


def old_partitions(retention: float) -> Query[list[str]]:
    """The names of partitions that ended more than `retention` seconds ago, the oldest first.

    A queue that keeps its jobs longer keeps every partition as long; what others had in it is deleted by `prune`.
    """
    return Query(_OLD, {"retention": retention}, lambda rows: [row[0] for row in rows])


def drop(name: str, dead: float = 0.0) -> Query[bool]:
    """Drop one partition that `old_partitions` named, all but jobs that died less than `dead` seconds ago.

    False: another host was faster, or a reader's transaction holds it, and the next run of the duty tries again.
    """
    return Query(_DROP, {"name": name, "dead": dead}, lambda rows: bool(rows[0][0]))


def prune(retention: float, dead: float, limit: int) -> Query[int]:
    """Delete at most `limit` finished jobs that are too old for their queue, with their attempts. Answers how many.

    Dead jobs only after `dead` as well.
    """
    return Query(_PRUNE, {"retention": retention, "dead": dead, "limit": limit}, len)


def prune_attempts(retention: float, limit: int) -> Query[int]:
    """Delete at most `limit` post-mortems that had been kept with a dead job that is gone now. How many."""
    return Query(_PRUNE_ATTEMPTS, {"retention": retention, "limit": limit}, len)
