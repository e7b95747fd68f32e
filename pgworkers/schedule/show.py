"""What people read about schedules."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgworkers.clock import show_seconds
from pgworkers.errors import UsageError
from pgworkers.postgres.statements import Query, Statement
from pgworkers.schedule.plan import Timing

_SHOW = Statement.beside(__file__, "show")
_NAMES = Statement.beside(__file__, "names")


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
    paused: bool
    revision: int
    created_at: datetime
    changed_at: datetime
    considered_at: datetime
    skipped: int
    error: str | None
    last_at: datetime | None
    last_manual: bool | None
    last_job: int | None
    last_outcome: str | None
    last_error_code: str | None
    last_duration: float | None

    @property
    def template(self) -> bool:
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
            window=self.window,
        )

    @property
    def when(self) -> str:
        """`0 3 * * * Europe/Berlin`, `every 5m`."""
        if self.cron is None:
            return f"every {show_seconds(self.every or 0.0)}"
        return self.cron if self.tz == "UTC" else f"{self.cron} {self.tz}"

    @property
    def trouble(self) -> str | None:
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
        if self.template:
            return "template"
        if self.paused:
            return "paused"
        if self.trouble is not None:
            return "failing"
        return "active" if self.next_at is not None else "ended"

    @property
    def next_at(self) -> datetime | None:
        """The next tick; None while paused, for a template, when it cannot fire or none will come."""
        if self.paused or self.template:
            return None
        found = self.upcoming(1)
        return found[0] if found else None

    def upcoming(self, count: int) -> list[datetime]:
        """The next ticks by the calendar, paused or not."""
        try:
            return self.timing.next_ones(max(self.now, self.considered_at), count)
        except UsageError:
            return []


def schedules(
    name: str | None = None, scope: str | None = None, limit: int = 1000
) -> Query[list[ScheduleView]]:
    """All of them, or those of one name, or one scope of it."""
    params = {"name": name, "scope": scope, "limit": limit}
    return Query(_SHOW, params, lambda rows: [ScheduleView(*row) for row in rows])


def names() -> Query[list[str]]:
    return Query(_NAMES, {}, lambda rows: [row[0] for row in rows])
