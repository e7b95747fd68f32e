"""Renew: one UPDATE of one row per host keeps all its leases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgworkers.job import clean
from pgworkers.postgres.statements import Query, Statement

_RENEW = Statement.beside(__file__, "renew")


@dataclass(frozen=True, slots=True)
class Renewed:
    """What a host learns by renewing. `known` is False when its row is gone: it must register again.

    `alone`: no other host lives. `at`: the database's time. `longest`: of all hosts' leases, in seconds.
    """

    known: bool
    alone: bool
    at: datetime
    longest: float
    cancels: list[tuple[int, int]]
    lost: list[tuple[int, int]]


def renew(
    host: str,
    held: Sequence[tuple[int, int]],
    state: str,
    workers_json: str,
    load: float | None = None,
    cores: int | None = None,
) -> Query[Renewed]:
    """Renew the row of `host`, which holds the leases `held`."""
    params = {
        "host": host,
        "ids": [pair[0] for pair in held],
        "leases": [pair[1] for pair in held],
        "state": clean.line(state),
        "workers": clean.json_text(workers_json) or "[]",
        "load": load,
        "cores": cores,
    }
    return Query(_RENEW, params, _read)


def _read(rows: list[tuple[Any, ...]]) -> Renewed:
    ((known, alone, at, longest),) = [row[2:] for row in rows if row[0] is None]
    cancels = [(job_id, lease) for job_id, lease, fact, *_ in rows if job_id is not None and fact]
    lost = [(job_id, lease) for job_id, lease, fact, *_ in rows if job_id is not None and fact is None]
    return Renewed(known, alone, at, longest or 0.0, cancels, lost)
