"""Migrations: applied once whoever starts at the same time, and refused when they are not what this code knows."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from support.bounds import BUSY
from support.desk import Desk
from support.stranger import stranger_session

from pgworkers.errors import SchemaOutOfDate, UsageError
from pgworkers.job import cancel
from pgworkers.job.asleep import asleep
from pgworkers.job.state import State, Verdict
from pgworkers.postgres import connect, migrate
from pgworkers.postgres.migrate import Migration
from pgworkers.settings import Settings

SECOND = Migration(
    9001, "9001_second", "CREATE TABLE pgworkers.second (a integer); CREATE INDEX ON pgworkers.second (a);"
)
BROKEN = Migration(
    9002, "9002_broken", "CREATE TABLE pgworkers.third (a integer); SELECT no_such_function();"
)


def tables(conn: psycopg.Connection[Any]) -> set[str]:
    return {
        row[0]
        for row in conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'pgworkers'").fetchall()
    }


def test_an_empty_database_is_migrated_once(empty_dsn: str) -> None:
    names = [migration.name for migration in migrate.known()]
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        assert [row.state for row in migrate.status(conn, "pgworkers")] == ["pending"] * len(names)
        with pytest.raises(SchemaOutOfDate, match=r"no schema pgworkers.*run pgworkers migrate up"):
            migrate.check(conn, "pgworkers")
        assert migrate.up(conn, "pgworkers") == names
        assert migrate.up(conn, "pgworkers") == []
        migrate.check(conn, "pgworkers")
        assert [(row.name, row.state) for row in migrate.status(conn, "pgworkers")] == [
            (name, "applied") for name in names
        ]


def test_twenty_masters_starting_at_once(empty_dsn: str) -> None:
    applied: list[list[str]] = []
    failed: list[BaseException] = []
    gate = threading.Barrier(20)

    def start() -> None:
        try:
            with connect.connect(Settings(), empty_dsn, "test") as conn:
                gate.wait(timeout=100)
                applied.append(migrate.up(conn, "pgworkers"))
                migrate.check(conn, "pgworkers")
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=start) for _ in range(20)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began < 10 + BUSY
    assert failed == []
    assert len(applied) == 20
    assert sorted(name for names in applied for name in names) == [
        migration.name for migration in migrate.known()
    ]


def test_a_login_that_holds_an_advisory_lock_stops_no_migration(empty_dsn: str) -> None:
    applied: list[list[str]] = []

    def start() -> None:
        with connect.connect(Settings(), empty_dsn, "test") as conn:
            applied.append(migrate.up(conn, "pgworkers"))

    with stranger_session(empty_dsn) as stranger:
        stranger.execute("SELECT pg_advisory_lock(hashtextextended('pgworkers migrate pgworkers', 0))")
        thread = threading.Thread(target=start)
        thread.start()
        thread.join(30 + BUSY)
        done = bool(applied)
    thread.join()
    assert done


def test_an_older_schema_is_brought_up_to_date_and_only_the_new_part_is_run(
    db: psycopg.Connection[Any],
) -> None:
    newer = [*migrate.known(), SECOND]
    with pytest.raises(SchemaOutOfDate, match=r"older than this pgworkers .missing: 9001_second.*migrate up"):
        migrate.check(db, "pgworkers", newer)
    assert migrate.up(db, "pgworkers", newer) == ["9001_second"]
    migrate.check(db, "pgworkers", newer)


def test_a_schema_newer_than_the_code_is_refused_and_not_touched(db: psycopg.Connection[Any]) -> None:
    migrate.up(db, "pgworkers", [*migrate.known(), SECOND])
    before = tables(db)
    for refuse in (migrate.up, migrate.check):
        with pytest.raises(SchemaOutOfDate, match=r"newer than this pgworkers.*9001_second") as caught:
            refuse(db, "pgworkers")
        assert caught.value.exit_code == 5
    assert tables(db) == before


def test_a_file_that_changed_after_it_was_applied_is_refused(db: psycopg.Connection[Any]) -> None:
    first = migrate.known()[0]
    changed = [replace(first, text=first.text + "\n-- one more line"), *migrate.known()[1:], SECOND]
    for refuse in (migrate.up, migrate.check):
        with pytest.raises(SchemaOutOfDate, match="another version of 0001_spine"):
            refuse(db, "pgworkers", changed)
    assert "second" not in tables(db)
    assert migrate.status(db, "pgworkers", changed)[0].state == "changed"


def test_a_migration_that_fails_leaves_nothing_of_itself_and_those_before_it_stay(
    db: psycopg.Connection[Any],
) -> None:
    with pytest.raises(psycopg.errors.UndefinedFunction):
        migrate.up(db, "pgworkers", [*migrate.known(), SECOND, BROKEN])
    assert "second" in tables(db)
    assert "third" not in tables(db)
    assert migrate.status(db, "pgworkers", [*migrate.known(), SECOND, BROKEN])[-1].state == "pending"


def test_a_database_that_is_not_utf8_is_refused(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        try:
            with (
                psycopg.connect(empty_dsn, dbname="latin", autocommit=True) as latin,
                pytest.raises(UsageError, match=r"encoded in LATIN1.*UTF8"),
            ):
                migrate.up(latin, "pgworkers")
        finally:
            conn.execute("DROP DATABASE latin WITH (FORCE)")


def test_a_role_that_may_not_create_schemas_can_use_one_that_was_made_for_it(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute("CREATE ROLE plain LOGIN")
        try:
            conn.execute("CREATE SCHEMA pgworkers AUTHORIZATION plain")
            with psycopg.connect(empty_dsn, autocommit=True) as theirs:
                theirs.execute("SET ROLE plain")
                assert migrate.up(theirs, "pgworkers")
        finally:
            conn.execute("DROP SCHEMA pgworkers CASCADE")
            conn.execute("DROP ROLE plain")


def test_the_script_for_psql_does_what_up_does(empty_dsn: str) -> None:
    script = migrate.render_sql("jobs")
    assert [script.splitlines().count(word) for word in ("BEGIN;", "COMMIT;")] == [1, 1], (
        "psql: all of it, or nothing"
    )
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        heard: list[str] = []
        conn.add_notice_handler(lambda said: heard.append(said.message_primary or ""))
        conn.execute(script.encode())
        assert heard == []
        migrate.check(conn, "jobs")
        assert migrate.up(conn, "jobs") == []
        assert Desk(conn, "jobs").put()


def test_two_installations_in_one_database_know_nothing_of_each_other(db: psycopg.Connection[Any]) -> None:
    assert migrate.up(db, "order") == [migration.name for migration in migrate.known()]
    ours, theirs = Desk(db, "pgworkers"), Desk(db, "order")
    theirs.register()
    theirs.ask(asleep(theirs.host, ["a"]))
    for channel in ("pgworkers", "pgworkers_done", '"order"', "order_done", f'"{theirs.host}"'):
        db.execute(f"LISTEN {channel}")
    job_id = theirs.put(args='{"a": 1}', unique="k")
    assert ours.take() == []
    (job,) = theirs.take()
    assert theirs.again(job, after=0.0) == "written"
    (job,) = theirs.take()
    assert theirs.ask(cancel.cancel(job.id)) == "cancelling"
    assert theirs.end(job, State.CANCELLED, verdict=Verdict.CANCELLED) == "written"
    assert theirs.see(job_id).state is State.CANCELLED
    assert theirs.notices() == [
        (theirs.host, f"one:a:{theirs.host}"),
        ("order", "ready:a"),
        ("order", f"cancel:{job_id}"),
        ("order_done", str(job_id)),
    ]
    assert db.execute("SELECT count(*) FROM pgworkers.jobs").fetchone() == (0,)
    db.execute('DROP SCHEMA "order" CASCADE')
    migrate.check(db, "pgworkers")
