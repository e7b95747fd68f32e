"""Renew: one UPDATE of one row per host keeps all its leases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pgworkers.job import clean
from pgworkers.postgres.statements import Query, Statement

_RENEW = Statement.beside(__file__, "renew")


@dataclass(frozen=True, slots=True)
class Deadline:
    """A deadline that this host does not know. `epoch`: the database's time of it; `remaining`: seconds until then."""

    job: int
    lease: int
    epoch: float | None
    remaining: float | None


@dataclass(frozen=True, slots=True)
class Renewed:
    """What a host learns by renewing. `known` is False when its row is gone: it must register again.

    `alone`: no other host lives. `sharing`: how many other living hosts serve a queue of this one. `at`: the database's
    time. `longest`: of all hosts' leases, in seconds.
    """

    known: bool
    alone: bool
    sharing: int
    at: datetime
    longest: float
    cancels: list[tuple[int, int]]
    lost: list[tuple[int, int]]
    deadlines: list[Deadline] = field(default_factory=list)
    rescued: frozenset[tuple[int, int]] = frozenset()  #: those of `lost` that a leader took back


def renew(
    host: str,
    held: Sequence[tuple[int, int]],
    state: str,
    workers_json: str,
    load: float | None = None,
    cores: int | None = None,
    problems_json: str = "[]",
    *,
    deadlines: Sequence[float | None] = (),
) -> Query[Renewed]:
    """Renew the row of `host`, which holds the leases `held`. `deadlines`: of each, as it was last read; None: none."""
    params = {
        "host": host,
        "ids": [pair[0] for pair in held],
        "leases": [pair[1] for pair in held],
        "deadlines": list(deadlines),
        "state": clean.line(state),
        "workers": clean.json_text(workers_json) or "[]",
        "load": load,
        "cores": cores,
        "problems": clean.json_text(problems_json) or "[]",
    }
    return Query(_RENEW, params, _read)


def _read(rows: list[tuple[Any, ...]]) -> Renewed:
    ((known, alone, at, longest, sharing),) = [(*row[2:6], row[9]) for row in rows if row[0] is None]
    jobs = [row for row in rows if row[0] is not None]
    cancels = [(job_id, lease) for job_id, lease, fact, *_ in jobs if fact]
    lost = [(job_id, lease) for job_id, lease, fact, *_ in jobs if fact is None]
    deadlines = [Deadline(row[0], row[1], row[6], row[7]) for row in jobs if row[2] is False]
    rescued = frozenset((row[0], row[1]) for row in jobs if row[8])
    return Renewed(known, alone, sharing, at, longest or 0.0, cancels, lost, deadlines, rescued)
