"""Archive: partitions ahead of time, and old ones dropped one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from support.database_host import DatabaseHost

from pgworkers.job import cancel, maintenance, queues
from pgworkers.job.model import JobState

OLD = """
    CREATE TABLE pgworkers.history_20200101 PARTITION OF pgworkers.history
       FOR VALUES FROM (false, '2020-01-01 00:00Z') TO (false, '2020-01-02 00:00Z')
"""

#: Tables that are not daily partitions.
SPECIAL = {f"{table}_{which}" for table in ("history", "attempt") for which in ("default", "kept")}


@pytest.fixture
def own(dsn: str, schema: str) -> Any:
    """These tests change the schema: they get a database of their own."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        host = DatabaseHost(conn, schema)
        host.register()
        yield host


def partitions(host: DatabaseHost) -> set[str]:
    rows = host.conn.execute(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent IN"
        " ('pgworkers.history'::regclass, 'pgworkers.attempt'::regclass)"
    ).fetchall()
    return {row[0].removeprefix("pgworkers.") for row in rows}


@pytest.fixture
def today(own: DatabaseHost) -> Iterator[str]:
    """The day, the same to the end of the test: everything in it is one transaction, and so has one now()."""
    with own.conn.transaction(force_rollback=True):
        row = own.conn.execute("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')").fetchone()
        assert row is not None
        yield row[0]


def test_partitions_are_made_ahead_once(own: DatabaseHost, today: str) -> None:
    days = own.conn.execute(
        "SELECT (now() AT TIME ZONE 'UTC')::date - (min(applied_at) AT TIME ZONE 'UTC')::date FROM pgworkers.migration"
    ).fetchone()
    assert days is not None
    assert own.execute(maintenance.make_partitions(3)) == 2 * days[0], (
        "the migration made those of its own day"
    )
    before = partitions(own)
    assert own.execute(maintenance.make_partitions(5)) == 4
    assert len(partitions(own) - before) == 4
    assert own.execute(maintenance.make_partitions(5)) == 0


def test_what_ends_today_lies_in_todays_partition(own: DatabaseHost, today: str) -> None:
    job = own.enqueue_and_claim()
    own.finish_job(job, JobState.DEAD, error="x")
    for table in ("history", "attempt"):
        row = own.conn.execute(f"SELECT tableoid::regclass::text FROM pgworkers.{table}").fetchone()
        assert row == (f"pgworkers.{table}_{today}",)


def test_old_partitions_are_named_and_dropped_one_by_one(own: DatabaseHost, today: str) -> None:
    past = {name for name in partitions(own) - SPECIAL if name[-8:] < today}  # of a migration before midnight
    assert set(own.execute(maintenance.old_partitions(0.0))) == past
    own.conn.execute(OLD)
    assert own.execute(maintenance.old_partitions(100 * 365 * 86400.0)) == []
    assert own.execute(maintenance.old_partitions(86400.0)) == ["history_20200101"]
    assert own.execute(maintenance.drop_partition("history_20200101"))
    assert not own.execute(maintenance.drop_partition("history_20200101")), "another host was faster"
    assert own.execute(maintenance.old_partitions(86400.0)) == []


@pytest.mark.parametrize(
    "name", ["job", "history", "history_default", "history_20200101; DROP TABLE x", "queue"]
)
def test_nothing_else_can_be_dropped(own: DatabaseHost, name: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        own.execute(maintenance.drop_partition(name))
    assert own.enqueue()


def test_without_partitions_nothing_is_lost_and_the_default_one_takes_the_rows(
    own: DatabaseHost, today: str
) -> None:
    for name in partitions(own) - SPECIAL:
        own.execute(maintenance.drop_partition(name))
    job = own.enqueue_and_claim()
    assert own.finish_job(job, JobState.DEAD, error="x") == "written"
    assert own.job_view(job.id).state is JobState.DEAD
    assert own.execute(maintenance.make_partitions(1)) == 2, (
        "today's cannot be made while the default one holds its rows"
    )


def test_a_queue_may_keep_its_jobs_for_a_shorter_time(own: DatabaseHost) -> None:
    own.conn.execute("INSERT INTO pgworkers.queue (name, retention) VALUES ('short', '0')")
    for name in ("short", "a"):
        own.enqueue(queue=name)
        (job,) = own.claim(queue=name)
        own.finish_job(job)
    assert prune(own, 3600.0, 7200.0) == 1
    assert own.conn.execute("SELECT queue FROM pgworkers.history").fetchall() == [("a",)]
    assert prune(own, 0.0, 0.0) == 0, "what is kept for the longest time goes with its partition"


def prune(host: DatabaseHost, retention: float, dead: float) -> int:
    """What the duty does: both walks over history, in portions of five rows, to their ends."""
    total = 0
    for kept in (False, True):
        step = host.execute(maintenance.prune_history(retention, dead, 5, kept=kept))
        total += step.changed_rows
        while step.next_key is not None:
            step = host.execute(maintenance.prune_history(retention, dead, 5, step.next_key, kept=kept))
            total += step.changed_rows
    return total


def keep(host: DatabaseHost, **retentions: float | None) -> None:
    """How many seconds each queue keeps its finished jobs, as the app declares it."""
    host.execute(queues.declare_queues(list(retentions), dict.fromkeys(retentions), retentions))


def ended(host: DatabaseHost, name: str, days: float, state: JobState = JobState.SUCCEEDED) -> int:
    """A job that ended `days` ago in this queue, after an attempt that failed."""
    host.enqueue(queue=name)
    (job,) = host.claim(queue=name)
    host.retry_job(job, delay_seconds=0.0)
    (job,) = host.claim(queue=name)
    host.finish_job(job, state)
    for table, column in (("history", "id"), ("attempt", "job_id")):
        host.conn.execute(
            f"UPDATE pgworkers.{table} SET finished_at = now() - make_interval(secs => %s) WHERE {column} = %s",
            [days * 86400.0, job.id],
        )
    return job.id


def kept(host: DatabaseHost) -> tuple[set[int], set[int]]:
    """The jobs in history, and those that have attempts."""
    found = [
        host.conn.execute(f"SELECT {what}").fetchall()
        for what in ("id FROM pgworkers.history", "DISTINCT job_id FROM pgworkers.attempt")
    ]
    return {row[0] for row in found[0]}, {row[0] for row in found[1]}


@pytest.mark.parametrize("set_by", ["app", "operator"])
def test_a_queue_keeps_its_jobs_longer_or_shorter_than_the_setting(own: DatabaseHost, set_by: str) -> None:
    day = 86400.0
    if set_by == "app":
        keep(own, long=30 * day, short=1 * day)
    else:
        keep(own, long=2 * day, short=40 * day)
        assert own.execute(queues.set_retention("long", 30 * day))
        assert own.execute(queues.set_retention("short", 1 * day))
    ids = {(name, age): ended(own, name, age) for name in ("long", "short", "a") for age in (0, 3, 20, 40)}
    own.execute(maintenance.move_kept_rows("history_default", 0.0, 1000))  # days without a partition
    prune(own, 14 * day, 90 * day)
    wanted = {ids[key] for key in (("long", 0), ("long", 3), ("long", 20), ("short", 0), ("a", 0), ("a", 3))}
    assert kept(own) == (wanted, wanted), "and their attempts with them"


def test_a_partition_stays_as_long_as_the_longest_retention(own: DatabaseHost, today: str) -> None:
    day = 86400.0
    own.conn.execute(
        "DO $$ DECLARE day date := (now() AT TIME ZONE 'UTC')::date - 20; BEGIN EXECUTE format("
        "'CREATE TABLE pgworkers.history_%s PARTITION OF pgworkers.history FOR VALUES FROM (false, %L) TO (false, %L)',"
        " to_char(day, 'YYYYMMDD'), day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC'); END $$"
    )
    own.execute(queues.declare_queues(["long"]))
    assert len(own.execute(maintenance.old_partitions(14 * day))) == 1
    own.execute(queues.set_retention("long", 30 * day))
    assert own.execute(maintenance.old_partitions(14 * day)) == []
    own.execute(queues.set_retention("long", 15 * day))
    assert len(own.execute(maintenance.old_partitions(14 * day))) == 1
    own.execute(queues.set_retention("long", None))
    keep(own, long=30 * day)
    assert own.execute(maintenance.old_partitions(14 * day)) == []


def test_dead_jobs_of_a_queue_with_a_short_retention_are_kept_as_dead_ones_are(own: DatabaseHost) -> None:
    keep(own, short=0.0, long=100 * 86400.0)
    dead = ended(own, "short", 1, JobState.DEAD), ended(own, "long", 95, JobState.DEAD)
    ended(own, "short", 91, JobState.DEAD)
    own.execute(maintenance.move_kept_rows("history_default", 0.0, 1000))  # days without a partition
    prune(own, 14 * 86400.0, 90 * 86400.0)
    assert kept(own) == (set(dead), set(dead))


@pytest.mark.parametrize("retention", ["-1 day", "36526 days", "1000 years"])
def test_a_retention_that_cannot_be_is_refused(own: DatabaseHost, retention: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        own.conn.execute("INSERT INTO pgworkers.queue (name, retention) VALUES ('a', %s)", [retention])


def test_dead_jobs_and_their_attempts_are_kept_longer_than_their_partition(own: DatabaseHost) -> None:
    made = [own.enqueue_and_claim() for _ in range(2)]
    with own.conn.transaction():  # one now(): both on one day
        own.finish_job(made[0])
        own.finish_job(made[1], JobState.DEAD, error="worth a look")
    day = own.conn.execute(
        "SELECT to_char(finished_at AT TIME ZONE 'UTC', 'YYYYMMDD') FROM pgworkers.history"
    ).fetchone()
    assert day is not None
    for name in ("attempt", "history"):
        assert retire(own, f"{name}_{day[0]}", 3600.0)
    assert own.conn.execute("SELECT id, state::text FROM pgworkers.history").fetchall() == [
        (made[1].id, "dead")
    ]
    assert own.conn.execute("SELECT job_id FROM pgworkers.attempt").fetchall() == [(made[1].id,)]
    assert prune(own, 0.0, 3600.0) == 0
    assert own.execute(maintenance.prune_attempts(0.0, 10)).changed_rows == 0, "its job is still there"
    assert prune(own, 0.0, 0.0) == 1
    assert own.conn.execute("SELECT count(*) FROM pgworkers.attempt").fetchone() == (0,), "they go with it"


def retire(host: DatabaseHost, name: str, dead: float = 0.0) -> bool | None:
    """What the duty does: move what outlives the partition, in portions of one row, then drop it."""
    step = host.execute(maintenance.move_kept_rows(name, dead, 1))
    while step.next_key is not None:
        step = host.execute(maintenance.move_kept_rows(name, dead, 1, step.next_key))
    return host.execute(maintenance.drop_partition(name))


@contextmanager
def reader(dsn: str, table: str) -> Iterator[None]:
    """A session that has read this table and keeps its transaction open."""
    with psycopg.connect(dsn) as conn:
        conn.execute(f"SELECT count(*) FROM pgworkers.{table}".encode())
        yield


def test_a_partition_that_a_reader_holds_is_left_to_the_next_call(own: DatabaseHost, dsn: str) -> None:
    own.conn.execute(OLD)
    own.conn.execute("SET lock_timeout = 0; SET statement_timeout = '5s'")
    with reader(dsn, "history"):
        assert not own.execute(maintenance.drop_partition("history_20200101"))
    assert own.execute(maintenance.old_partitions(86400.0)) == ["history_20200101"]
    assert own.execute(maintenance.drop_partition("history_20200101"))


def test_a_table_that_a_reader_holds_does_not_stop_the_other(own: DatabaseHost, dsn: str) -> None:
    for name in partitions(own) - SPECIAL:
        own.execute(maintenance.drop_partition(name))
    own.conn.execute("SET lock_timeout = 0; SET statement_timeout = '5s'")
    with reader(dsn, "history"):
        assert own.execute(maintenance.make_partitions(1)) == 2
    assert {name[:8] for name in partitions(own)} == {"attempt_", "history_"}
    assert own.execute(maintenance.make_partitions(1)) == 2


@pytest.mark.parametrize("way", ["prune", "drop"])
def test_a_job_that_another_waits_for_is_kept(own: DatabaseHost, way: str) -> None:
    own.conn.execute(OLD)
    keep(own, a=0.0)
    parent, other = own.enqueue_and_claim(), own.enqueue_and_claim()
    child = own.enqueue("child", after=(parent.id,), on_failed="wait")
    for job in (parent, other):
        own.finish_job(job, JobState.DEAD)
    own.conn.execute("UPDATE pgworkers.history SET finished_at = '2020-01-01 12:00Z'")

    def clean() -> None:
        if way == "drop":
            assert retire(own, "history_20200101")
        else:
            prune(own, 3600.0, 0.0)

    clean()
    assert own.conn.execute("SELECT id FROM pgworkers.history").fetchall() == [(parent.id,)]
    own.conn.execute("DELETE FROM pgworkers.dependency WHERE job_id = %s", [child])
    assert prune(own, 3600.0, 0.0) == 1


def test_an_operator_cannot_forget_a_job_that_another_waits_for(own: DatabaseHost) -> None:
    parent, other = own.enqueue_and_claim(), own.enqueue_and_claim()
    child = own.enqueue("child", after=(parent.id,), on_failed="wait")
    for job in (parent, other):
        own.finish_job(job, JobState.DEAD)
    assert own.execute(cancel.purge_dead([parent.id, other.id])) == [other.id]
    own.conn.execute("SELECT pgworkers.cancel(%s)", [child])
    assert own.execute(cancel.purge_dead([parent.id])) == [parent.id]
