"""`using(conn=...)` with every kind of connection: the job exists if and only if the caller's transaction commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from datetime import UTC, datetime
from typing import Any

import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from pgworkers import App, ArgumentError, DuplicateJob, SchemaOutOfDate, UsageError
from pgworkers.client.callers_connection import as_server_text

Db = psycopg.Connection[Any]
Opened = tuple[Any, Callable[[bool], None]]  # the connection, and what ends its transaction: True commits
AsyncOpened = tuple[Any, Callable[[bool], Awaitable[None]]]


def sqlalchemy_url(dsn: str, driver: str) -> sqlalchemy.URL:
    found = conninfo_to_dict(dsn)
    return sqlalchemy.URL.create(
        f"postgresql+{driver}",
        username=str(found["user"]),
        database=str(found["dbname"]),
        query={"host": str(found["host"]), **({"port": str(found["port"])} if "port" in found else {})},
    )


def asyncpg_params(dsn: str) -> dict[str, Any]:
    found = conninfo_to_dict(dsn)
    return {
        "host": found["host"],
        "port": int(found.get("port") or 5432),
        "user": found["user"],
        "database": found["dbname"],
    }


@contextmanager
def psycopg_connection(dsn: str) -> Iterator[Opened]:
    with psycopg.connect(dsn) as conn:
        yield conn, lambda commits: conn.commit() if commits else conn.rollback()


@contextmanager
def psycopg2_connection(dsn: str) -> Iterator[Opened]:
    conn = psycopg2.connect(dsn, connection_factory=psycopg2.extras.DictConnection)
    try:
        yield conn, lambda commits: conn.commit() if commits else conn.rollback()
    finally:
        conn.close()


def sqlalchemy_connection(driver: str) -> Callable[[str], AbstractContextManager[Opened]]:
    @contextmanager
    def opened(dsn: str) -> Iterator[Opened]:
        engine = sqlalchemy.create_engine(sqlalchemy_url(dsn, driver), poolclass=NullPool)
        with engine.connect() as conn:  # its transaction begins with its first statement
            yield conn, lambda commits: conn.commit() if commits else conn.rollback()

    return opened


def sqlalchemy_session(
    driver: str, *, is_scoped: bool = False
) -> Callable[[str], AbstractContextManager[Opened]]:
    @contextmanager
    def opened(dsn: str) -> Iterator[Opened]:
        engine = sqlalchemy.create_engine(sqlalchemy_url(dsn, driver), poolclass=NullPool)
        session: Any = scoped_session(sessionmaker(engine)) if is_scoped else Session(engine)
        try:
            yield session, lambda commits: session.commit() if commits else session.rollback()
        finally:
            session.close()

    return opened


@asynccontextmanager
async def psycopg_async(dsn: str) -> AsyncIterator[AsyncOpened]:
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        yield conn, lambda commits: conn.commit() if commits else conn.rollback()


@asynccontextmanager
async def asyncpg_connection(dsn: str) -> AsyncIterator[AsyncOpened]:
    conn = await asyncpg.connect(**asyncpg_params(dsn))
    # As many applications do; it must not change what we store.
    await conn.set_type_codec("jsonb", encoder=repr, decoder=repr, schema="pg_catalog")
    begun = conn.transaction()
    await begun.start()
    try:
        yield conn, lambda commits: begun.commit() if commits else begun.rollback()
    finally:
        await conn.close()


@asynccontextmanager
async def asyncpg_pooled(dsn: str) -> AsyncIterator[AsyncOpened]:
    async with (
        asyncpg.create_pool(**asyncpg_params(dsn), min_size=1, max_size=1) as pool,
        pool.acquire() as conn,
    ):
        await conn.execute("BEGIN")
        yield conn, lambda commits: conn.execute("COMMIT" if commits else "ROLLBACK")


def sqlalchemy_async_connection(driver: str) -> Callable[[str], AbstractAsyncContextManager[AsyncOpened]]:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[AsyncOpened]:
        engine = create_async_engine(sqlalchemy_url(dsn, driver), poolclass=NullPool)
        async with engine.connect() as conn:
            yield conn, lambda commits: conn.commit() if commits else conn.rollback()

    return opened


def sqlalchemy_async_session(driver: str) -> Callable[[str], AbstractAsyncContextManager[AsyncOpened]]:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[AsyncOpened]:
        engine = create_async_engine(sqlalchemy_url(dsn, driver), poolclass=NullPool)
        async with AsyncSession(engine) as session:
            yield session, lambda commits: session.commit() if commits else session.rollback()

    return opened


BLOCKING = {
    "psycopg": psycopg_connection,
    "psycopg2": psycopg2_connection,
    "sqlalchemy-psycopg": sqlalchemy_connection("psycopg"),
    "sqlalchemy-psycopg2": sqlalchemy_connection("psycopg2"),
    "session-psycopg": sqlalchemy_session("psycopg"),
    "session-psycopg2": sqlalchemy_session("psycopg2"),
    "scoped-session": sqlalchemy_session("psycopg2", is_scoped=True),
}
ASYNC = {
    "psycopg": psycopg_async,
    "asyncpg": asyncpg_connection,
    "asyncpg-pool": asyncpg_pooled,
    "sqlalchemy-psycopg": sqlalchemy_async_connection("psycopg"),
    "sqlalchemy-asyncpg": sqlalchemy_async_connection("asyncpg"),
    "session-psycopg": sqlalchemy_async_session("psycopg"),
    "session-asyncpg": sqlalchemy_async_session("asyncpg"),
}
blocking_kinds = pytest.mark.parametrize("kind", BLOCKING)
async_kinds = pytest.mark.parametrize("kind", ASYNC)
commits_or_not = pytest.mark.parametrize("commits", [True, False])


@pytest.fixture
def app() -> App:
    made = App(dsn="postgresql://127.0.0.1:1/never")  # nothing here uses a connection of the app
    made.queue("default")

    @made.task
    def greet(name: str, n: int = 0) -> None: ...

    return made


def stored(db: Db) -> list[Any]:
    return [row[0] for row in db.execute("SELECT args->>'name' FROM pgworkers.job ORDER BY id").fetchall()]


TEXT = "Zoë 'quoted' %s $1 \\ \"\n\t{}"


@blocking_kinds
@commits_or_not
def test_a_job_exists_if_and_only_if_the_transaction_commits(
    app: App, dsn: str, db: Db, kind: str, commits: bool
) -> None:
    greet = app.tasks["greet"]
    with BLOCKING[kind](dsn) as (conn, end):
        first = greet.using(conn=conn).enqueue(TEXT)
        greet.using(
            conn=conn, delay="5m", priority=-3, unique="u", meta={"why": "x"}, timeout="1.5s", memory="1GB"
        ).enqueue("later")
        greet.using(conn=conn, after=[first]).enqueue("after")
        assert stored(db) == []
        end(commits)
    assert stored(db) == ([TEXT, "later", "after"] if commits else [])
    if commits:
        row = db.execute(
            "SELECT state, priority, unique_key, meta, timeout::text, memory FROM pgworkers.job WHERE unique_key = 'u'"
        ).fetchone()
        assert row == ("scheduled", -3, "u", {"why": "x"}, "00:00:01.5", 1 << 30)


@async_kinds
@commits_or_not
def test_the_same_in_an_event_loop(app: App, dsn: str, db: Db, kind: str, commits: bool) -> None:
    greet = app.tasks["greet"]

    async def main() -> None:
        async with ASYNC[kind](dsn) as (conn, end):
            first = await greet.using(conn=conn).aenqueue(TEXT)
            await greet.using(
                conn=conn,
                delay="5m",
                priority=-3,
                unique="u",
                meta={"why": "x"},
                timeout="1.5s",
                memory="1GB",
            ).aenqueue("later")
            await greet.using(conn=conn, after=[first]).aenqueue("after")
            assert stored(db) == []
            await end(commits)

    asyncio.run(main())
    assert stored(db) == ([TEXT, "later", "after"] if commits else [])
    if commits:
        row = db.execute(
            "SELECT state, priority, unique_key, meta, timeout::text, memory FROM pgworkers.job WHERE unique_key = 'u'"
        ).fetchone()
        assert row == ("scheduled", -3, "u", {"why": "x"}, "00:00:01.5", 1 << 30)


@blocking_kinds
@commits_or_not
def test_many_jobs_and_a_batch(app: App, dsn: str, db: Db, kind: str, commits: bool) -> None:
    greet = app.tasks["greet"]
    with BLOCKING[kind](dsn) as (conn, end):
        batch = app.batch([greet.prepare("in batch")], then=greet.prepare("then"), conn=conn)
        jobs = [greet.prepare(TEXT), greet.using(delay="5m").prepare("late")]
        assert app.enqueue_many(jobs, conn=conn) == 2
        assert stored(db) == []
        assert batch.then is not None
        end(commits)
    assert sorted(stored(db)) == (sorted([TEXT, "late", "in batch", "then"]) if commits else [])
    assert db.execute("SELECT count(*) FROM pgworkers.batch").fetchone() == (int(commits),)


@async_kinds
@commits_or_not
def test_many_jobs_and_a_batch_in_an_event_loop(app: App, dsn: str, db: Db, kind: str, commits: bool) -> None:
    greet = app.tasks["greet"]

    async def main() -> None:
        async with ASYNC[kind](dsn) as (conn, end):
            await app.abatch([greet.prepare("in batch")], then=greet.prepare("then"), conn=conn)
            jobs = [greet.prepare(TEXT), greet.using(delay="5m").prepare("late")]
            assert await app.aenqueue_many(jobs, conn=conn) == 2
            assert stored(db) == []
            await end(commits)

    asyncio.run(main())
    assert sorted(stored(db)) == (sorted([TEXT, "late", "in batch", "then"]) if commits else [])
    assert db.execute("SELECT count(*) FROM pgworkers.batch").fetchone() == (int(commits),)


@blocking_kinds
def test_a_refused_key_leaves_the_transaction_usable(app: App, dsn: str, db: Db, kind: str) -> None:
    greet = app.tasks["greet"]
    with BLOCKING[kind](dsn) as (conn, end):
        first = greet.using(conn=conn, unique="k").enqueue("first")
        end(True)
        with pytest.raises(DuplicateJob) as caught:
            greet.using(conn=conn, unique="k", on_conflict="raise").enqueue("second")
        assert caught.value.job_id == first.id
        greet.using(conn=conn).enqueue("third")
        end(True)
    assert stored(db) == ["first", "third"]


@async_kinds
def test_a_refused_key_leaves_the_transaction_usable_in_an_event_loop(
    app: App, dsn: str, db: Db, kind: str
) -> None:
    greet = app.tasks["greet"]
    greet_now = greet.using(conn=db, unique="k").enqueue("first")

    async def main() -> None:
        async with ASYNC[kind](dsn) as (conn, end):
            with pytest.raises(DuplicateJob) as caught:
                await greet.using(conn=conn, unique="k", on_conflict="raise").aenqueue("second")
            assert caught.value.job_id == greet_now.id
            await greet.using(conn=conn).aenqueue("third")
            await end(True)

    asyncio.run(main())
    assert stored(db) == ["first", "third"]


@blocking_kinds
def test_a_database_without_the_schema_says_what_to_run(app: App, empty_dsn: str, kind: str) -> None:
    with (
        BLOCKING[kind](empty_dsn) as (conn, _),
        pytest.raises(SchemaOutOfDate, match=r"nothing was enqueued.*pgworkers migrate up --dsn"),
    ):
        app.tasks["greet"].using(conn=conn).enqueue("x")


@async_kinds
def test_a_database_without_the_schema_says_what_to_run_in_an_event_loop(
    app: App, empty_dsn: str, kind: str
) -> None:
    async def main() -> None:
        async with ASYNC[kind](empty_dsn) as (conn, _):
            with pytest.raises(SchemaOutOfDate, match=r"nothing was enqueued.*pgworkers migrate up --dsn"):
                await app.tasks["greet"].using(conn=conn).aenqueue("x")

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["psycopg", "psycopg2", "session-psycopg2"])
def test_a_job_that_postgres_refuses_is_an_argument_error(app: App, dsn: str, db: Db, kind: str) -> None:
    with (
        BLOCKING[kind](dsn) as (conn, _),
        pytest.raises(ArgumentError, match="lies beyond the year 9999"),
    ):
        app.tasks["greet"].using(conn=conn, at=datetime(9998, 12, 31, tzinfo=UTC), expires="300d").enqueue(
            "x"
        )
    assert stored(db) == []


@pytest.mark.parametrize("kind", ["psycopg2", "session-psycopg2"])
def test_a_serialization_failure_reaches_the_caller_unchanged(app: App, dsn: str, db: Db, kind: str) -> None:
    """The caller repeats its transaction on it: frameworks look at the driver's own class."""
    db.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END $$"
    )
    db.execute("CREATE TRIGGER fail BEFORE INSERT ON pgworkers.job FOR EACH ROW EXECUTE FUNCTION fail()")
    with BLOCKING[kind](dsn) as (conn, _), pytest.raises(psycopg2.errors.SerializationFailure):
        app.tasks["greet"].using(conn=conn).enqueue("x")


def test_a_serialization_failure_of_asyncpg_reaches_the_caller_unchanged(app: App, dsn: str, db: Db) -> None:
    db.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END $$"
    )
    db.execute("CREATE TRIGGER fail BEFORE INSERT ON pgworkers.job FOR EACH ROW EXECUTE FUNCTION fail()")

    async def main() -> None:
        async with asyncpg_connection(dsn) as (conn, _):
            with pytest.raises(asyncpg.SerializationError):
                await app.tasks["greet"].using(conn=conn).aenqueue("x")

    asyncio.run(main())


def test_a_job_is_undone_with_the_savepoint_it_is_in(app: App, dsn: str, db: Db) -> None:
    greet = app.tasks["greet"]
    with sqlalchemy_session("psycopg2")(dsn) as (session, end):
        greet.using(conn=session).enqueue("outer")
        inner = session.begin_nested()
        greet.using(conn=session).enqueue("inner")
        app.enqueue_many([greet.prepare("many")], conn=session)
        inner.rollback()
        end(True)
    assert stored(db) == ["outer"]


def test_a_connection_in_autocommit_mode_commits_at_once(app: App, dsn: str, db: Db) -> None:
    greet = app.tasks["greet"]
    with psycopg2_connection(dsn) as (conn, _):
        conn.autocommit = True
        greet.using(conn=conn).enqueue("one")
        app.batch([greet.prepare("two")], conn=conn)
        greet.using(conn=conn, unique="k").enqueue("three")
        with pytest.raises(DuplicateJob):
            greet.using(conn=conn, unique="k", on_conflict="raise").enqueue("four")
    assert stored(db) == ["one", "two", "three"]

    async def main() -> None:
        plain = await asyncpg.connect(**asyncpg_params(dsn))
        try:
            await greet.using(conn=plain).aenqueue("five")
            await app.abatch([greet.prepare("six")], conn=plain)
        finally:
            await plain.close()

    asyncio.run(main())
    assert stored(db)[3:] == ["five", "six"]


def test_an_iterator_that_raises_leaves_nothing(app: App, dsn: str, db: Db) -> None:
    greet = app.tasks["greet"]

    def jobs() -> Iterator[Any]:
        yield greet.prepare("one")
        raise LookupError("the source broke")

    async def main() -> None:
        async with asyncpg_connection(dsn) as (conn, end):
            with pytest.raises(LookupError):
                await app.aenqueue_many(jobs(), conn=conn)
            await greet.using(conn=conn).aenqueue("still usable")
            await end(True)

    asyncio.run(main())
    with psycopg2_connection(dsn) as (conn, end):
        with pytest.raises(LookupError):
            app.enqueue_many(jobs(), conn=conn)
        greet.using(conn=conn).enqueue("also usable")
        end(True)
    assert stored(db) == ["still usable", "also usable"]


def test_a_connection_that_was_cut_is_reported(app: App, dsn: str, db: Db) -> None:
    with psycopg2_connection(dsn) as (conn, _):
        db.execute("SELECT pg_terminate_backend(%s)", [conn.info.backend_pid])
        with pytest.raises(Exception, match="nothing was enqueued") as caught:
            app.tasks["greet"].using(conn=conn).enqueue("x")
        assert type(caught.value).__module__ == "pgworkers.errors"
    assert stored(db) == []


def test_other_objects_are_refused_with_what_to_give(app: App, dsn: str) -> None:
    greet = app.tasks["greet"]
    engine = sqlalchemy.create_engine(sqlalchemy_url(dsn, "psycopg"))
    for wrong, hint in ((engine, "engine.begin"), (object(), "Session"), (7, "psycopg2")):
        with pytest.raises(UsageError, match=f"nothing was enqueued.*{hint}"):
            greet.using(conn=wrong).enqueue("x")

    async def main() -> None:
        with pytest.raises(UsageError, match=r"nothing was enqueued.*asyncpg"):
            await greet.using(conn=object()).aenqueue("x")
        for opened in (psycopg_connection, psycopg2_connection, sqlalchemy_session("psycopg2")):
            with opened(dsn) as (conn, _), pytest.raises(UsageError, match="which blocks"):
                await greet.using(conn=conn).aenqueue("x")
        for opened in ASYNC.values():
            async with opened(dsn) as (conn, _):
                with pytest.raises(UsageError, match="event loop"):
                    greet.using(conn=conn).enqueue("x")

    asyncio.run(main())


def test_values_are_written_as_the_server_reads_them(db: Db) -> None:
    values = ['a"b', "c\\d", "", "NULL", "{1,2}", "e,f"]
    row = db.execute("SELECT %s::text[] = %s::text[]", [as_server_text(values), values]).fetchone()
    assert row == (True,)
    assert [as_server_text(value) for value in (None, True, 1.5, [1, 2])] == [
        None,
        "true",
        "1.5",
        '{"1","2"}',
    ]
