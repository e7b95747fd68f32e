"""Renew: one UPDATE of one row per host keeps all its leases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pgworkers.job import clean
from pgworkers.job.claim import Fence
from pgworkers.job.postmortem import fences
from pgworkers.postgres.statements import Query, Statement

_RENEW = Statement.beside(__file__, "renew")


@dataclass(frozen=True, slots=True)
class Deadline:
    """A deadline that this host does not know. `epoch`: the database's time of it; `remaining`: seconds until then."""

    fence: Fence
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
    cancels: list[Fence]
    lost: list[Fence]
    deadlines: list[Deadline] = field(default_factory=list)
    rescued: frozenset[Fence] = frozenset()  #: those of `lost` that a leader took back


def renew(
    host: str,
    held: Sequence[Fence],
    state: str,
    workers_json: str,
    load: float | None = None,
    cores: int | None = None,
    problems_json: str = "[]",
    *,
    deadlines: Sequence[float | None] = (),
) -> Query[Renewed]:
    """Renew the row of `host`, which holds the leases `held`. `deadlines`: of each, as it was last read; None: none."""
    params = fences(held) | {
        "host": host,
        "deadlines": list(deadlines),
        "state": clean.line(state),
        "workers": clean.json_text(workers_json) or "[]",
        "load": load,
        "cores": cores,
        "problems": clean.json_text(problems_json) or "[]",
    }
    return Query(_RENEW, params, lambda rows: _read(held, rows))


def _read(held: Sequence[Fence], rows: list[tuple[Any, ...]]) -> Renewed:
    ((known, alone, at, longest, sharing),) = [(*row[1:5], row[8]) for row in rows if row[0] is None]
    jobs = [(held[row[0] - 1], *row[1:]) for row in rows if row[0] is not None]
    cancels = [fence for fence, fact, *_ in jobs if fact]
    lost = [fence for fence, fact, *_ in jobs if fact is None]
    deadlines = [Deadline(row[0], row[5], row[6]) for row in jobs if row[1] is False]
    rescued = frozenset(row[0] for row in jobs if row[7])
    return Renewed(known, alone, sharing, at, longest or 0.0, cancels, lost, deadlines, rescued)
