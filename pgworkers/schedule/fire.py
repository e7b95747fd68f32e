"""Read which schedules are due, and turn planned ticks into rows and jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pgworkers.job.maintenance import Portion
from pgworkers.postgres.statements import Query, Statement
from pgworkers.schedule.plan import TickPlan, Timing, tick_jitter

_FIRE_DUE = Statement.from_file(__file__, "fire_due")
_FIRE = Statement.from_file(__file__, "fire")
_FIRE_FAILED = Statement.from_file(__file__, "fire_failed")
_TICK_PRUNE = Statement.from_file(__file__, "tick_prune")
MAX_SCHEDULE_ERROR_CHARACTERS = 500
#: Before every tick.
BEFORE_ALL_TICKS = datetime(1, 1, 2, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """A schedule to look at. `now` is the database's."""

    now: datetime
    name: str
    scope: str
    revision: int
    planned_until: datetime
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
    planned_until: datetime | None = None
    next_tick: datetime | None = None
    skipped: int = 0

    @classmethod
    def of(cls, due: DueSchedule, made: TickPlan) -> Firing:
        return cls(
            name=due.name,
            scope=due.scope,
            revision=due.revision,
            ticks=made.ticks,
            jitters=tuple(tick_jitter(due.name, due.scope, at, due.jitter) for at in made.ticks),
            planned_until=made.planned_until,
            next_tick=made.next_tick,
            skipped=made.skipped_ticks,
        )


@dataclass(frozen=True, slots=True)
class InsertedTick:
    """A tick that was inserted. `job_id` is None when none was made, for `reason`."""

    schedule: str
    scope: str
    at: datetime
    job_id: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class FireResult:
    """What firing did. A schedule that is not in `skipped_by_schedule` was changed, paused, removed or fired elsewhere."""

    skipped_by_schedule: dict[tuple[str, str], int]  # how many of its ticks were passed by
    ticks: list[InsertedTick]


def due_schedules(limit: int) -> Query[list[DueSchedule]]:
    """At most `limit` schedules to look at now."""

    def read(rows: list[tuple[Any, ...]]) -> list[DueSchedule]:
        return [
            DueSchedule(
                now=row[0],
                name=row[1],
                scope=row[2],
                revision=row[3],
                planned_until=row[4],
                timing=Timing(
                    cron=row[5],
                    every=row[6],
                    tz=row[7],
                    start=row[8],
                    end=row[9],
                    missed=row[10],
                    missed_window_seconds=row[11],
                ),
                jitter=row[12],
            )
            for row in rows
        ]

    return Query(_FIRE_DUE, {"limit": limit}, read)


def fire_schedules(firings: Sequence[Firing], *, manual: bool = False) -> Query[FireResult]:
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
        "planned_until": [one.planned_until for one in firings],
        "nexts": [one.next_tick for one in firings],
        "skipped": [one.skipped for one in firings],
        "tick_names": [tick[0] for tick in ticks],
        "tick_scopes": [tick[1] for tick in ticks],
        "ats": [tick[2] for tick in ticks],
        "jitters": [tick[3] for tick in ticks],
    }

    def read(rows: list[tuple[Any, ...]]) -> FireResult:
        return FireResult(
            {(row[0], row[1]): row[2] for row in rows},
            [InsertedTick(row[0], row[1], row[3], row[4], row[5]) for row in rows if row[3] is not None],
        )

    return Query(_FIRE, params, read)


def record_failure(due: DueSchedule, error: str, retry_in: float) -> Query[bool]:
    """Record why a schedule cannot fire. It is planned again in `retry_in` seconds. False: it was changed meanwhile."""
    params = {
        "name": due.name,
        "scope": due.scope,
        "revision": due.revision,
        "error": error.replace("\0", "")[:MAX_SCHEDULE_ERROR_CHARACTERS],
        "retry_in": retry_in,
    }
    return Query(_FIRE_FAILED, params, bool)


#: A tick: when, its schedule, its scope.
TickKey = tuple[datetime, str, str]


def prune_ticks(retention: float, portion: int, after: TickKey | None = None) -> Query[Portion[TickKey]]:
    """Delete ticks older than `retention` seconds, but the newest of each schedule; one portion of a walk."""

    def read(rows: list[tuple[Any, ...]]) -> Portion[TickKey]:
        gone, at, schedule, scope = rows[0]
        return Portion(None if at is None else (at, schedule, scope), gone)

    at, schedule, scope = after or (BEFORE_ALL_TICKS, "", "")
    params = {"retention": retention, "portion": portion, "at": at, "schedule": schedule, "scope": scope}
    return Query(_TICK_PRUNE, params, read)
