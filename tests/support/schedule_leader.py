"""A leader without a host: the duty on schedules, on its own connection, as often as a test likes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pgworkers.events import Event, EventBus
from pgworkers.master import scheduler
from pgworkers.master.connection import ReconnectingConnection
from pgworkers.schedule import fire
from pgworkers.schedule.definitions import sync_schedules
from pgworkers.settings import Settings
from pgworkers.specs import ScheduleSpec

#: What is slow because the machine is busy is not lost.
PATIENT = Settings(statement_timeout=60.0)


class Leader:
    """One connection and the events that it emitted."""

    def __init__(self, dsn: str, settings: Settings | None = None) -> None:
        self.told: list[Event] = []
        facts = EventBus()
        facts.subscribe(self.told.append)
        self._facts = facts
        self._runner = asyncio.Runner()
        self.connection = ReconnectingConnection("duty", dsn, settings or PATIENT, facts)

    def sync(self, *specs: ScheduleSpec) -> list[str]:
        return self._runner.run(self.connection.execute(sync_schedules(specs)))

    def fire(self) -> int:
        return self._runner.run(scheduler.fire_due_schedules(self.connection, self._facts))

    def prune(self, retention: float) -> int:
        total, portion = 0, self.execute(fire.prune_ticks(retention, 1000))
        while portion.next_key is not None:
            total += portion.changed_rows
            portion = self.execute(fire.prune_ticks(retention, 1000, portion.next_key))
        return int(total + portion.changed_rows)

    def execute(self, query: Any) -> Any:
        return self._runner.run(self.connection.execute(query))

    def facts(self, kind: type[Any]) -> Sequence[Any]:
        return [fact for fact in self.told if isinstance(fact, kind)]

    def close(self) -> None:
        self._runner.run(self.connection.close())
        self._runner.close()
