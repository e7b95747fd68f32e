"""Requeue: an operator lets finished jobs run again, or waiting ones at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgworkers.postgres.statements import Query, Statement

_REQUEUE = Statement.beside(__file__, "requeue")


@dataclass(frozen=True, slots=True)
class Requeued:
    """What became of one id.

    `outcome`: "requeued"; "conflict" (a newer live job holds its unique key); "missing"; or the state that kept it from
    being requeued ("ready", "running", "succeeded").
    """

    id: int
    outcome: str


def requeue(ids: Sequence[int]) -> Query[list[Requeued]]:
    """Requeue these jobs, row by row: one that cannot be holds up no other."""
    return Query(_REQUEUE, {"ids": list(ids)}, lambda rows: [Requeued(row[0], row[1]) for row in rows])
