"""What people do to schedules: pause, resume, remove, run now, give them scopes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from pgworkers.postgres.statements import Query, Statement
from pgworkers.schedule.fire import Fired, Firing, fire
from pgworkers.schedule.show import ScheduleView

_PAUSE = Statement.beside(__file__, "pause")
_REMOVE = Statement.beside(__file__, "remove")
_ADD_SCOPE = Statement.beside(__file__, "add_scope")
_REMOVE_SCOPE = Statement.beside(__file__, "remove_scope")

Key = tuple[str, str]


def pause(name: str, scope: str | None = None) -> Query[list[Key]]:
    """It fires no more. Answers (name, scope) of what was changed; without a scope all of them."""
    return Query(_PAUSE, {"name": name, "scope": scope, "paused": True}, _keys)


def resume(name: str, scope: str | None = None) -> Query[list[Key]]:
    """It fires again, from now on: ticks that passed meanwhile are not made up."""
    return Query(_PAUSE, {"name": name, "scope": scope, "paused": False}, _keys)


def remove(name: str, scope: str | None = None) -> Query[list[Key]]:
    """It is gone; its jobs and ticks stay. A deploy that still declares it makes it again."""
    return Query(_REMOVE, {"name": name, "scope": scope}, _keys)


def run_now(schedule: ScheduleView) -> Query[Fired]:
    """A tick out of turn, also of a paused one. Overlap counts, the calendar does not move. Nothing written: look again."""
    return fire(
        [Firing(schedule.name, schedule.scope, schedule.revision, (off_the_calendar(schedule.now),))],
        manual=True,
    )


def off_the_calendar(now: datetime) -> datetime:
    """Ticks of a calendar fall on whole milliseconds; one that does not can never take the place of another."""
    return now if now.microsecond % 1000 else now + timedelta(microseconds=1)


def add_scope(name: str, scope: str, args: dict[str, Any]) -> Query[bool]:
    """True: it is new, or its arguments are."""
    text = msgspec.json.encode(args).decode()
    return Query(_ADD_SCOPE, {"name": name, "scope": scope, "args": text}, lambda rows: bool(rows[0][0]))


def remove_scope(name: str, scope: str) -> Query[bool]:
    """False: there was no such scope."""
    return Query(_REMOVE_SCOPE, {"name": name, "scope": scope}, lambda rows: bool(rows[0][0]))


def _keys(rows: list[tuple[Any, ...]]) -> list[Key]:
    return [(row[0], row[1]) for row in rows]
