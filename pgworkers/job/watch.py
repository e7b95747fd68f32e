"""Watch: all hosts, their workers and what their jobs say, for somebody who looks again and again (`pgworkers top`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pgworkers.job.reading import value_of
from pgworkers.postgres.statements import Query, Statement

_WATCH = Statement.beside(__file__, "watch")


@dataclass(frozen=True, slots=True)
class SeenHost:
    """One life of a master. `age`: seconds since it wrote its view; `lost`: longer than its lease."""

    id: str
    name: str
    pid: int
    label: str
    app: str
    version: str
    state: str
    leader: bool
    queues: list[str]
    load: float | None
    cores: int | None
    age: float
    lost: bool
    problems: dict[str, tuple[str, str]] = field(default_factory=dict)  # by queue: error and traceback


@dataclass(frozen=True, slots=True)
class SeenWorker:
    """A worker as its host wrote it `SeenHost.age` ago. Times in seconds, sizes in bytes, `cpu` in percent of a core."""

    host: str
    queue: str
    slot: int
    pid: int
    state: str
    job: int | None
    task: str | None
    since: float | None
    jobs: int | None
    attempt: int | None
    max_attempts: int | None
    running: float | None
    left: float | None
    cpu: float | None
    rss: int | None
    stalled: bool | None
    wish: str | None
    version: str | None
    progress: Any


def watch(limit: int, *, tell: bool) -> Query[tuple[list[SeenHost], list[SeenWorker]]]:
    """`tell`: say that somebody looks. More than `limit` workers are cut, busy ones last."""
    return Query(_WATCH, {"limit": limit, "watch": tell}, _read)


def _read(rows: list[tuple[Any, ...]]) -> tuple[list[SeenHost], list[SeenWorker]]:
    hosts: dict[str, SeenHost] = {}
    workers: list[SeenWorker] = []
    for row in rows:
        if row[0] not in hosts:
            hosts[row[0]] = SeenHost(*(*row[:13], _problems(value_of(row[13]))))
        if row[14] is not None:
            workers.append(SeenWorker(*(row[0], *row[14:31], value_of(row[31]))))
    return list(hosts.values()), workers


def _problems(value: Any) -> dict[str, tuple[str, str]]:
    """Whatever is in the column: only a host writes it, but a person may."""
    found = [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
    return {str(one.get("queue")): (str(one.get("error")), str(one.get("traceback"))) for one in found}
