"""Rescue: the jobs of a host that stopped renewing run again elsewhere.

A worker that dies on a living host is no rescue: its own master finishes the attempt with the true cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgworkers.job import clean
from pgworkers.job.postmortem import LINE_LIMIT
from pgworkers.job.state import MAX_LOSSES, State
from pgworkers.postgres.statements import Query, Statement

_RESCUE = Statement.beside(__file__, "rescue")
_LOST = Statement.beside(__file__, "rescue_lost")


@dataclass(frozen=True, slots=True)
class Rescued:
    """A job that was taken from its lost host, and what became of it: scheduled, dead or cancelled."""

    id: int
    lease: int
    queue: str
    task: str
    attempt: int
    state: State


def rescue(
    host: str,
    limit: int,
    *,
    clock: datetime | None = None,
    only: int | None = None,
    refused: str | None = None,
) -> Query[list[Rescued]]:
    """Rescue at most `limit` jobs, none of `host` itself. Only a host that has renewed without a gap may ask.

    `clock`: the database's time as the host reckons it; who is lost is judged by the earlier of the two.
    `only`: this job and no other. `refused`: why the database will not schedule it again, so that it ends instead.
    """
    cause = None if refused is None else clean.line(refused, LINE_LIMIT)
    params = {
        "host": host,
        "limit": limit,
        "clock": clock,
        "only": only,
        "refused": cause,
        "max_losses": MAX_LOSSES,
    }
    return Query(_RESCUE, params, _read)


def lost(host: str, limit: int, *, clock: datetime | None = None) -> Query[list[int]]:
    """Which jobs a rescue would take."""
    return Query(_LOST, {"host": host, "limit": limit, "clock": clock}, lambda rows: [row[0] for row in rows])


def _read(rows: list[tuple[Any, ...]]) -> list[Rescued]:
    return [Rescued(row[0], row[1], row[2], row[3], row[4], State(row[5])) for row in rows]
