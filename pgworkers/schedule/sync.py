"""Sync: what a deploy declares becomes rows. Additive; removal is explicit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pgworkers.postgres.statements import Query, Statement
from pgworkers.specs import ScheduleSpec

_SYNC = Statement.beside(__file__, "sync")


def sync(specs: Sequence[ScheduleSpec]) -> Query[list[str]]:
    """Answers the names of schedules that are new or changed."""
    text = msgspec.json.encode([_row(spec) for spec in specs]).decode()
    return Query(_SYNC, {"specs": text}, lambda rows: [row[0] for row in rows])


def _row(spec: ScheduleSpec) -> dict[str, Any]:
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
        "missed_window": spec.window,
        "overlap": spec.overlap,
        "reentrant": spec.reentrant,
        "args": spec.args,
        "options": {name: value for name, value in options.items() if value is not None},
        "paused": spec.paused,
        "scopes": spec.scopes,
    }
