"""Notifications that arrive with the answer to a renewal are handled before the host waits for the next."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pgworkers.clock import monotonic
from pgworkers.events import EventBus
from pgworkers.job.notification_payloads import JobsReady, Reconnected
from pgworkers.master.lease_keeper import LeaseKeeper
from pgworkers.master.notifications import NotificationListener


class OpenConnection:
    """The listening connection, already open."""

    def __init__(self, conn: psycopg.AsyncConnection[Any]) -> None:
        self._conn = conn

    async def ensure_connected(self) -> psycopg.AsyncConnection[Any]:
        return self._conn


def test_a_notification_that_arrived_with_an_answer_is_handled_before_the_wait(
    dsn: str, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[Any] = []

    async def waits(*_: object) -> None:
        happened.append("waits")
        raise asyncio.CancelledError

    async def life() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            listener = NotificationListener(host_id="host", schema="pgworkers", events=EventBus())
            listener.on_hint = happened.append
            host = object.__new__(LeaseKeeper)
            host._connection = OpenConnection(conn)  # type: ignore[assignment]
            host._listener, host._due_at = listener, 0.0
            host._is_stopping, host._stopped = False, asyncio.Event()
            await listener.listen(conn)

            async def once() -> None:
                db.execute("NOTIFY pgworkers, 'ready:default'")
                await conn.execute("SELECT 1")  # its answer brings the notice: the socket is empty after it
                host._due_at = float("inf")

            monkeypatch.setattr(host, "renew", once, raising=False)
            with pytest.raises(asyncio.CancelledError):
                await host.run()

    monkeypatch.setattr(NotificationListener, "wait", waits)
    asyncio.run(life())
    assert happened == [Reconnected(), JobsReady("default"), "waits"]


def test_notifications_are_handled_while_it_waits_and_a_lost_session_ends_the_wait(
    dsn: str, db: psycopg.Connection[Any]
) -> None:
    happened: list[Any] = []

    async def life() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            listener = NotificationListener(host_id="host", schema="pgworkers", events=EventBus())
            listener.on_hint = happened.append
            await listener.listen(conn)
            due_at = monotonic() + 3600
            waiting = asyncio.create_task(listener.wait(conn.pgconn, conn.fileno(), lambda: due_at))
            for said in ("one", "two"):
                await asyncio.to_thread(db.execute, f"NOTIFY pgworkers, 'ready:{said}'")
                while JobsReady(said) not in happened:
                    await asyncio.sleep(0.01)
            assert not waiting.done(), "a notice alone does not end it"
            await asyncio.to_thread(db.execute, "SELECT pg_terminate_backend(%s)", (conn.info.backend_pid,))
            with pytest.raises(psycopg.OperationalError):
                await waiting

    asyncio.run(life())
    assert happened == [Reconnected(), JobsReady("one"), JobsReady("two")]
