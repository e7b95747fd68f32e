"""Archive: partitions ahead of time, and old ones dropped one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.desk import Desk

from pgworkers.job import archive
from pgworkers.job.state import State

OLD = """
    CREATE TABLE pgworkers.history_20200101 PARTITION OF pgworkers.history
       FOR VALUES FROM ('2020-01-01 00:00Z') TO ('2020-01-02 00:00Z')
"""


@pytest.fixture
def own(dsn: str, schema: str) -> Any:
    """These tests change the schema: they get a database of their own."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        desk = Desk(conn, schema)
        desk.register()
        yield desk


def partitions(desk: Desk) -> set[str]:
    rows = desk.conn.execute(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent IN"
        " ('pgworkers.history'::regclass, 'pgworkers.attempt'::regclass)"
    ).fetchall()
    return {row[0].removeprefix("pgworkers.") for row in rows}


@pytest.fixture
def today(own: Desk) -> Iterator[str]:
    """The day, the same to the end of the test: everything in it is one transaction, and so has one now()."""
    with own.conn.transaction(force_rollback=True):
        row = own.conn.execute("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')").fetchone()
        assert row is not None
        yield row[0]


def test_partitions_are_made_ahead_once(own: Desk, today: str) -> None:
    days = own.conn.execute(
        "SELECT (now() AT TIME ZONE 'UTC')::date - (min(applied_at) AT TIME ZONE 'UTC')::date FROM pgworkers.migration"
    ).fetchone()
    assert days is not None
    assert own.ask(archive.make_partitions(3)) == 2 * days[0], "the migration made those of its own day"
    before = partitions(own)
    assert own.ask(archive.make_partitions(5)) == 4
    assert len(partitions(own) - before) == 4
    assert own.ask(archive.make_partitions(5)) == 0


def test_what_ends_today_lies_in_todays_partition(own: Desk, today: str) -> None:
    job = own.run_one()
    own.end(job, State.DEAD, error="x")
    for table in ("history", "attempt"):
        row = own.conn.execute(f"SELECT tableoid::regclass::text FROM pgworkers.{table}").fetchone()
        assert row == (f"pgworkers.{table}_{today}",)


def test_old_partitions_are_named_and_dropped_one_by_one(own: Desk, today: str) -> None:
    past = {name for name in partitions(own) if name[-8:] < today}  # of a migration before midnight
    assert set(own.ask(archive.old_partitions(0.0))) == past
    own.conn.execute(OLD)
    assert own.ask(archive.old_partitions(100 * 365 * 86400.0)) == []
    assert own.ask(archive.old_partitions(86400.0)) == ["history_20200101"]
    assert own.ask(archive.drop("history_20200101"))
    assert not own.ask(archive.drop("history_20200101")), "another host was faster"
    assert own.ask(archive.old_partitions(86400.0)) == []


@pytest.mark.parametrize(
    "name", ["job", "history", "history_default", "history_20200101; DROP TABLE x", "queue"]
)
def test_nothing_else_can_be_dropped(own: Desk, name: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        own.ask(archive.drop(name))
    assert own.put()


def test_without_partitions_nothing_is_lost_and_the_default_one_takes_the_rows(own: Desk, today: str) -> None:
    for name in partitions(own) - {"history_default", "attempt_default"}:
        own.ask(archive.drop(name))
    job = own.run_one()
    assert own.end(job, State.DEAD, error="x") == "written"
    assert own.see(job.id).state is State.DEAD
    assert own.ask(archive.make_partitions(1)) == 2, (
        "today's cannot be made while the default one holds its rows"
    )


def test_a_queue_may_keep_its_jobs_for_a_shorter_time(own: Desk) -> None:
    own.conn.execute("INSERT INTO pgworkers.queue (name, retention) VALUES ('short', '0')")
    for name in ("short", "a"):
        own.put(queue=name)
        (job,) = own.take(queue=name)
        own.end(job)
    assert own.ask(archive.prune(3600.0, 7200.0, 10)) == 1
    assert own.conn.execute("SELECT queue FROM pgworkers.history").fetchall() == [("a",)]
    assert own.ask(archive.prune(0.0, 0.0, 10)) == 1


def test_dead_jobs_and_their_attempts_are_kept_longer_than_their_partition(own: Desk) -> None:
    made = [own.run_one() for _ in range(2)]
    with own.conn.transaction():  # one now(): both on one day
        own.end(made[0])
        own.end(made[1], State.DEAD, error="worth a look")
    day = own.conn.execute(
        "SELECT to_char(finished_at AT TIME ZONE 'UTC', 'YYYYMMDD') FROM pgworkers.history"
    ).fetchone()
    assert day is not None
    for name in ("attempt", "history"):
        assert own.ask(archive.drop(f"{name}_{day[0]}", 3600.0))
    assert own.conn.execute("SELECT id, state::text FROM pgworkers.history").fetchall() == [
        (made[1].id, "dead")
    ]
    assert own.conn.execute("SELECT job_id FROM pgworkers.attempt").fetchall() == [(made[1].id,)]
    assert own.ask(archive.prune(0.0, 3600.0, 10)) == 0
    assert own.ask(archive.prune_attempts(0.0, 10)) == 0, "its job is still there"
    assert own.ask(archive.prune(0.0, 0.0, 10)) == 1
    assert own.ask(archive.prune_attempts(0.0, 10)) == 1
