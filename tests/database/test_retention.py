"""Retention: old partitions go without a lock that a finish would feel, and one that cannot go stops no other."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from support.database_host import DatabaseHost, blocked, until
from support.schedule_leader import PATIENT

from pgworkers.events import DutyFailed, Event, EventBus, StatementExecuted
from pgworkers.job import cancel, maintenance, requeue
from pgworkers.job.model import JobState
from pgworkers.master.connection import ReconnectingConnection
from pgworkers.master.duties import DutyRunner

Db = psycopg.Connection[Any]
#: Modes that do not conflict with the ROW EXCLUSIVE lock of a finish.
HARMLESS = {"AccessShareLock", "RowShareLock", "RowExclusiveLock", "ShareUpdateExclusiveLock"}


@pytest.fixture
def db(dsn: str) -> Any:
    """These tests change the schema: they get a database of their own."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn


def perform(dsn: str, duty: str) -> list[Event]:
    """One whole duty of a leader, and the facts that it emitted."""
    told: list[Event] = []

    async def once() -> None:
        facts = EventBus()
        facts.subscribe(told.append)
        line = ReconnectingConnection("duty", dsn, PATIENT, facts)
        try:
            await DutyRunner(
                str(uuid4()), line, facts, PATIENT, lambda: True, lambda: None
            ).perform_completely(duty)
        finally:
            await line.close()

    asyncio.run(once())
    return told


def make_day(db: Db, age: int) -> str:
    """Create the partitions of history and attempt for the day `age` days ago. Returns the suffix of their names."""
    (day,) = db.execute(
        "SELECT to_char(now() AT TIME ZONE 'UTC' - make_interval(days => %s), 'YYYYMMDD')", [age]
    ).fetchone() or ("",)
    for table in ("history", "attempt"):
        db.execute(
            f"CREATE TABLE pgworkers.{table}_{day} PARTITION OF pgworkers.{table}"
            f" FOR VALUES FROM (false, '{day} 00:00+00') TO (false, '{day} 24:00+00')".encode()
        )
    return str(day)


def fill(db: Db, day: str, dead: int, succeeded: int = 0) -> None:
    """Jobs that ended on that day, the dead ones with an attempt each."""
    for state, count in (("dead", dead), ("succeeded", succeeded)):
        db.execute(
            "INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, attempt, crashes,"
            " max_attempts, max_crashes, created_at, run_at, finished_at, errors)"
            " SELECT nextval(pg_get_serial_sequence('pgworkers.job', 'id')), %s, 'error', 0, 'a', 't', '{}', 1, 1, 0, 1, 1,"
            " d, d, d, '{}' FROM generate_series(1, %s), (SELECT (%s || ' 12:00+00')::timestamptz AS d) d",
            [state, count, day],
        )
    db.execute(
        "INSERT INTO pgworkers.attempt (job_id, attempt, lease, queue, task, verdict, finished_at)"
        " SELECT h.id, 1, 1, 'a', 't', 'error', h.finished_at FROM pgworkers.history h"
        " WHERE h.state = 'dead' AND h.finished_at = (%s || ' 12:00+00')::timestamptz",
        [day],
    )


def days(db: Db) -> set[str]:
    """The old daily partitions that are left."""
    rows = db.execute(
        "SELECT relname FROM pg_class WHERE relname ~ '^(history|attempt)_[0-9]{8}$'"
        " AND right(relname, 8) < to_char(now() AT TIME ZONE 'UTC' - interval '2 days', 'YYYYMMDD')"
    ).fetchall()
    return {row[0] for row in rows}


def count(db: Db, table: str) -> int:
    (found,) = db.execute(f"SELECT count(*) FROM pgworkers.{table}".encode()).fetchone() or (0,)
    return int(found)


def test_kept_rows_are_moved_without_an_exclusive_lock_on_the_table(db: Db, dsn: str) -> None:
    """Each row that is moved records the locks that its session holds on the tables that a finish writes."""
    fill(db, make_day(db, 20), dead=50, succeeded=50)
    db.execute("CREATE TABLE public.held (mode text)")
    db.execute(
        "CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.held SELECT l.mode FROM pg_locks l WHERE l.pid = pg_backend_pid()"
        " AND l.relation IN ('pgworkers.history'::regclass, 'pgworkers.attempt'::regclass); RETURN NULL; END $$"
    )
    for table in ("history", "attempt"):
        db.execute(
            f"CREATE TRIGGER note AFTER INSERT ON pgworkers.{table} FOR EACH ROW EXECUTE FUNCTION public.note()".encode()
        )
    perform(dsn, "partitions")
    assert days(db) == set(), "they are dropped"
    assert (count(db, "history"), count(db, "attempt")) == (50, 50), "the dead are kept"
    held = {row[0] for row in db.execute("SELECT DISTINCT mode FROM public.held").fetchall()}
    assert held <= HARMLESS, "rows were copied while finishes had to wait"
    assert (count(db, "history_default"), count(db, "attempt_default")) == (0, 0), "new partitions scan it"


def test_the_drop_of_a_partition_copies_no_row(db: Db) -> None:
    day = make_day(db, 20)
    fill(db, day, dead=50, succeeded=50)
    touched = (
        "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0) + n_tup_ins + n_tup_del + n_tup_upd)"
        " FROM pg_stat_xact_all_tables WHERE relname ~ '^history_(default|kept)$'"
    )
    with db.transaction():
        before = db.execute(touched).fetchone()
        assert db.execute(f"SELECT pgworkers.drop_partition('history_{day}')".encode()).fetchone() == (True,)
        assert db.execute(touched).fetchone() == before
    assert count(db, "history") == 0


def test_new_partitions_are_attached_without_stopping_finishes(db: Db) -> None:
    with db.transaction():
        assert db.execute("SELECT pgworkers.make_partitions(9)").fetchone() != (0,)
        rows = db.execute(
            "SELECT DISTINCT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation IN"
            " ('pgworkers.history'::regclass, 'pgworkers.attempt'::regclass)"
        ).fetchall()
    assert {row[0] for row in rows} <= HARMLESS


def test_a_default_partition_is_emptied_so_that_its_days_can_be_made(db: Db, dsn: str, schema: str) -> None:
    for name in db.execute(
        "SELECT relname FROM pg_class WHERE relname ~ '^(history|attempt)_[0-9]{8}$'"
    ).fetchall():
        db.execute("SELECT pgworkers.drop_partition(%s)", name)
    host = DatabaseHost(db, schema)
    host.register()
    job = host.enqueue_and_claim()
    host.finish_job(job, JobState.DEAD, error="x")
    assert (count(db, "history_default"), count(db, "attempt_default")) == (1, 1)
    perform(dsn, "partitions")
    assert (count(db, "history_default"), count(db, "attempt_default")) == (0, 0)
    assert host.job_view(job.id).state is JobState.DEAD
    assert db.execute("SELECT pgworkers.make_partitions(3)").fetchone() == (0,), "today's is made, too"
    perform(dsn, "prune")
    assert host.job_view(job.id).state is JobState.DEAD, "it is as old as it was"


def test_a_large_default_partition_is_not_scanned(db: Db) -> None:
    """Finishes of a day without a partition would wait for the scan."""
    db.execute("ALTER TABLE pgworkers.history_default ALTER errors SET STORAGE PLAIN")
    db.execute(
        "INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, attempt, crashes,"
        " max_attempts, max_crashes, created_at, run_at, finished_at, errors)"
        " SELECT n, 'dead', 'error', 0, 'a', 't', '{}', 1, 1, 0, 1, 1, d, d, d, ARRAY[repeat('x', 7000)]"
        " FROM generate_series(1, 4200) n, (SELECT '2019-01-01 12:00+00'::timestamptz AS d) d"
    )
    with db.transaction():
        assert db.execute("SELECT pgworkers.make_partitions(9)").fetchone() == (6,), "those of attempt"
        read = db.execute(
            "SELECT seq_tup_read FROM pg_stat_xact_all_tables WHERE relname = 'history_default'"
        ).fetchone()
    assert read == (0,)


def test_finishes_go_on_while_a_long_reader_refuses_the_drop(db: Db, dsn: str, schema: str) -> None:
    """A dump holds ACCESS SHARE on every partition. The drop is refused, reported once, and made after it."""
    fill(db, make_day(db, 20), dead=3)
    host = DatabaseHost(db, schema)
    host.register()
    left = days(db)
    with psycopg.connect(dsn) as dump:
        dump.execute("SELECT count(*) FROM pgworkers.history, pgworkers.attempt")
        failed = []
        for _ in range(3):
            failed += [fact.error for fact in perform(dsn, "partitions") if isinstance(fact, DutyFailed)]
            assert host.finish_job(host.enqueue_and_claim()) == "written"
        assert days(db) == left
    assert len(failed) == 6
    assert all("not dropped yet: a session holds a lock" in why for why in failed)
    assert not [fact for fact in perform(dsn, "partitions") if isinstance(fact, DutyFailed)]
    assert days(db) == set()


def test_a_partition_that_is_refused_is_not_read_again(db: Db, dsn: str) -> None:
    """And its refusal is reported once, however often it is tried."""
    fill(db, make_day(db, 20), dead=3)
    told: list[Event] = []

    async def story() -> list[int]:
        facts = EventBus()
        facts.subscribe(told.append)
        line = ReconnectingConnection("duty", dsn, PATIENT, facts)
        duties = DutyRunner(str(uuid4()), line, facts, PATIENT, lambda: True, lambda: None)
        walked = []
        try:
            for _ in range(3):
                before = len(told)
                await duties.perform_completely("partitions")
                ran = [fact.statement for fact in told[before:] if isinstance(fact, StatementExecuted)]
                walked.append(ran.count("partition_move_kept") - len(maintenance.DEFAULT_PARTITIONS))
        finally:
            await line.close()
        return walked

    with psycopg.connect(dsn) as dump:
        dump.execute("SELECT count(*) FROM pgworkers.history, pgworkers.attempt")
        assert asyncio.run(story()) == [4, 0, 0], "a portion and the end, of history and of attempt"
    assert len([fact for fact in told if isinstance(fact, DutyFailed)]) == 2


def test_no_duty_that_changes_tables_waits_longer_for_a_lock_than_a_finish_may_be_delayed(db: Db) -> None:
    """Three locks at most are waited for one after the other: the table, the partition, the default one."""
    rows = db.execute(
        "SELECT p.proname, (regexp_match(array_to_string(p.proconfig, ','), 'lock_timeout=(\\d+)ms'))[1]::int"
        " FROM pg_proc p WHERE p.pronamespace = 'pgworkers'::regnamespace"
        " AND p.proname IN ('make_partitions', 'move_kept_rows', 'drop_partition') ORDER BY 1"
    ).fetchall()
    assert [name for name, _ in rows] == ["drop_partition", "make_partitions", "move_kept_rows"]
    assert all(timeout is not None and 3 * timeout < 100 for _, timeout in rows)


def test_a_row_that_a_session_holds_delays_its_own_partition_and_no_other(db: Db, dsn: str) -> None:
    first, second = make_day(db, 30), make_day(db, 20)
    fill(db, first, dead=3)
    fill(db, second, dead=3)
    with psycopg.connect(dsn) as holder:
        holder.execute(f"SELECT FROM pgworkers.history_{first} LIMIT 1 FOR UPDATE".encode())
        failed = [fact.error for fact in perform(dsn, "partitions") if isinstance(fact, DutyFailed)]
        assert [why.split()[0] for why in failed] == [f"history_{first}"]
        assert days(db) == {f"history_{first}"}
    perform(dsn, "partitions")
    assert days(db) == set()
    assert count(db, "history") == 6


def test_a_job_that_is_requeued_while_it_is_moved_is_there_once(db: Db, dsn: str, schema: str) -> None:
    day = make_day(db, 20)
    fill(db, day, dead=1)
    (job,) = db.execute("SELECT id FROM pgworkers.history").fetchone() or (0,)
    host = DatabaseHost(db, schema)
    with psycopg.connect(dsn) as mover:
        mover.execute(f"SELECT pgworkers.move_kept_rows('history_{day}', '90 days', 0, 10)".encode())
        asked = host.in_thread(requeue.requeue([job]))
        with psycopg.connect(dsn, autocommit=True) as watcher:
            while (
                not asked.done()
                and not watcher.execute(
                    "SELECT 1 FROM pg_locks WHERE NOT granted AND pid = %s", [db.info.backend_pid]
                ).fetchone()
            ):
                pass
    assert [one.outcome for one in asked.result(60)] == ["changing"]
    assert [one.outcome for one in host.execute(requeue.requeue([job]))] == ["requeued"]
    assert host.states() == [(job, "ready")]


@pytest.mark.parametrize("moved", ["history", "attempt"])
def test_a_job_that_is_forgotten_while_it_is_moved_leaves_nothing_behind(
    db: Db, dsn: str, schema: str, moved: str
) -> None:
    day = make_day(db, 20)
    fill(db, day, dead=2)
    jobs = [job for (job,) in db.execute("SELECT id FROM pgworkers.history ORDER BY id")]
    assert count(db, "attempt") == 2
    host = DatabaseHost(db, schema)
    with psycopg.connect(dsn) as mover, psycopg.connect(dsn, autocommit=True) as watcher:
        mover.execute(f"SELECT pgworkers.move_kept_rows('{moved}_{day}', '90 days', 0, 1)".encode())
        asked = host.in_thread(cancel.purge_dead(jobs))
        until(lambda: asked.done() or blocked(watcher, db))
        mover.commit()
    assert asked.result(60) == jobs
    assert (count(db, "history"), count(db, "attempt")) == (0, 0)
    traces = db.execute("SELECT verb, job_id FROM pgworkers.operation ORDER BY job_id").fetchall()
    assert traces == [("forget", job) for job in jobs]


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "Pacific/Chatham"])
def test_the_bounds_of_a_partition_are_days_of_utc_whatever_the_session_says(db: Db, zone: str) -> None:
    for style in ("SQL, DMY", "German", "Postgres, MDY"):
        db.execute(
            "SELECT set_config('TimeZone', %s, false), set_config('DateStyle', %s, false)", [zone, style]
        )
        db.execute(
            "SELECT pgworkers.drop_partition(relname) FROM pg_class WHERE relname ~ '^history_[0-9]{8}$'"
        )
        db.execute("SELECT pgworkers.make_partitions(8)")
        db.execute("SELECT set_config('TimeZone', 'UTC', false), set_config('DateStyle', 'ISO', false)")
        rows = db.execute(
            "SELECT relname, pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname ~ '^history_[0-9]{8}$'"
        ).fetchall()
        assert len(rows) == 9
        for name, bound in rows:
            day = f"{name[8:12]}-{name[12:14]}-{name[14:]}"
            assert bound.startswith(f"FOR VALUES FROM (false, '{day} 00:00:00+00') TO (false, '"), bound
