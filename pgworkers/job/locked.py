"""Locked: which jobs somebody else holds in an open transaction, asked without waiting for them."""

from __future__ import annotations

from collections.abc import Iterable

from pgworkers.postgres.statements import Query, Statement

_LOCKED = Statement.beside(__file__, "locked")


def locked(ids: Iterable[int]) -> Query[set[int]]:
    """Those of these jobs whose rows cannot be written just now."""
    return Query(_LOCKED, {"ids": sorted(set(ids))}, lambda rows: {row[0] for row in rows})
