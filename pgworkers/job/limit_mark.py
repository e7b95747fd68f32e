"""Marks of limits: `pgworkers.mark_limits()` makes them in a claim; here the old ones are deleted."""

from __future__ import annotations

from pgworkers.postgres.statements import Query, Statement

_PRUNE = Statement.beside(__file__, "limit_mark_prune")

#: Age at which a mark is deleted.
MARK_AGE_SECONDS = 86400.0


def prune(older: float, limit: int) -> Query[int]:
    """Delete marks made more than `older` seconds ago, at most `limit` of them. Returns how many."""
    return Query(_PRUNE, {"older": older, "limit": limit}, len)
