"""When schedules fired and will: read by the leader for everybody's gauges."""

from __future__ import annotations

from typing import Any

from pgworkers.postgres.statements import Query, Statement
from pgworkers.sightings import ScheduleTimes

_TIMES = Statement.beside(__file__, "times")


def times(limit: int) -> Query[list[ScheduleTimes]]:
    """At most so many schedules, in the order of their names."""
    return Query(_TIMES, {"limit": limit}, _read)


def _read(rows: list[tuple[Any, ...]]) -> list[ScheduleTimes]:
    return [ScheduleTimes(*row) for row in rows]
