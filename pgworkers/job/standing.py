"""Standing: what a job's state depends on besides its own row, for people who ask why it does not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgworkers.postgres.statements import Query, Statement

_STANDING = Statement.beside(__file__, "standing")


@dataclass(frozen=True, slots=True)
class Standing:
    """The surroundings of one job. `host`, `worker`, `pid`: who holds it, as far as its host has told."""

    known: bool = True  # some deploy has declared its task
    paused: bool = False
    throttled: float | None = None  # seconds until its queue is cool
    workers: int | None = None  # what an operator said of the queue; 0: nothing runs
    hosts: int = 1  # that are alive
    serving: int = 1  # of these, the ones that serve its queue
    able: int = 1  # of these, the ones whose app has its task
    room_of_task: int | None = None  # slots left under the limit of its task; None: no limit
    room_of_key: int | None = None
    parents: int = 0  # jobs it waits for,
    named: Sequence[str] = ()  # the first of them: "17 running render"
    batch: int | None = None  # that it comes after
    held: bool = False  # it has no time of its own
    host: str | None = None
    worker: str | None = None
    pid: int | None = None
    suspended: bool = False  # its process stands still by an operator's wish
    failing: str | None = None  # a host on which workers of its queue cannot start,
    problem: str | None = None  # why,
    traceback: str | None = None  # and where in the app


def standing(job_id: int) -> Query[Standing]:
    return Query(_STANDING, {"id": job_id}, lambda rows: Standing(*rows[0]) if rows else Standing())
