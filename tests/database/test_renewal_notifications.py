"""Notices that come with the answer to a renewal: they are heard before the host waits for the next."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pgworkers.clock import monotonic
from pgworkers.events import EventBus
from pgworkers.job.notification_payloads import JobsReady, Reconnected
from pgworkers.master.lease_keeper import LeaseKeeper
from pgworkers.settings import Settings


class OpenConnection:
    """The listening connection, already open."""

    def __init__(self, conn: psycopg.AsyncConnection[Any]) -> None:
        self._conn = conn

    async def ensure_connected(self) -> psycopg.AsyncConnection[Any]:
        return self._conn


def test_a_notice_that_came_with_an_answer_is_heard_before_the_wait(
    dsn: str, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[Any] = []

    async def waits(*_: object) -> None:
        happened.append("waits")
        raise asyncio.CancelledError

    async def life() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            host = object.__new__(LeaseKeeper)
            host._host_id = "host"
            host._connection = OpenConnection(conn)  # type: ignore[assignment]
            host._settings, host._events, host._on_hint = Settings(), EventBus(), happened.append
            host._on_notifications_read = lambda: None
            host._is_stopping, host._stopped = False, asyncio.Event()
            await host.listen(conn)

            async def once() -> None:
                db.execute("NOTIFY pgworkers, 'ready:default'")
                await conn.execute("SELECT 1")  # its answer brings the notice: the socket is empty after it
                host._due_at = float("inf")

            monkeypatch.setattr(host, "renew", once, raising=False)
            with pytest.raises(asyncio.CancelledError):
                await host.run()

    monkeypatch.setattr(LeaseKeeper, "wait", waits)
    asyncio.run(life())
    assert happened == [Reconnected(), JobsReady("default"), "waits"]


def test_notices_are_heard_while_it_waits_and_a_lost_session_ends_the_wait(
    dsn: str, db: psycopg.Connection[Any]
) -> None:
    happened: list[Any] = []

    async def life() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            host = object.__new__(LeaseKeeper)
            host._host_id = "host"
            host._settings, host._events, host._due_at = Settings(), EventBus(), monotonic() + 3600
            host._on_hint, host._on_notifications_read = happened.append, lambda: None
            await host.listen(conn)
            host._due_at = monotonic() + 3600
            waiting = asyncio.create_task(host.wait(conn.pgconn, conn.fileno()))
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
