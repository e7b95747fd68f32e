"""Depth: how much waits in each queue, read by the leader for everybody's gauges."""

from __future__ import annotations

from typing import Any

from pgworkers.postgres.statements import Query, Statement
from pgworkers.sightings import QueueDepth

_DEPTH = Statement.beside(__file__, "depth")

#: No count goes beyond this: the gauge of a backlog of ten million says "at least so many", and costs no more.
MOST = 100_000
#: How many jobs and priorities are looked at for the oldest.
LOOK = 100


def depth(most: int = MOST) -> Query[list[QueueDepth]]:
    """Every queue that is declared or has ready jobs."""
    return Query(_DEPTH, {"most": most, "look": LOOK}, _read)


def _read(rows: list[tuple[Any, ...]]) -> list[QueueDepth]:
    return [QueueDepth(*row) for row in rows]
