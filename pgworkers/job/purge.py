"""Purge: an operator forgets dead jobs for good."""

from __future__ import annotations

from collections.abc import Sequence

from pgworkers.postgres.statements import Query, Statement

_PURGE = Statement.beside(__file__, "purge")


def purge(ids: Sequence[int]) -> Query[list[int]]:
    """Delete those of these jobs that are dead; answers which."""
    return Query(_PURGE, {"ids": list(ids)}, lambda rows: [row[0] for row in rows])
