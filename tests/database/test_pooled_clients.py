"""Clients behind PgBouncer in each of its configurations: they find out by themselves and need no set-up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.pooler import BOUNCER, MISSING, bouncer_version, pooling

from pgworkers import App
from pgworkers.client.handler_connections import JobConnection
from pgworkers.job import maintenance
from pgworkers.postgres import connect, pooler
from pgworkers.postgres.statements import run
from pgworkers.settings import Settings

pytestmark = pytest.mark.skipif(BOUNCER is None, reason=MISSING)
Db = psycopg.Connection[Any]

IGNORED = "ignore_startup_parameters = options"
#: The lines of its configuration; by default PgBouncer refuses a client that sends `options`.
CONFIGURATIONS = {
    "options-refused": (),
    "options-ignored": (IGNORED,),
    "prepares-and-options-refused": ("max_prepared_statements = 100",),
    "prepares-and-options-ignored": (IGNORED, "max_prepared_statements = 100"),
}
CLIENTS, EACH = 4, 30


@pytest.fixture(params=CONFIGURATIONS)
def pooled(request: pytest.FixtureRequest, dsn: str, tmp_path: Path) -> Iterator[str]:
    """The test's database through a PgBouncer that has two sessions for all clients."""
    extra = CONFIGURATIONS[request.param]
    if "prepares" in request.param and bouncer_version() < (1, 21):
        pytest.skip(
            "NOT TESTED: this PgBouncer knows no max_prepared_statements (1.21 does; Debian 12 has 1.18)"
        )
    with pooling(dsn, tmp_path / "bouncer", extra=extra) as address:
        yield address


@pytest.fixture
def ignoring(dsn: str, tmp_path: Path) -> Iterator[str]:
    """The test's database through a PgBouncer that takes our settings and forgets them."""
    with pooling(dsn, tmp_path / "bouncer", extra=(IGNORED,)) as address:
        yield address


def make_app(address: str) -> App:
    app = App(dsn=address)
    app.queue("default")

    @app.task
    def job(n: int) -> int:
        return n

    return app


def enqueue_from_threads(address: str) -> list[BaseException]:
    """As many clients with a connection each, all at once. Returns what failed."""
    errors: list[BaseException] = []

    def work() -> None:
        app = make_app(address)
        for n in range(EACH):
            try:
                app.tasks["job"].enqueue(n)
            except Exception as exc:
                errors.append(exc)
        app.close()

    threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def enqueue_on_a_loop(address: str) -> list[BaseException]:
    """The same in one event loop."""

    async def work() -> list[BaseException]:
        app, errors = make_app(address), []
        for n in range(EACH):
            try:
                await app.tasks["job"].aenqueue(n)
            except Exception as exc:
                errors.append(exc)
        await app.aclose()
        return errors

    async def main() -> list[BaseException]:
        found = await asyncio.gather(*(work() for _ in range(CLIENTS)))
        return [exc for errors in found for exc in errors]

    return asyncio.run(main())


def count(db: Db) -> int:
    row = db.execute("SELECT count(*) FROM pgworkers.job").fetchone()
    assert row is not None
    return int(row[0])


def test_no_enqueue_fails_and_nothing_has_to_be_set(pooled: str, db: Db) -> None:
    assert enqueue_from_threads(pooled) == []
    assert enqueue_on_a_loop(pooled) == []
    app = make_app(pooled)
    job = app.tasks["job"]
    assert app.enqueue_many(job.prepare(n) for n in range(EACH)) == EACH
    handles = [job.using(delay="1h", unique=str(n)).enqueue(n) for n in range(EACH)]
    assert {handle.state for handle in handles} == {"scheduled"}
    assert all(handle.cancel() for handle in handles)
    app.close()
    assert count(db) == 2 * CLIENTS * EACH + EACH


def test_a_pooler_is_recognised_when_a_session_begins(pooled: str) -> None:
    with connect.connect(Settings(), pooled, "client") as conn:
        assert isinstance(conn, pooler.PooledConnection)

    async def main() -> None:
        async with await connect.aconnect(Settings(), pooled, "client") as conn:
            assert isinstance(conn, pooler.AsyncPooledConnection)

    asyncio.run(main())


def test_a_pooler_that_looks_like_a_server_is_recognised_by_its_answers(
    ignoring: str, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that was prepared in another session was not executed, so that it can be sent again."""
    monkeypatch.setattr(pooler, "is_direct", lambda conn, row: True)
    assert enqueue_from_threads(ignoring) == []
    assert enqueue_on_a_loop(ignoring) == []
    assert count(db) == 2 * CLIENTS * EACH


def test_a_connection_of_a_handler_prepares_nothing_through_a_pooler(pooled: str, dsn: str) -> None:
    connections = [
        connect.connect_for_handler(Settings(), pooled, "job 1", JobConnection, autocommit=True)
        for _ in range(CLIENTS)
    ]
    try:
        for n in range(EACH):
            for conn in connections:
                assert conn.execute("SELECT %s + 1", [n]).fetchone() == (n + 1,)
    finally:
        for conn in connections:
            conn.close()

    async def main() -> None:
        conn = await connect.aconnect_for_handler(Settings(), pooled, "job 1")
        async with conn:
            assert conn.prepare_threshold is None

    asyncio.run(main())
    with connect.connect_for_handler(Settings(), dsn, "job 1", JobConnection) as conn:
        assert conn.prepare_threshold == 5, "psycopg's own, where there is no pooler"
    with connect.connect_for_handler(Settings(), pooled, "job 1", JobConnection, prepare_threshold=7) as conn:
        assert conn.prepare_threshold == 7, "what the handler says counts"


def test_the_first_portion_of_a_walk_can_be_written_into_its_statement(dsn: str) -> None:
    """The least bigint cannot: `-9223372036854775808::bigint` is out of range."""
    with psycopg.connect(dsn, autocommit=True, cursor_factory=psycopg.ClientCursor) as conn:
        for query in (maintenance.prune_history(1.0, 1.0, 10), maintenance.prune_attempts(1.0, 10)):
            assert run(conn, "pgworkers", query).changed_rows == 0
