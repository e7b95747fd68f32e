"""Promote: what waits for its time becomes ready, or, when its time is over, dead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pgworkers.postgres.statements import Query, Statement

_PROMOTE = Statement.beside(__file__, "promote")
_EXPIRE = Statement.beside(__file__, "expire")


@dataclass(frozen=True, slots=True)
class Promoted:
    """How many became ready, and in how many seconds the next one is due (None: nothing is scheduled)."""

    count: int
    next_in: float | None


def promote(limit: int) -> Query[Promoted]:
    """Make at most `limit` due jobs ready, the earliest first."""

    def read(rows: list[tuple[Any, ...]]) -> Promoted:
        count, next_in = rows[0][:2]
        return Promoted(count, 0.0 if count >= limit else next_in)

    return Query(_PROMOTE, {"limit": limit}, read)


def expire(limit: int) -> Query[int]:
    """End at most `limit` jobs that were not started in time. Answers how many."""
    return Query(_EXPIRE, {"limit": limit}, lambda rows: int(rows[0][0]))
