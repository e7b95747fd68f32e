"""Fire: read what is due, and turn planned ticks into rows and jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pgworkers.job.walk import Step
from pgworkers.postgres.statements import Query, Statement
from pgworkers.schedule.plan import Plan, Timing, jitter_of

_DUE = Statement.beside(__file__, "due")
_FIRE = Statement.beside(__file__, "fire")
_FAIL = Statement.beside(__file__, "fail")
_PRUNE = Statement.beside(__file__, "prune")
ERROR_LIMIT = 500
#: Before every tick.
FIRST_TICK = datetime(1, 1, 2, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Due:
    """A schedule to look at. `now` is the database's."""

    now: datetime
    name: str
    scope: str
    revision: int
    considered: datetime
    timing: Timing
    jitter: float

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.scope


@dataclass(frozen=True, slots=True)
class Firing:
    """What to write for one schedule, planned under `revision`."""

    name: str
    scope: str
    revision: int
    ticks: tuple[datetime, ...]
    jitters: tuple[float, ...] = ()
    considered: datetime | None = None
    next: datetime | None = None
    skipped: int = 0

    @classmethod
    def of(cls, due: Due, made: Plan) -> Firing:
        return cls(
            due.name,
            due.scope,
            due.revision,
            made.ticks,
            tuple(jitter_of(due.name, due.scope, at, due.jitter) for at in made.ticks),
            made.considered,
            made.next,
            made.skipped,
        )


@dataclass(frozen=True, slots=True)
class Ticked:
    """A tick that was inserted. `job` is None when none was made, for `reason`."""

    schedule: str
    scope: str
    at: datetime
    job: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Fired:
    """What came of it. A schedule that is not in `written` was changed, paused, removed or fired by somebody else."""

    written: dict[tuple[str, str], int]  # how many of its ticks were passed by
    ticks: list[Ticked]


def due(limit: int) -> Query[list[Due]]:
    """At most `limit` schedules to look at now."""

    def read(rows: list[tuple[Any, ...]]) -> list[Due]:
        return [
            Due(
                now=row[0],
                name=row[1],
                scope=row[2],
                revision=row[3],
                considered=row[4],
                timing=Timing(
                    cron=row[5],
                    every=row[6],
                    tz=row[7],
                    start=row[8],
                    end=row[9],
                    missed=row[10],
                    window=row[11],
                ),
                jitter=row[12],
            )
            for row in rows
        ]

    return Query(_DUE, {"limit": limit}, read)


def fire(firings: Sequence[Firing], *, manual: bool = False) -> Query[Fired]:
    """Insert the ticks and their jobs, and move the schedules on. `manual`: paused ones too, and the calendar stays."""
    ticks = [
        (one.name, one.scope, at, one.jitters[n] if one.jitters else 0.0)
        for one in firings
        for n, at in enumerate(one.ticks)
    ]
    params = {
        "manual": manual,
        "names": [one.name for one in firings],
        "scopes": [one.scope for one in firings],
        "revisions": [one.revision for one in firings],
        "considered": [one.considered for one in firings],
        "nexts": [one.next for one in firings],
        "skipped": [one.skipped for one in firings],
        "tick_names": [tick[0] for tick in ticks],
        "tick_scopes": [tick[1] for tick in ticks],
        "ats": [tick[2] for tick in ticks],
        "jitters": [tick[3] for tick in ticks],
    }

    def read(rows: list[tuple[Any, ...]]) -> Fired:
        return Fired(
            {(row[0], row[1]): row[2] for row in rows},
            [Ticked(row[0], row[1], row[3], row[4], row[5]) for row in rows if row[3] is not None],
        )

    return Query(_FIRE, params, read)


def fail(due: Due, error: str, again: float) -> Query[bool]:
    """This schedule cannot fire: say why, and look again in `again` seconds. False: it was changed meanwhile."""
    params = {
        "name": due.name,
        "scope": due.scope,
        "revision": due.revision,
        "error": error.replace("\0", "")[:ERROR_LIMIT],
        "again": again,
    }
    return Query(_FAIL, params, bool)


#: A tick: when, its schedule, its scope.
TickKey = tuple[datetime, str, str]


def prune(retention: float, portion: int, after: TickKey | None = None) -> Query[Step[TickKey]]:
    """Delete ticks older than `retention` seconds, but the newest of each schedule; one portion of a walk."""

    def read(rows: list[tuple[Any, ...]]) -> Step[TickKey]:
        gone, at, schedule, scope = rows[0]
        return Step(None if at is None else (at, schedule, scope), gone)

    at, schedule, scope = after or (FIRST_TICK, "", "")
    params = {"retention": retention, "portion": portion, "at": at, "schedule": schedule, "scope": scope}
    return Query(_PRUNE, params, read)
