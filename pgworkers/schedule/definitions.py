"""Schedules as rows: what deploys declare, what people do to them, and what they read.

`sync_schedules` writes what a deploy declares. It adds and changes; removing a schedule is explicit. People pause, resume,
remove, run now, and add scopes. `schedule_times` is for the gauges of the leader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from pgworkers.errors import UsageError
from pgworkers.events import ScheduleTimes
from pgworkers.postgres.statements import Query, Statement
from pgworkers.schedule.fire import FireResult, Firing, fire_schedules
from pgworkers.schedule.plan import Timing
from pgworkers.secret_arguments import hide_secrets
from pgworkers.specs import ScheduleSpec
from pgworkers.units import format_duration

_DEFINITION_SYNC = Statement.from_file(__file__, "definition_sync")


def sync_schedules(specs: Sequence[ScheduleSpec]) -> Query[list[str]]:
    """Answers the names of schedules that are new or changed."""
    text = msgspec.json.encode([_definition_row(spec) for spec in specs]).decode()
    return Query(_DEFINITION_SYNC, {"specs": text}, lambda rows: [row[0] for row in rows])


def _definition_row(spec: ScheduleSpec) -> dict[str, Any]:
    options = {
        "queue": spec.queue,
        "priority": spec.priority,
        "deadline": spec.deadline,
        "expires": spec.expires,
    }
    return {
        "name": spec.name,
        "scope_kind": spec.scope_kind,
        "task": spec.task,
        "cron": spec.cron,
        "every": spec.every,
        "tz": spec.tz,
        "jitter": spec.jitter,
        "starts_at": spec.start,
        "ends_at": spec.end,
        "missed": spec.missed,
        "missed_window": spec.missed_window,
        "overlap": spec.overlap,
        "reentrant": spec.reentrant,
        "args": spec.args,
        "options": {name: value for name, value in options.items() if value is not None},
        "paused": spec.paused,
        "scopes": spec.scopes,
    }


_DEFINITION_PAUSE = Statement.from_file(__file__, "definition_pause")
_DEFINITION_REMOVE = Statement.from_file(__file__, "definition_remove")
_DEFINITION_ADD_SCOPE = Statement.from_file(__file__, "definition_add_scope")
_DEFINITION_REMOVE_SCOPE = Statement.from_file(__file__, "definition_remove_scope")

ScheduleKey = tuple[str, str]


def pause_schedule(name: str, scope: str | None = None) -> Query[list[ScheduleKey]]:
    """It fires no more. Answers (name, scope) of what was changed; without a scope all of them."""
    return Query(_DEFINITION_PAUSE, {"name": name, "scope": scope, "paused": True}, _read_keys)


def resume_schedule(name: str, scope: str | None = None) -> Query[list[ScheduleKey]]:
    """It fires again, from now on: ticks that passed meanwhile are not made up."""
    return Query(_DEFINITION_PAUSE, {"name": name, "scope": scope, "paused": False}, _read_keys)


def remove_schedule(name: str, scope: str | None = None) -> Query[list[ScheduleKey]]:
    """It is gone; its jobs and ticks stay. A deploy that still declares it makes it again."""
    return Query(_DEFINITION_REMOVE, {"name": name, "scope": scope}, _read_keys)


def run_now(schedule: ScheduleView) -> Query[FireResult]:
    """A tick out of turn, also of a paused one. Overlap counts, the calendar does not move. Nothing written: look again."""
    return fire_schedules(
        [Firing(schedule.name, schedule.scope, schedule.revision, (manual_tick_time(schedule.now),))],
        manual=True,
    )


def manual_tick_time(now: datetime) -> datetime:
    """Ticks of a calendar fall on whole milliseconds; one that does not can never take the place of another."""
    return now if now.microsecond % 1000 else now + timedelta(microseconds=1)


def add_scope(name: str, scope: str, args: dict[str, Any]) -> Query[bool]:
    """True: it is new, or its arguments are."""
    text = msgspec.json.encode(args).decode()
    return Query(
        _DEFINITION_ADD_SCOPE, {"name": name, "scope": scope, "args": text}, lambda rows: bool(rows[0][0])
    )


def remove_scope(name: str, scope: str) -> Query[bool]:
    """False: there was no such scope."""
    return Query(_DEFINITION_REMOVE_SCOPE, {"name": name, "scope": scope}, lambda rows: bool(rows[0][0]))


def _read_keys(rows: list[tuple[Any, ...]]) -> list[ScheduleKey]:
    return [(row[0], row[1]) for row in rows]


_DEFINITION_LIST = Statement.from_file(__file__, "definition_list")
_DEFINITION_NAMES = Statement.from_file(__file__, "definition_names")


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """One schedule, or one scope of it, and its last tick. `now` is the database's."""

    now: datetime
    name: str
    scope: str
    scope_kind: str
    task: str
    cron: str | None
    every: float | None
    tz: str
    jitter: float
    start: datetime | None
    end: datetime | None
    missed: str
    window: float
    overlap: str
    reentrant: bool
    args: dict[str, Any] | None  # None: this role sees no payload
    is_paused: bool
    revision: int
    created_at: datetime
    changed_at: datetime
    planned_until: datetime
    skipped: int
    error: str | None
    last_at: datetime | None
    last_manual: bool | None
    last_job: int | None
    last_outcome: str | None
    last_error_code: str | None
    last_duration: float | None

    @property
    def is_template(self) -> bool:
        """Only what the scopes of this schedule are made from (or a scope of one that is no longer scoped)."""
        return (self.scope != "") != (self.scope_kind != "")

    @property
    def timing(self) -> Timing:
        return Timing(
            cron=self.cron,
            every=self.every,
            tz=self.tz,
            start=self.start,
            end=self.end,
            missed=self.missed,
            missed_window_seconds=self.window,
        )

    @property
    def timing_text(self) -> str:
        """`0 3 * * * Europe/Berlin`, `every 5m`."""
        if self.cron is None:
            return f"every {format_duration(self.every or 0.0)}"
        return self.cron if self.tz == "UTC" else f"{self.cron} {self.tz}"

    @property
    def failure(self) -> str | None:
        """Why it cannot fire: what the leader found, else what is found now."""
        if self.error is not None:
            return self.error
        try:
            self.timing.calendar()
        except UsageError as exc:
            return str(exc)
        return None

    @property
    def state(self) -> str:
        if self.is_template:
            return "template"
        if self.is_paused:
            return "paused"
        if self.failure is not None:
            return "failing"
        return "active" if self.next_at is not None else "ended"

    @property
    def next_at(self) -> datetime | None:
        """The next tick; None while paused, for a template, when it cannot fire or none will come."""
        if self.is_paused or self.is_template:
            return None
        found = self.upcoming(1)
        return found[0] if found else None

    def upcoming(self, count: int) -> list[datetime]:
        """The next ticks by the calendar, paused or not."""
        try:
            return self.timing.next_ticks(max(self.now, self.planned_until), count)
        except UsageError:
            return []


def list_schedules(
    name: str | None = None, scope: str | None = None, limit: int = 1000
) -> Query[list[ScheduleView]]:
    """All of them, or those of one name, or one scope of it."""
    params = {"name": name, "scope": scope, "limit": limit}
    return Query(_DEFINITION_LIST, params, lambda rows: [_read_schedule(row) for row in rows])


def _read_schedule(row: tuple[Any, ...]) -> ScheduleView:
    view = ScheduleView(*row)
    return replace(view, args=hide_secrets(view.args))


def schedule_names() -> Query[list[str]]:
    return Query(_DEFINITION_NAMES, {}, lambda rows: [row[0] for row in rows])


_DEFINITION_TIMES = Statement.from_file(__file__, "definition_times")


def schedule_times(limit: int) -> Query[list[ScheduleTimes]]:
    """The times of at most `limit` schedules, in the order of their names."""
    return Query(_DEFINITION_TIMES, {"limit": limit}, _read_times)


def _read_times(rows: list[tuple[Any, ...]]) -> list[ScheduleTimes]:
    return [ScheduleTimes(*row) for row in rows]
