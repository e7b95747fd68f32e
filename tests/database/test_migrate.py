"""Migrations: applied once however many processes start, and refused when they are not those that this code knows."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from support.cluster import wait_for
from support.connect_only_login import stranger_session
from support.database_host import DatabaseHost
from support.server import Server
from support.time_bounds import BUSY

from pgworkers.errors import DatabaseUnreachable, SchemaOutOfDate, UsageError
from pgworkers.job import cancel
from pgworkers.job.hosts import set_idle_queues
from pgworkers.job.model import JobState, Verdict
from pgworkers.postgres import connect, lock_wait, migrate
from pgworkers.postgres.migrate import Migration
from pgworkers.settings import Settings

NEWEST = migrate.known_migrations()[-1].version


def later(version: int, name: str, text: str, serves: int | None = None) -> Migration:
    """A migration of a later version; by default it serves no code before it."""
    return Migration(version, f"{version}_{name}", f"-- serves: {serves or version:04d}\n{text}\n")


SECOND = later(
    9001, "second", "CREATE TABLE pgworkers.second (a integer); CREATE INDEX ON pgworkers.second (a);"
)
ADDITIVE = later(9001, "additive", "ALTER TABLE pgworkers.job ADD COLUMN colour text;", serves=NEWEST)
THIRD = later(9002, "third", "CREATE TABLE pgworkers.third (a integer);")
BROKEN = later(9002, "broken", "CREATE TABLE pgworkers.third (a integer); SELECT no_such_function();")


def tables(conn: psycopg.Connection[Any]) -> set[str]:
    return {
        row[0]
        for row in conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'pgworkers'").fetchall()
    }


def test_an_empty_database_is_migrated_once(empty_dsn: str) -> None:
    names = [migration.name for migration in migrate.known_migrations()]
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        assert [row.state for row in migrate.status(conn, "pgworkers")] == ["pending"] * len(names)
        with pytest.raises(SchemaOutOfDate, match=r"no schema pgworkers.*run pgworkers migrate up"):
            migrate.check_schema(conn, "pgworkers")
        assert migrate.up(conn, "pgworkers") == names
        assert migrate.up(conn, "pgworkers") == []
        migrate.check_schema(conn, "pgworkers")
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
                migrate.check_schema(conn, "pgworkers")
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
        migration.name for migration in migrate.known_migrations()
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
    newer = [*migrate.known_migrations(), SECOND]
    with pytest.raises(SchemaOutOfDate, match=r"older than this pgworkers .missing: 9001_second.*migrate up"):
        migrate.check_schema(db, "pgworkers", newer)
    assert migrate.up(db, "pgworkers", newer) == ["9001_second"]
    migrate.check_schema(db, "pgworkers", newer)


def test_a_schema_newer_than_the_code_is_refused_and_not_touched(db: psycopg.Connection[Any]) -> None:
    migrate.up(db, "pgworkers", [*migrate.known_migrations(), SECOND])
    before = tables(db)
    for refuse in (migrate.up, migrate.check_schema):
        with pytest.raises(SchemaOutOfDate, match=r"newer than this pgworkers.*9001_second") as caught:
            refuse(db, "pgworkers")
        assert caught.value.exit_code == 5
        assert f"serves code from migration 9001 on, and the newest one here is {NEWEST:04d}" in str(
            caught.value
        )
    assert migrate.status(db, "pgworkers")[-1].state == "unknown"
    assert tables(db) == before


def test_code_goes_on_with_a_newer_schema_that_serves_it(db: psycopg.Connection[Any]) -> None:
    newer = [*migrate.known_migrations(), ADDITIVE]
    assert migrate.describe_schema(db, "pgworkers") == "up to date"
    assert migrate.up(db, "pgworkers", newer) == ["9001_additive"]
    migrate.check_schema(db, "pgworkers")
    assert migrate.up(db, "pgworkers") == []
    assert (
        migrate.describe_schema(db, "pgworkers")
        == "newer than this pgworkers (9001_additive), which it still serves"
    )
    assert migrate.status(db, "pgworkers")[-1].state == "newer"
    # One more that serves the code of the additive one, and no older code: the oldest of both counts.
    migrate.up(db, "pgworkers", [*newer, later(9002, "wide", "SELECT;", serves=9001)])
    migrate.check_schema(db, "pgworkers", newer)
    with pytest.raises(SchemaOutOfDate, match=r"does not know 9002_wide"):
        migrate.check_schema(db, "pgworkers")


def test_a_migration_that_would_break_running_hosts_is_refused(db: psycopg.Connection[Any]) -> None:
    host = DatabaseHost(db, "pgworkers")
    host.register()
    migrate.up(db, "pgworkers", [*migrate.known_migrations(), ADDITIVE])  # serves them
    breaking = [
        *migrate.known_migrations(),
        ADDITIVE,
        later(9002, "breaking", "CREATE TABLE pgworkers.third ();"),
    ]
    script = migrate.render_pending(db, "pgworkers", breaking)
    with pytest.raises(SchemaOutOfDate) as caught:
        migrate.up(db, "pgworkers", breaking)
    assert (
        f"9002_breaking does not serve hosts that are running: box (pid 4711, newest migration {NEWEST:04d})"
        in str(caught.value)
    )
    with pytest.raises(
        psycopg.errors.RaiseException, match="9002_breaking does not serve hosts that are running"
    ):
        db.execute(script.encode())
    db.execute("ROLLBACK")
    assert "third" not in tables(db)
    db.execute("UPDATE pgworkers.host SET renewed_at = now() - interval '1 h'")
    assert migrate.up(db, "pgworkers", breaking) == ["9002_breaking"]


def test_a_schema_of_another_branch_is_refused(db: psycopg.Connection[Any]) -> None:
    """It has a migration that this code does not know, and lacks one that this code needs."""
    migrate.up(
        db, "pgworkers", [*migrate.known_migrations(), later(9002, "theirs", "SELECT;", serves=NEWEST)]
    )
    ours = [*migrate.known_migrations(), SECOND]
    for refuse in (migrate.up, migrate.check_schema, migrate.render_pending):
        with pytest.raises(SchemaOutOfDate, match=r"has 9002_theirs.*lacks 9001_second.*nothing was done"):
            refuse(db, "pgworkers", ours)
    assert "second" not in tables(db)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SELECT;",
        "--serves: 0001\n",
        "-- serves: 1\n",
        " -- serves: 0001\n",
        "-- serves: 9002\n",
        "-- serves: 0000\n",
    ],
)
def test_a_file_without_its_first_line_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"9001_odd: the first line must be `-- serves: NNNN`"):
        _ = Migration(9001, "9001_odd", text).oldest_supported


def test_a_migration_that_waits_for_a_lock_holds_up_no_other_session(
    dsn: str, db: psycopg.Connection[Any]
) -> None:
    """A reader keeps `job` locked. The hosts behind the migration get through, and a line names the reader. A second master
    waits for the first one, which keeps the lock on `migration`: taking turns, they would leave no room for others."""
    lines: list[list[str]] = [[], []]
    applied: list[list[str]] = []

    def migrate_up(said: list[str]) -> None:
        with connect.connect(Settings(), dsn, "boot") as conn:
            applied.append(
                migrate.up(conn, "pgworkers", [*migrate.known_migrations(), ADDITIVE], on_message=said.append)
            )

    threads = [threading.Thread(target=migrate_up, args=[said]) for said in lines]
    waits = "migration 9001_additive waits for a lock of "
    with psycopg.connect(dsn, application_name="a long report") as reader:
        found = reader.execute("SELECT pg_backend_pid(), count(*) FROM pgworkers.job").fetchone()
        assert found is not None
        threads[0].start()
        wait_for(lambda: lines[0], what="a line that names the reader")
        threads[1].start()
        assert lines[0][0].startswith(f"{waits}pid {found[0]} (a long report, idle in transaction, query ")
        db.execute("SET lock_timeout = '20s'")
        for _ in range(3):
            assert DatabaseHost(db, "pgworkers").enqueue()
        wait_for(lambda: lines[1], what="a line that names the first master")
        first = db.execute(
            "SELECT pid FROM pg_locks WHERE relation = 'pgworkers.migration'::regclass AND granted"
            " AND mode = 'ShareRowExclusiveLock'"
        ).fetchall()[0][0]
        assert lines[1][0].startswith(f"{waits}pid {first} (")
        assert applied == []
    for thread in threads:
        thread.join()
    assert sorted(applied) == [[], ["9001_additive"]]


def test_a_migration_that_never_gets_its_lock_gives_up(dsn: str, db: psycopg.Connection[Any]) -> None:
    with psycopg.connect(dsn) as reader:
        reader.execute("SELECT count(*) FROM pgworkers.job")
        with pytest.raises(
            DatabaseUnreachable, match=r"9001_additive did not get its locks.*it changed nothing"
        ):
            migrate.up(
                db,
                "pgworkers",
                [*migrate.known_migrations(), SECOND, replace(ADDITIVE, version=9002)],
                max_lock_wait=0,
            )
    assert "second" in tables(db), "the one before it stays"
    assert migrate.status(db, "pgworkers", [*migrate.known_migrations(), SECOND])[-1].state == "applied"


def test_the_holder_of_the_lock_is_reported_once_and_again_when_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lock_wait, "RETRY_PAUSE_SECONDS", 0.0)
    lines: list[str] = []
    retry = lock_wait.LockRetry(lines.append, 600)
    for pids in ([], [], [7], [7], [0, 8]):
        retry.blockers = [lock_wait.Blocker(pid, "", "active", 61.0, is_holder=True) for pid in pids]
        retry.pause("it", psycopg.errors.LockNotAvailable())
    assert [line.partition("; ")[0] for line in lines] == [
        "it waits for a lock of another session",
        "it waits for a lock of pid 7 (active, query 1m01s old)",
        "it waits for a lock of a prepared transaction (see pg_prepared_xacts) and pid 8 (active, query 1m01s old)",
    ]


def test_a_file_that_changed_after_it_was_applied_is_refused(db: psycopg.Connection[Any]) -> None:
    first = migrate.known_migrations()[0]
    changed = [
        replace(first, text=first.text + "\n-- one more line"),
        *migrate.known_migrations()[1:],
        SECOND,
    ]
    for refuse in (migrate.up, migrate.check_schema):
        with pytest.raises(SchemaOutOfDate, match="another version of 0001_initial"):
            refuse(db, "pgworkers", changed)
    assert "second" not in tables(db)
    assert migrate.status(db, "pgworkers", changed)[0].state == "changed"


def test_a_migration_that_fails_leaves_nothing_of_itself_and_those_before_it_stay(
    db: psycopg.Connection[Any],
) -> None:
    with pytest.raises(psycopg.errors.UndefinedFunction):
        migrate.up(db, "pgworkers", [*migrate.known_migrations(), SECOND, BROKEN])
    assert "second" in tables(db)
    assert "third" not in tables(db)
    assert (
        migrate.status(db, "pgworkers", [*migrate.known_migrations(), SECOND, BROKEN])[-1].state == "pending"
    )


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
        migrate.check_schema(conn, "jobs")
        assert migrate.up(conn, "jobs") == []
        assert DatabaseHost(conn, "jobs").enqueue()


def shape(conn: psycopg.Connection[Any], schema: str) -> list[tuple[Any, ...]]:
    """Every column, function and index of a schema, and what is recorded."""
    with conn.transaction():
        conn.execute("SET LOCAL search_path = pg_catalog")
        return conn.execute(
            "SELECT c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod) FROM pg_class c"
            "  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 WHERE c.relnamespace = to_regnamespace(%(s)s)"
            " UNION ALL SELECT p.proname, p.prosrc, array_to_string(p.proconfig, ' ') FROM pg_proc p"
            "  WHERE p.pronamespace = to_regnamespace(%(s)s)"
            " UNION ALL SELECT i.indexname, i.indexdef, '' FROM pg_indexes i WHERE i.schemaname = %(s)s"
            f" UNION ALL SELECT version::text, name || serves, checksum FROM {schema}.migration ORDER BY 1, 2, 3",
            {"s": schema},
        ).fetchall()


@pytest.mark.parametrize("count", [0, len(migrate.known_migrations()), len(migrate.known_migrations()) + 1])
def test_the_pending_script_does_what_up_does(
    server: Server, empty_dsn: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an empty database, and on one that lacks some: through a real psql, with settings that differ from our own."""
    known = [*migrate.known_migrations(), SECOND, THIRD]
    other = server.create()
    with (
        psycopg.connect(empty_dsn, autocommit=True) as conn,
        psycopg.connect(server.dsn(other), autocommit=True) as theirs,
    ):
        for one in (conn, theirs):
            if count:
                migrate.up(one, "jobs", known[:count])
        script = migrate.render_pending(theirs, "jobs", known)
        executed = statements_of(monkeypatch, conn, lambda: migrate.up(conn, "jobs", known))
        assert [one for one in executed if one not in script] == [], "up runs what the script does not"
        for setting in ("search_path = jobs", "DateStyle = SQL"):
            theirs.execute(f"ALTER DATABASE {other} SET {setting}")
        psql(server.dsn(other), script)
        assert shape(theirs, "jobs") == shape(conn, "jobs")
        migrate.check_schema(theirs, "jobs", known)
        assert migrate.up(theirs, "jobs", known) == []
        before = shape(theirs, "jobs")
        again = psql(server.dsn(other), script, code=3)
        assert ("this script was made for another state" if count else "already exists") in again
        assert shape(theirs, "jobs") == before, "a second time it changes nothing"
        assert (
            migrate.render_pending(theirs, "jobs", known)
            == "-- pgworkers: nothing is pending in the schema jobs.\n"
        )
    server.drop(other)


def statements_of(
    monkeypatch: pytest.MonkeyPatch, conn: psycopg.Connection[Any], work: Callable[[], object]
) -> list[str]:
    """Every statement that changes something or sets a timeout, as it was sent."""
    seen: list[str] = []
    execute = psycopg.Connection.execute

    def noted(self: psycopg.Connection[Any], query: Any, *args: Any, **options: Any) -> Any:
        if isinstance(query, bytes):
            seen.append(query.decode().strip().rstrip(";"))
        return execute(self, query, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Connection, "execute", noted)
        work()
    assert any("CREATE" in one for one in seen)
    return seen


def psql(dsn: str, script: str, code: int = 0) -> str:
    """What psql printed."""
    done = subprocess.run(
        ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", dsn],
        input=script, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stderr


def test_two_installations_in_one_database_know_nothing_of_each_other(db: psycopg.Connection[Any]) -> None:
    assert migrate.up(db, "order") == [migration.name for migration in migrate.known_migrations()]
    ours, theirs = DatabaseHost(db, "pgworkers"), DatabaseHost(db, "order")
    theirs.register()
    theirs.execute(set_idle_queues(theirs.id, ["a"]))
    for channel in ("pgworkers", "pgworkers_done", '"order"', "order_done", f'"{theirs.id}"'):
        db.execute(f"LISTEN {channel}")
    job_id = theirs.enqueue(args='{"a": 1}', unique_key="k")
    assert ours.claim() == []
    (job,) = theirs.claim()
    assert theirs.retry_job(job, delay_seconds=0.0) == "written"
    (job,) = theirs.claim()
    assert theirs.execute(cancel.cancel(job.id)) == "cancelling"
    assert theirs.finish_job(job, JobState.CANCELLED, verdict=Verdict.CANCELLED) == "written"
    assert theirs.job_view(job_id).state is JobState.CANCELLED
    assert theirs.notifications() == [
        (theirs.id, f"one:a:{theirs.id}"),
        ("order", "ready:a"),
        ("order", f"cancel:{job_id}"),
        ("order_done", str(job_id)),
    ]
    assert db.execute("SELECT count(*) FROM pgworkers.jobs").fetchone() == (0,)
    db.execute('DROP SCHEMA "order" CASCADE')
    migrate.check_schema(db, "pgworkers")
