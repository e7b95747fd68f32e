"""Idempotency keys: `pgworkers.enqueue()` writes them and finds the first job by them; here the old ones are deleted."""

from __future__ import annotations

from pgworkers.postgres.statements import Query, Statement

_PRUNE = Statement.beside(__file__, "idempotency_prune")


def prune(limit: int) -> Query[int]:
    """Delete keys whose window is over, at most `limit` of them. Returns how many."""
    return Query(_PRUNE, {"limit": limit}, len)
