"""Strangers: ready jobs of tasks that no host of their queue has. Nobody takes them, and nobody else would say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgworkers.postgres.statements import Query, Statement

_STRANGERS = Statement.beside(__file__, "strangers")
#: How many ready jobs of a queue are looked at.
_LOOK = 1000


@dataclass(frozen=True, slots=True)
class Stranger:
    """A task that no living host of the queue has, or no deploy ever had."""

    queue: str
    task: str
    jobs: int
    oldest: float


#: How many queues one statement looks at.
QUEUES_PER_LOOK = 20


def strangers(queues: Sequence[str]) -> Query[list[Stranger]]:
    params = {"queues": list(queues), "look": _LOOK}
    return Query(_STRANGERS, params, lambda rows: [Stranger(*row) for row in rows])
