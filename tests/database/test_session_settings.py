"""A database with the most awkward defaults: our sessions have the settings that our statements rely on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.command import ForkedCommand
from support.database_host import DatabaseHost
from support.pooler import pooling, require_bouncer

from pgworkers.errors import DatabaseUnreachable
from pgworkers.job import queries
from pgworkers.job.copy import copy_jobs
from pgworkers.job.enqueue import enqueue
from pgworkers.job.model import JobState, NewJob
from pgworkers.postgres import connect, session_settings
from pgworkers.postgres.session import AsyncSession, BlockingSession
from pgworkers.postgres.statements import run
from pgworkers.settings import Settings

#: What users' own sessions may well have.
ODD = {
    "DateStyle": "'German, DMY'",
    "TimeZone": "'Pacific/Chatham'",
    "IntervalStyle": "'sql_standard'",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "extra_float_digits": "-15",
    "bytea_output": "'escape'",
    "row_security": "off",
    "transform_null_equals": "on",
    "default_transaction_isolation": "'repeatable read'",
    "search_path": "evil, public",
    "jit": "on",
    "jit_above_cost": "0",
}
#: What nothing could work with. Through a pooler the SET that lifts a timeout runs under that timeout itself, so it needs
#: time enough for one SET on a busy machine; `test_a_statement_may_take_longer_than_the_databases_timeout` outlasts it.
TIMEOUT_MS = 500
HOSTILE = ODD | {
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "statement_timeout": str(TIMEOUT_MS),
    "lock_timeout": str(TIMEOUT_MS),
    "client_encoding": "'LATIN1'",
}
SETTINGS = Settings(statement_timeout=20.0)
AT = datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=UTC)


def _spoil(dsn: str, values: dict[str, str]) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        name = conn.info.dbname
        for setting, value in values.items():
            conn.execute(f'ALTER DATABASE "{name}" SET {setting} = {value}'.encode())
        if conn.info.server_version >= 140000:
            conn.execute(f"ALTER DATABASE \"{name}\" SET idle_session_timeout = '300ms'".encode())


@pytest.fixture(params=["direct", "pooled"])
def spoiled(request: pytest.FixtureRequest, dsn: str, tmp_path: Path) -> Iterator[str]:
    _spoil(dsn, HOSTILE)
    if request.param == "direct":
        yield dsn
        return
    require_bouncer()
    with pooling(dsn, tmp_path / "bouncer") as address:
        yield address


def test_each_setting_is_what_we_rely_on(spoiled: str) -> None:
    wanted = session_settings.STATEMENT_SETTINGS | {
        "transaction_isolation": "read committed",
        "statement_timeout": "20s",
        "lock_timeout": "20s",
    }
    with connect.connect(SETTINGS, spoiled, "test") as conn:
        for name, value in wanted.items():
            row = conn.execute("SELECT pg_catalog.current_setting(%s)", [name]).fetchone()
            assert row is not None
            assert row[0].replace(", ", ",") == value, name
        with conn.transaction():
            for name, value in wanted.items():
                row = conn.execute("SELECT pg_catalog.current_setting(%s)", [name]).fetchone()
                assert row is not None
                assert row[0].replace(", ", ",") == value, name
        assert conn.execute("SELECT 'é'").fetchone() == ("é",)


def test_a_statement_may_take_longer_than_the_databases_timeout(spoiled: str) -> None:
    longer = TIMEOUT_MS / 1000 + 0.1
    with connect.connect(SETTINGS, spoiled, "test") as conn:
        assert conn.execute("SELECT pg_catalog.pg_sleep(%s) IS NOT NULL", [longer]).fetchone() == (True,)
        with conn.transaction():
            assert conn.execute("SELECT pg_catalog.pg_sleep(%s) IS NOT NULL", [longer]).fetchone() == (True,)


def test_nothing_is_compiled(spoiled: str) -> None:
    with connect.connect(SETTINGS, spoiled, "test") as conn:
        plan = conn.execute(
            "EXPLAIN (ANALYZE, FORMAT JSON) SELECT count(*) FROM generate_series(1, 1000)"
        ).fetchone()
        jit = conn.execute("SELECT pg_catalog.current_setting('jit')").fetchone()
    assert jit == ("off",), "a server that was built without LLVM compiles nothing anyway"
    assert plan is not None
    assert "JIT" not in plan[0][0]


def test_jobs_go_in_and_come_out_as_they_are(spoiled: str) -> None:
    jobs = [
        NewJob("t", '{"a": "back\\\\slash \' é %"}', "q", 1, max_attempts=2, max_crashes=3),
        NewJob("t", '{"a": 1.5}', "q", run_at=AT, timeout=90.25, meta_json='{"why": "%s"}'),
        NewJob("t", '{"a": null}', "q", delay=60.0, deadline=120.5, unique_key="NULL"),
    ]
    with connect.connect(SETTINGS, spoiled, "test") as conn:
        seat = BlockingSession(conn, "pgworkers")
        ids = [run(conn, "pgworkers", enqueue(jobs[0])).id, seat.run(enqueue(jobs[1])).id]
        ids += [
            seat.run(enqueue(jobs[2], is_own_transaction=True)).id,
            seat.run(enqueue(jobs[0], is_own_transaction=True)).id,
        ]
        assert (
            copy_jobs(
                conn, "pgworkers", [*jobs[:2], NewJob("x", "{}", "q", delay=60.0)], is_own_connection=True
            )
            == 3
        )
        views = [run(conn, "pgworkers", queries.get_job(number)) for number in ids]
        assert [view.args for view in views if view is not None] == [
            {"a": "back\\slash ' é %"},
            {"a": 1.5},
            {"a": None},
            {"a": "back\\slash ' é %"},
        ]
        assert views[1] is not None
        assert views[2] is not None
        assert (views[1].run_at, views[1].meta) == (AT, {"why": "%s"})
        assert views[2].run_at - views[2].created_at == timedelta(seconds=60)
        assert views[2].unique_key == "NULL"
        copied = [
            one
            for one in queries.find_jobs(
                lambda query: run(conn, "pgworkers", query), queries.JobFilter()
            ).jobs
            if one.id not in ids
        ]
        assert sorted(one.run_at == AT for one in copied) == [False, False, True]
        assert len(run(conn, "pgworkers", queries.list_queues())) == 1


def test_the_same_on_an_event_loop(spoiled: str) -> None:
    asyncio.run(_on_a_loop(spoiled))


async def _on_a_loop(spoiled: str) -> None:
    conn = await connect.aconnect(SETTINGS, spoiled, "client")
    try:
        exchange = AsyncSession(conn, "pgworkers", should_cancel_on_server=True)
        made = await exchange.run(enqueue(NewJob("t", '{"a": "é"}', "q", run_at=AT)), 20.0)
        view = await exchange.run(queries.get_job(made.id), 20.0)
        assert view is not None
        assert (view.args, view.run_at) == ({"a": "é"}, AT)
        async with conn.transaction():
            row = await (await conn.execute("SHOW search_path")).fetchone()
        assert row is not None
        assert row[0].replace(", ", ",") == "pg_catalog,pg_temp"
    finally:
        await conn.close()


@pytest.mark.parametrize("way", ["direct", "pooled"])
def test_a_database_that_is_read_only_by_default_is_refused_with_the_sentence(
    dsn: str, tmp_path: Path, way: str
) -> None:
    """Not overruled: providers fence a database so when its disk is full."""
    _spoil(dsn, {"default_transaction_read_only": "on"})
    if way == "direct":
        with pytest.raises(DatabaseUnreachable, match="takes no writes") as caught:
            connect.connect(SETTINGS, dsn, "test")
        check_read_only_error(caught.value)
        return
    require_bouncer()
    with (
        pooling(dsn, tmp_path / "bouncer") as address,
        pytest.raises(DatabaseUnreachable, match="takes no writes") as caught,
    ):
        connect.connect(SETTINGS, address, "test")
    check_read_only_error(caught.value)


def check_read_only_error(error: DatabaseUnreachable) -> None:
    """It names the cause, and not one that is wrong: a server runs there."""
    assert "default_transaction_read_only is on" in str(error)
    assert "check that Postgres runs there" not in str(error)
    assert "no Postgres" not in error.summary
    assert error.summary.endswith("is read-only")
    assert error.is_transient, "a standby may be promoted"


def test_a_duty_that_is_run_by_hand_is_planned_as_a_host_plans_it(
    dsn: str, db: psycopg.Connection[Any], tmp_path: Path
) -> None:
    db.execute("CREATE TABLE public.seen (name text, setting text)")
    db.execute(WITNESS)
    db.execute("SELECT pgworkers.enqueue('t', delay => interval '1 millisecond')")
    ForkedCommand(tmp_path, DATABASE_URL=dsn)("duties", "run", "promote").lines()
    seen = dict(db.execute("SELECT name, setting FROM public.seen").fetchall())
    wanted = session_settings.HOST_PLANNER_SETTINGS
    assert {name: seen.get(name) for name in wanted} == wanted


def test_a_host_works(dsn: str) -> None:
    _spoil(dsn, HOSTILE)
    with connect.connect(SETTINGS, dsn, "claim") as conn:
        host = DatabaseHost(conn, "pgworkers")
        host.register()
        host.enqueue()
        (job,) = host.claim()
        assert host.finish_job(job, JobState.SUCCEEDED) == "written"


def test_our_sessions_are_not_ended_when_idle(dsn: str) -> None:
    _spoil(dsn, HOSTILE)
    with connect.connect(SETTINGS, dsn, "test") as conn:
        conn.execute("SELECT pg_catalog.pg_sleep(0)")
        if conn.info.server_version < 140000:
            pytest.skip("NOT TESTED: Postgres has idle_session_timeout from version 14 on")
        assert conn.execute("SHOW idle_session_timeout").fetchone() == ("0",)


def test_users_connections_keep_their_settings_and_need_none_of_our_own(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(TYPES.encode())
    _spoil(dsn, ODD | {"search_path": "evil, pg_catalog"})
    with psycopg.connect(dsn) as conn:
        names = [*ODD, "statement_timeout"]

        def settings() -> list[Any]:
            found = "SELECT name, setting FROM pg_catalog.pg_settings WHERE name = ANY (%s) ORDER BY 1"
            return conn.execute(found, [[name.lower() for name in names] + names]).fetchall()

        before = settings()
        first = run(conn, "pgworkers", enqueue(NewJob("t", '{"a": 1}', "q", run_at=AT, timeout=90.25)))
        run(conn, "pgworkers", enqueue(NewJob("t", '{"a": 1}', "q", 0, max_attempts=1, max_crashes=1)))
        jobs = [NewJob("t", "{}", "q", run_at=AT, deadline=5.5), NewJob("t", "{}", "q")]
        assert copy_jobs(conn, "pgworkers", jobs) == 2
        assert settings() == before
        conn.commit()
    with connect.connect(SETTINGS, dsn, "test") as ours:
        views = queries.find_jobs(lambda query: run(ours, "pgworkers", query), queries.JobFilter()).jobs
        assert len(views) == 4
        assert [view.run_at for view in views].count(AT) == 2
        assert all(abs(view.created_at - datetime.now(UTC)) < timedelta(hours=1) for view in views)
        assert ours.execute("SELECT timeout FROM pgworkers.job WHERE id = %s", [first.id]).fetchone() == (
            timedelta(seconds=90.25),
        )


#: Records the settings of the sessions that change jobs.
WITNESS = """
CREATE FUNCTION public.look() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN INSERT INTO public.seen SELECT name, setting FROM pg_catalog.pg_settings; RETURN NULL; END $$;
CREATE TRIGGER of_the_user AFTER UPDATE ON pgworkers.job FOR EACH STATEMENT EXECUTE FUNCTION public.look();
"""
#: In front of pg_catalog: types, a function and operators of the same names that do something else.
TYPES = """
CREATE SCHEMA evil;
CREATE DOMAIN evil.text AS pg_catalog.int4;
CREATE DOMAIN evil.jsonb AS pg_catalog.int4;
CREATE DOMAIN evil.timestamptz AS pg_catalog.int4;
CREATE DOMAIN evil.float8 AS pg_catalog.bool;
CREATE DOMAIN evil.int4 AS pg_catalog.bool;
CREATE DOMAIN evil.int8 AS pg_catalog.bool;
CREATE FUNCTION evil.now() RETURNS pg_catalog.timestamptz LANGUAGE sql AS $$ SELECT 'epoch'::pg_catalog.timestamptz $$;
CREATE FUNCTION evil.wrong(pg_catalog.int8, pg_catalog.int8) RETURNS pg_catalog.bool LANGUAGE sql AS $$ SELECT false $$;
CREATE OPERATOR evil.= (LEFTARG = pg_catalog.int8, RIGHTARG = pg_catalog.int8, FUNCTION = evil.wrong);
"""
