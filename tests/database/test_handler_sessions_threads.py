"""Sessions that a thread still uses when the handler has ended: they end, and their memory is not taken from under it."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from support.database_host import until

from pgworkers import App
from pgworkers.client import handler_connections
from pgworkers.client.handler_connections import HandlerConnections

ALIVE = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s"


@pytest.fixture
def sessions(dsn: str) -> HandlerConnections:
    return HandlerConnections(App(dsn=dsn).client, 7, 1)


def alive(db: psycopg.Connection[Any]) -> int:
    row = db.execute(ALIVE, ["%job 7 lease 1"]).fetchone()
    assert row is not None
    return int(row[0])


def test_a_thread_inside_a_statement_ends_with_an_error(
    sessions: HandlerConnections, db: psycopg.Connection[Any]
) -> None:
    conn = sessions.connect(autocommit=True)
    errors: list[psycopg.Error] = []

    def sleeps() -> None:
        try:
            conn.execute("SELECT pg_sleep(600)")
        except psycopg.Error as error:
            errors.append(error)

    thread = threading.Thread(target=sleeps)
    thread.start()
    until(
        lambda: db.execute(
            "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(600)'"
        ).fetchone()
    )
    sessions.close()
    thread.join(30)
    assert len(errors) == 1
    assert conn.closed
    until(lambda: not alive(db))


def test_what_another_thread_holds_is_ended_and_not_freed(
    sessions: HandlerConnections, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_connections, "THREAD_RELEASE_TIMEOUT_SECONDS", 0.05)
    conn = sessions.connect(autocommit=True)
    with conn.lock:
        sessions.close()
        assert conn.pgconn.pgconn_ptr is not None, "it was freed while somebody may be inside libpq"
    until(lambda: not alive(db))
    conn.close()
