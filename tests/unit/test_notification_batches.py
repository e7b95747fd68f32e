"""Notifications that came together: all are passed on before they are counted, and one claim is for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.idle_claimer import CLAIM_STATEMENTS, EmptyDatabase, claimer

from pgworkers.events import Event, EventBus, NotificationReceived
from pgworkers.job.notification_payloads import HostHint, JobsReady
from pgworkers.master.notifications import NotificationListener
from pgworkers.postgres.statements import Query
from pgworkers.settings import Settings

FOREVER = 3600.0


class Session:
    """What libpq has of a session that listens: notices are there when its socket was read."""

    def __init__(self, *said: str) -> None:
        self._coming = [SimpleNamespace(extra=text.encode()) for text in said]
        self._here: list[SimpleNamespace] = []

    def consume_input(self) -> None:
        self._here, self._coming = self._here + self._coming, []

    def notifies(self) -> SimpleNamespace | None:
        return self._here.pop(0) if self._here else None


def listener(events: EventBus, on_hint: Callable[[HostHint], None]) -> NotificationListener:
    found = NotificationListener(host_id="host", schema="pgworkers", events=events)
    found.on_hint = on_hint
    return found


@pytest.mark.parametrize(
    "said", [(), ("ready:a",), ("ready:a", "what is this", "cancel:²", "ready:b", "ready:a")]
)
def test_notifications_that_came_together_are_all_passed_on_before_they_are_counted(
    said: tuple[str, ...],
) -> None:
    happened: list[str] = []

    def counted(event: Event) -> None:
        assert isinstance(event, NotificationReceived)
        happened.append("counted")

    events = EventBus()
    events.subscribe(counted)
    host = listener(events, lambda hint: happened.append(str(hint)))
    host.read_pending(cast("Any", Session(*said)))
    hints = [str(JobsReady(text.removeprefix("ready:"))) for text in said if text.startswith("ready:")]
    assert happened == [*hints, *["counted"] * len(said)]


def test_one_claim_covers_all_queues_notified_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broken twin sends it at the first notice: what came with it waits for another claim."""
    monkeypatch.setattr(
        "pgworkers.master.claimer.monotonic", lambda: 1.0
    )  # nothing is due because of the time
    monkeypatch.setattr("pgworkers.master.notifications.RECHECK_DELAYS_SECONDS", ())
    happened: list[Any] = []

    class RecordingDatabase(EmptyDatabase):
        async def execute(self, query: Query[Any], **how: Any) -> Any:
            if query.statement.name in CLAIM_STATEMENTS:
                happened.append(sorted(query.params["queues"]))
            return await super().execute(query, **how)

    async def story() -> None:
        events = EventBus()
        claims = claimer(
            RecordingDatabase(), Settings(poll_interval=FOREVER, ageing_delay=0), events, queues="abc"
        )
        running = asyncio.ensure_future(claims.run())
        claims.on_reconnect()
        while not happened:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        happened.clear()  # all queues are dry
        events.subscribe(lambda event: happened.append(event.payload), NotificationReceived)
        host = listener(events, lambda hint: claims.on_notification(cast("JobsReady", hint).queue))
        host.read_pending(cast("Any", Session("ready:a", "ready:c")))
        for _ in range(20):
            await asyncio.sleep(0)
        assert happened == ["ready:a", "ready:c", ["a", "c"]], "one was enough"
        assert not running.done()
        running.cancel()

    asyncio.run(asyncio.wait_for(story(), 60))
