"""Notices that come with the answer to a renewal: they are heard before the host waits for the next."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pgworkers.facts import Facts
from pgworkers.master import renewal
from pgworkers.master.renewal import Renewal
from pgworkers.settings import Settings


class OneLine:
    """The listening connection, already open."""

    def __init__(self, conn: psycopg.AsyncConnection[Any]) -> None:
        self._conn = conn

    async def connection(self) -> psycopg.AsyncConnection[Any]:
        return self._conn


def test_a_notice_that_came_with_an_answer_is_heard_before_the_wait(
    dsn: str, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    async def waits(fd: int, timeout: float) -> None:
        happened.append("waits")
        raise asyncio.CancelledError

    async def life() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            host = object.__new__(Renewal)
            host._line = OneLine(conn)  # type: ignore[assignment]
            host._settings, host._facts, host._on_notice = Settings(), Facts(), happened.append
            await host._listen(conn)

            async def once() -> None:
                db.execute("NOTIFY pgworkers, 'default'")
                await conn.execute("SELECT 1")  # its answer brings the notice: the socket is empty after it
                host._due = float("inf")

            monkeypatch.setattr(host, "once", once, raising=False)
            with pytest.raises(asyncio.CancelledError):
                await host.run()

    monkeypatch.setattr(renewal, "_readable", waits)
    asyncio.run(life())
    assert happened == ["reconnected", "default", "waits"]
