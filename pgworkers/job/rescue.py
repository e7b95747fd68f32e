"""Rescue: the jobs of a host that stopped renewing run again elsewhere.

A worker that dies on a living host is no rescue: its own master finishes the attempt with the true cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pgworkers.job.state import State
from pgworkers.postgres.statements import Query, Statement

_RESCUE = Statement.beside(__file__, "rescue")


@dataclass(frozen=True, slots=True)
class Rescued:
    """A job that was taken from its lost host, and what became of it: scheduled, dead or cancelled."""

    id: int
    lease: int
    queue: str
    task: str
    state: State


def rescue(host: str, limit: int) -> Query[list[Rescued]]:
    """Rescue at most `limit` jobs, none of `host` itself. Only a host that has renewed without a gap may ask."""
    return Query(_RESCUE, {"host": host, "limit": limit}, _read)


def _read(rows: list[tuple[Any, ...]]) -> list[Rescued]:
    return [Rescued(row[0], row[1], row[2], row[3], State(row[4])) for row in rows]
