"""A duty goes on until nothing is left, and asks first whether it may."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from pgworkers.master.all_duties import make_duties
from support.database_host import DatabaseHost
from support.schedule_leader import PATIENT

from pgworkers.clock import monotonic
from pgworkers.events import DutyFailed, DutyPerformed, Event, EventBus, QueuesMeasured, RowsPurged
from pgworkers.job.claim import QueueCapacity, claim
from pgworkers.job.gauges import DEPTH_SLICE_ROWS, MIN_FIRST_SLICE_ROWS
from pgworkers.master.connection import ReconnectingConnection
from pgworkers.master.duties import (
    MIN_DUE_CHECK_SECONDS,
    NOTHING_DUE_INTERVAL_FACTOR,
    READ_REST_FACTOR,
    DutyRunner,
)
from pgworkers.master.duties import RESCUED_JOBS_PER_STATEMENT as RESCUE_BATCH
from pgworkers.master.leadership import Leadership
from pgworkers.master.scaling import share_cluster_workers
from pgworkers.postgres.statements import Query, Statement, run
from pgworkers.settings import Settings

Db = psycopg.Connection[Any]


def unreckoned() -> None:
    """By the database's clock alone: nothing was renewed here."""


def perform(dsn: str, duty: str, *, may_rescue: bool) -> int:
    async def once() -> int:
        line = ReconnectingConnection("duty", dsn, PATIENT, EventBus())
        try:
            duties = DutyRunner(str(uuid4()), line, EventBus(), PATIENT, lambda: may_rescue, unreckoned)
            return await duties.perform_completely(duty)
        finally:
            await line.close()

    return asyncio.run(once())


@pytest.mark.parametrize("something", [False, True])
def test_without_scheduled_jobs_the_duty_runs_less_often_until_notified(
    db: Db, dsn: str, something: bool
) -> None:
    if something:
        db.execute("SELECT pgworkers.enqueue('work', run_at => now() + interval '1 hour')")

    async def story() -> tuple[float, float]:
        line = ReconnectingConnection("duty", dsn, PATIENT, EventBus())
        duties = DutyRunner(str(uuid4()), line, EventBus(), PATIENT, lambda: True, unreckoned)
        look = duties.duties["check_due"]
        try:
            look.performed_at = began = monotonic()
            look.due_at = began + look.interval_seconds  # as the loop does before it performs
            await duties.perform("check_due")
            later = look.due_at - began
            duties.on_due_soon()
            return later, look.due_at - monotonic()
        finally:
            await line.close()

    later, heard = asyncio.run(story())
    every = PATIENT.promote_interval
    assert later == pytest.approx(every) if something else later >= NOTHING_DUE_INTERVAL_FACTOR * every
    assert heard <= MIN_DUE_CHECK_SECONDS, "a notification makes it due at once"


def test_a_long_backlog_is_counted_in_slices_and_reported_when_complete(db: Db, dsn: str) -> None:
    jobs, told = MIN_FIRST_SLICE_ROWS + 2 * DEPTH_SLICE_ROWS + 10, list[QueuesMeasured]()
    db.execute(f"INSERT INTO pgworkers.job (queue, task) SELECT 'a', 't' FROM generate_series(1, {jobs})")

    async def story() -> list[bool]:
        facts = EventBus()
        facts.subscribe(lambda fact: told.append(fact) if isinstance(fact, QueuesMeasured) else None)
        line = ReconnectingConnection("duty", dsn, PATIENT, facts)
        duties = DutyRunner(str(uuid4()), line, facts, PATIENT, lambda: True, unreckoned)
        duty, sooner = duties.duties["queue_depth"], []
        try:
            while not told:
                duty.due_at = monotonic() + 3600.0
                await duties.perform("queue_depth")
                sooner.append(duty.due_at < monotonic() + 3600.0 - READ_REST_FACTOR)
            return sooner
        finally:
            await line.close()

    assert asyncio.run(story()) == [True, True, True, False], "the first 500, two slices, the rest"
    assert [(one.queue, one.ready) for one in told[0].queues] == [("a", jobs)]


@pytest.mark.parametrize("how", ["late", "failed"])
def test_a_late_count_is_reported_as_it_is_and_a_failed_one_starts_over(
    db: Db, dsn: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    jobs, told = MIN_FIRST_SLICE_ROWS + 2 * DEPTH_SLICE_ROWS, list[QueuesMeasured]()
    db.execute(f"INSERT INTO pgworkers.job (queue, task) SELECT 'a', 't' FROM generate_series(1, {jobs})")

    async def story() -> int:
        facts = EventBus()
        facts.subscribe(lambda fact: told.append(fact) if isinstance(fact, QueuesMeasured) else None)
        line = ReconnectingConnection("duty", dsn, PATIENT, facts)
        duties = DutyRunner(str(uuid4()), line, facts, PATIENT, lambda: True, unreckoned)
        try:
            await duties.perform("queue_depth")
            if how == "late":
                monkeypatch.setattr("pgworkers.master.duties.MAX_DEPTH_COUNT_SECONDS", 0.0)
            else:
                db.execute("ALTER TABLE pgworkers.job RENAME TO away")
                assert await duties.perform("queue_depth") == 0
                db.execute("ALTER TABLE pgworkers.away RENAME TO job")
                assert await duties.perform("queue_depth") == 1, "it sees the queues again"
            await duties.perform("queue_depth")
            return told[0].queues[0].ready if told else 0
        finally:
            await line.close()

    assert asyncio.run(story()) == (MIN_FIRST_SLICE_ROWS + DEPTH_SLICE_ROWS if how == "late" else 0)


@pytest.mark.parametrize(("may_rescue", "left"), [(True, 0), (False, 2 * RESCUE_BATCH + 1)])
def test_one_sweep_rescues_all_jobs_of_a_lost_host_but_not_after_a_gap(
    db: Db, dsn: str, may_rescue: bool, left: int
) -> None:
    count = 2 * RESCUE_BATCH + 1
    db.execute("SELECT pgworkers.enqueue('work') FROM generate_series(1, %s)", [count])
    lost = str(uuid4())  # without a row of its own: gone at once
    held = run(db, "pgworkers", claim(lost, [QueueCapacity("default", count)], ["work"]))
    assert len(held) == count
    assert perform(dsn, "rescue", may_rescue=may_rescue) == count - left
    assert db.execute("SELECT count(*) FROM pgworkers.job WHERE state = 'running'").fetchone() == (left,)
    assert db.execute("SELECT count(*) FROM pgworkers.attempt").fetchone() == (count - left,)


@pytest.mark.parametrize(
    ("obstacle", "why"),
    [
        (
            "CREATE UNIQUE INDEX of_the_user ON pgworkers.job (unique_key) WHERE state <> 'running'",
            "duplicate key value violates unique constraint",
        ),
        (
            "ALTER TABLE pgworkers.job ADD CONSTRAINT of_the_user "
            "CHECK (unique_key IS DISTINCT FROM 'k' OR host IS NOT NULL) NOT VALID",
            "violates check constraint",
        ),
    ],
)
def test_a_thousand_are_rescued_and_the_one_with_a_conflict_ends_with_its_reason(
    dsn: str, obstacle: str, why: str
) -> None:
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("SELECT pgworkers.enqueue('work') FROM generate_series(1, 600)")
        db.execute("SELECT pgworkers.enqueue('work', unique_key => 'k')")
        db.execute("SELECT pgworkers.enqueue('work') FROM generate_series(1, 399)")
        assert (
            len(run(db, "pgworkers", claim(str(uuid4()), [QueueCapacity("default", 1000)], ["work"]))) == 1000
        )
        db.execute(
            "SELECT pgworkers.enqueue('other', unique_key => 'k')"
        )  # a newer one, as the user's index sees it
        db.execute(obstacle)
        assert perform(dsn, "rescue", may_rescue=True) == 1000, "one sweep"
        states = db.execute(
            "SELECT state::text, count(*) FROM pgworkers.jobs GROUP BY 1 ORDER BY 1"
        ).fetchall()
        assert states == [("dead", 1), ("ready", 1), ("scheduled", 999)]
        (error,) = db.execute("SELECT error FROM pgworkers.jobs WHERE state = 'dead'").fetchone() or ("",)
        assert error.startswith("host lost: its row is gone, and it cannot run again: ")
        assert why in error


def names() -> list[str]:
    settings, facts = Settings(), EventBus()
    return [
        *DutyRunner(
            str(uuid4()),
            ReconnectingConnection("duty", "", settings, facts),
            facts,
            settings,
            lambda: True,
            unreckoned,
        ).duties,
        "share_workers",
    ]


def test_purged_rows_are_reported(db: Db, dsn: str) -> None:
    db.execute(
        "INSERT INTO pgworkers.tick (schedule, scope, at)"
        " SELECT 'tidy', '', now() - make_interval(days => 300 + n) FROM generate_series(1, 3) n"
    )
    db.execute(
        "CREATE TABLE pgworkers.history_20200101 PARTITION OF pgworkers.history"
        " FOR VALUES FROM (false, '2020-01-01 00:00+00') TO (false, '2020-01-02 00:00+00')"
    )
    db.execute(
        "INSERT INTO pgworkers.idempotency_key (task, login, key, job_id, expires_at)"
        " SELECT 't', '', n::text, n, now() + make_interval(hours => n) FROM generate_series(-2, 3) n"
    )
    told: list[Event] = []

    async def story() -> None:
        facts = EventBus()
        facts.subscribe(told.append, RowsPurged)
        line = ReconnectingConnection("duty", dsn, PATIENT, facts)
        duties = DutyRunner(str(uuid4()), line, facts, PATIENT, lambda: True, unreckoned)
        try:
            for name in ("prune", "partitions"):
                await duties.perform_completely(name)
        finally:
            await line.close()

    asyncio.run(story())
    assert told == [
        RowsPurged("ticks", 2),
        RowsPurged("idempotency keys", 3),
        RowsPurged("partition history_20200101", 1),
    ]


@pytest.mark.parametrize("name", names())
def test_a_host_that_lost_its_session_performs_no_duty_after_reconnecting(
    db: Db, dsn: str, name: str
) -> None:
    """Each duty, on the session that holds the lock, is performed; after its loss nothing of it reaches the server.

    What reached it is what the server says the newer session last ran.
    """
    marker = Query(
        Statement("marker", "SELECT pg_backend_pid() AS pgworkers_marker"), {}, lambda rows: rows[0][0]
    )
    told: list[Event] = []

    async def story() -> tuple[int, int]:
        settings, facts = PATIENT, EventBus()
        facts.subscribe(told.append)
        line = ReconnectingConnection("leadership", dsn, settings, facts)
        leadership = Leadership(str(uuid4()), line, facts, settings, lambda _: True, unreckoned)
        duties = DutyRunner(str(uuid4()), leadership, facts, settings, lambda: True, unreckoned)
        duties.add(share_cluster_workers(leadership, EventBus(), 1.0, unreckoned))
        trying = asyncio.ensure_future(leadership.run())
        try:
            await leadership.until_leading()
            trying.cancel()  # it must not win again by itself
            await duties.perform(name)
            assert [type(fact) for fact in told if isinstance(fact, DutyPerformed | DutyFailed)] == [
                DutyPerformed
            ]
            first = await line.execute(marker)
            db.execute("SELECT pg_terminate_backend(%s, 10000)", [first])
            for _ in range(2):
                await duties.perform(name)  # the first finds the session dead, the second knows
            assert not leadership.is_leader
            await line.wait_for_backoff()
            second = await line.execute(marker)  # connected again, without the lock
            leadership.is_leader = True  # as if it had not noticed: the session decides, not the flag
            await duties.perform(name)
            return first, second
        finally:
            trying.cancel()
            row = db.execute(
                "SELECT array_agg(query) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            ).fetchone()
            last.extend(row[0] or [] if row else [])
            await line.close()

    last: list[str] = []
    first, second = asyncio.run(story())
    assert first != second
    assert [fact.is_connection_lost for fact in told if isinstance(fact, DutyFailed)] == [True, True, True], (
        "it reached the server without the lock"
    )
    assert len([fact for fact in told if isinstance(fact, DutyPerformed)]) == 1
    assert last == ["SELECT pg_backend_pid() AS pgworkers_marker"]


def test_a_partition_that_a_reader_holds_does_not_stop_the_others(db: Db, dsn: str) -> None:
    for table in ("history", "attempt"):
        db.execute(
            f"CREATE TABLE pgworkers.{table}_20200101 PARTITION OF pgworkers.{table}"
            " FOR VALUES FROM (false, '2020-01-01 00:00Z') TO (false, '2020-01-02 00:00Z')".encode()
        )
    old = "SELECT relname FROM pg_class WHERE relname IN ('history_20200101', 'attempt_20200101')"
    with psycopg.connect(dsn) as reading:
        reading.execute("SELECT count(*) FROM pgworkers.attempt")
        perform(dsn, "partitions", may_rescue=True)
        assert db.execute(old).fetchall() == [("attempt_20200101",)]
    perform(dsn, "partitions", may_rescue=True)
    assert db.execute(old).fetchall() == []


def test_an_item_that_fails_does_not_stop_the_other_items_of_its_duty(db: Db, dsn: str) -> None:
    """Neither of `prune`, whose first statements are refused, nor of `partitions`, of which one cannot be dropped."""
    db.execute(
        "INSERT INTO pgworkers.minute_statistics VALUES (now() - interval '5 years', 'a', 't', 'started', 1, 0, 0, '{1}')"
    )
    for table in ("history", "attempt"):
        db.execute(f"CREATE TABLE pgworkers.{table}_20200101 PARTITION OF pgworkers.{table}"
                   " FOR VALUES FROM (false, '2020-01-01Z') TO (false, '2020-01-02Z')")  # fmt: skip
    db.execute("CREATE VIEW public.of_the_user AS SELECT id FROM pgworkers.history_20200101")
    db.execute("ALTER TABLE pgworkers.operation RENAME TO away")
    told: list[Event] = []

    async def story() -> None:
        facts = EventBus()
        facts.subscribe(told.append)
        line = ReconnectingConnection("duty", dsn, PATIENT, facts)
        duties = DutyRunner(str(uuid4()), line, facts, PATIENT, lambda: True, unreckoned)
        try:
            await duties.perform_completely("prune")
            await duties.perform_completely("partitions")
        finally:
            await line.close()

    try:
        asyncio.run(story())
    finally:
        db.execute("ALTER TABLE pgworkers.away RENAME TO operation")
        db.execute("DROP VIEW public.of_the_user")
    failed = [(fact.duty, fact.error.split(":")[0]) for fact in told if isinstance(fact, DutyFailed)]
    assert failed == [("prune", "operations"), ("partitions", "history_20200101")]
    assert {fact.what for fact in told if isinstance(fact, RowsPurged)} == {
        "rows of statistics",
        "partition attempt_20200101",
    }


def test_old_marks_of_lanes_are_deleted_and_young_ones_kept(db: Db, dsn: str) -> None:
    db.execute(
        "INSERT INTO pgworkers.group_scan_start (queue, task, group_hash, priority, first_id, newest_id, valid_until)"
        " SELECT 'q', 't', n, 0, 1, 1, now() - interval '2 days' FROM generate_series(1, 5) n"
        " UNION ALL SELECT 'q', 't', 9, 0, 1, 1, now()"
    )
    assert perform(dsn, "prune", may_rescue=True) == 5
    assert db.execute("SELECT group_hash FROM pgworkers.group_scan_start").fetchall() == [(9,)]


def test_old_marks_of_limits_are_deleted_and_young_ones_kept(db: Db, dsn: str) -> None:
    db.execute(
        "INSERT INTO pgworkers.limit_scan_start (kind, name, since, older_running_ids)"
        " SELECT 'key', 'quiet ' || n, now() - interval '2 days', '{1}'::bigint[] FROM generate_series(1, 5) n"
        " UNION ALL SELECT 'key', 'busy', now(), '{}'"
    )
    assert perform(dsn, "prune", may_rescue=True) == 5
    assert db.execute("SELECT name FROM pgworkers.limit_scan_start").fetchall() == [("busy",)]


def test_a_locked_queue_delays_no_other_queue_and_is_named_once(db: Db, dsn: str) -> None:
    db.execute("INSERT INTO pgworkers.queue (name, cluster_workers) VALUES ('a', 2), ('b', 4)")
    mine = DatabaseHost(db, "pgworkers")
    db.execute(
        "INSERT INTO pgworkers.host (id, name, pid, app, version, queues, lease, renewed_at, started_at, state)"
        " VALUES (%s, 'h', 1, 'a', '1', '{a,b}', '1 h', now(), now(), 'running')",
        [mine.id],
    )
    emitted: list[Event] = []

    def granted() -> dict[str, int]:
        return dict(db.execute("SELECT queue, granted FROM pgworkers.cluster_slots").fetchall())

    async def story() -> None:
        events = EventBus()
        events.subscribe(emitted.append)
        connection = ReconnectingConnection("leadership", dsn, PATIENT, events)
        duties = make_duties(
            mine.id,
            connection,
            events,
            PATIENT,
            may_rescue=lambda: True,
            database_time=unreckoned,
            buffers=None,
        )
        try:
            with psycopg.connect(dsn) as operator:
                operator.execute("UPDATE pgworkers.queue SET workers = workers WHERE name = 'a'")
                for _ in range(3):
                    async with asyncio.timeout(PATIENT.statement_timeout / 2):
                        await duties.perform("split")
                assert granted() == {"b": 4}
            await duties.perform("split")
            assert granted() == {"a": 2, "b": 4}
        finally:
            await connection.close()

    asyncio.run(story())
    (failed,) = [fact for fact in emitted if isinstance(fact, DutyFailed)]
    assert failed.error.startswith("workers of queue a are not shared out: a session holds a lock on its row")
