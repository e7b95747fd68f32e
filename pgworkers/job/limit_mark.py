"""Marks of limits and lanes: claims make them (`mark_limits()`, `mark_lanes()`). Here the old ones are deleted."""

from __future__ import annotations

from pgworkers.postgres.statements import Query, Statement

_PRUNE = Statement.beside(__file__, "limit_mark_prune")
_PRUNE_LANES = Statement.beside(__file__, "lane_mark_prune")

#: Age at which a mark is deleted.
MARK_AGE_SECONDS = 86400.0


def prune(older: float, limit: int) -> Query[int]:
    """Delete marks of limits made more than `older` seconds ago, at most `limit` of them. Returns how many."""
    return Query(_PRUNE, {"older": older, "limit": limit}, len)


def prune_lanes(older: float, limit: int) -> Query[int]:
    """Delete marks of lanes that were due more than `older` seconds ago, at most `limit` of them. Returns how many."""
    return Query(_PRUNE_LANES, {"older": older, "limit": limit}, len)
