"""Hosts: the owners of leases. A row stands for one life of one master and is never reused."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pgworkers.job import clean
from pgworkers.job.walk import Step
from pgworkers.postgres.migrate import known
from pgworkers.postgres.statements import Query, Statement

_REGISTER = Statement.beside(__file__, "host_register")
_REMOVE = Statement.beside(__file__, "host_remove")
_SWEEP = Statement.beside(__file__, "host_sweep")
#: No host has this id.
NO_HOST = "00000000-0000-0000-0000-000000000000"


def register(
    host: str,
    name: str,
    pid: int,
    label: str,
    app: str,
    version: str,
    queues: Sequence[str],
    tasks: Sequence[str],
    lease_seconds: float,
    metrics: str = "",
) -> Query[None]:
    """Make this host known; its lease begins now."""
    params = {
        "host": host,
        "name": clean.line(name),
        "pid": pid,
        "label": clean.line(label),
        "app": clean.line(app),
        "version": clean.line(version),
        "queues": list(queues),
        "tasks": list(tasks),
        "lease": lease_seconds,
        "metrics": metrics,
        "newest_migration": known()[-1].version,
    }
    return Query(_REGISTER, params, lambda rows: None)


def remove(host: str) -> Query[bool]:
    """Forget this host. Whatever it still runs is lost at once."""
    return Query(_REMOVE, {"host": host}, bool)


def sweep(portion: int, after: str | None = None, *, clock: datetime | None = None) -> Query[Step[str]]:
    """Forget hosts that have been gone for ten leases and own nothing; one portion of a walk.

    `clock`: the database's time as the host reckons it; the earlier of the two counts.
    """
    params = {"portion": portion, "after": after or NO_HOST, "clock": clock}
    return Query(_SWEEP, params, lambda rows: Step(rows[0][0], rows[0][1]))
