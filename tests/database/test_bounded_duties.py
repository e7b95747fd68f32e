"""Every duty of the leader reads a bounded number of pages in one statement, however much it has to pass by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from support.schedule_leader import PATIENT

from pgworkers.clock import monotonic
from pgworkers.events import DutyPerformed, EventBus
from pgworkers.job import batches, gauges, hosts, maintenance, operations, requests
from pgworkers.job.maintenance import due_duties
from pgworkers.limits import concurrency
from pgworkers.master.connection import ReconnectingConnection
from pgworkers.master.duties import BATCHES_PER_STATEMENT, DUTY_ROWS_PER_STATEMENT, DutyRunner
from pgworkers.master.leadership import Leadership
from pgworkers.observe import statistics
from pgworkers.postgres.session_settings import HOST_PLANNER_SETTINGS
from pgworkers.postgres.statements import Query
from pgworkers.schedule import fire

Db = psycopg.Connection[Any]
DAY = 86400.0
HISTORY = """
    INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, attempt, crashes,
                                   max_attempts, max_crashes, created_at, run_at, finished_at, errors, kept)
    SELECT n, {state}, 'error', 0, 'a', 't', '{{{{}}}}', 1, 1, 0, 1, 1, now(), now(), now() - interval '20 days',
           '{{{{}}}}', {kept}
      FROM generate_series({first}, {last}) n
"""
#: A duty's statement, and rows that it must pass by, or of which it may change no more than a portion.
MANY_ROWS: dict[str, tuple[Callable[[], Query[Any]], str]] = {
    "batches": (
        lambda: batches.settle_open_batches(BATCHES_PER_STATEMENT),
        """WITH made AS (INSERT INTO pgworkers.batch (total) SELECT 1 FROM generate_series({first}, {last}) RETURNING id)
           INSERT INTO pgworkers.job (queue, task, batch_id) SELECT 'a', 't', id FROM made""",
    ),
    "finished jobs": (
        lambda: maintenance.prune_history(30 * DAY, 90 * DAY, DUTY_ROWS_PER_STATEMENT),
        "INSERT INTO pgworkers.queue (name, retention) VALUES ('short', '1 h') ON CONFLICT DO NOTHING;"
        + HISTORY.format(state="'succeeded'", kept="false", first="{first}", last="{last}"),
    ),
    "finished jobs that were kept": (
        lambda: maintenance.prune_history(14 * DAY, 90 * DAY, DUTY_ROWS_PER_STATEMENT, kept=True),
        HISTORY.format(state="'dead'", kept="true", first="{first}", last="{last}"),
    ),
    "attempts": (
        lambda: maintenance.prune_attempts(14 * DAY, DUTY_ROWS_PER_STATEMENT),
        HISTORY.format(state="'dead'", kept="true", first="{first}", last="{last}")
        + """;INSERT INTO pgworkers.attempt (job_id, attempt, lease, queue, task, verdict, finished_at, kept)
              SELECT id, 1, 1, 'a', 't', 'error', finished_at, true FROM pgworkers.history WHERE id >= {first}""",
    ),
    "rows to keep": (
        lambda: maintenance.move_kept_rows("history_19990101", 90 * DAY, DUTY_ROWS_PER_STATEMENT),
        "CREATE TABLE IF NOT EXISTS pgworkers.history_19990101 (LIKE pgworkers.history INCLUDING ALL);"
        + HISTORY.format(state="'succeeded'", kept="false", first="{first}", last="{last}").replace(
            ".history ", ".history_19990101 "
        ),
    ),
    "attempts to keep": (
        lambda: maintenance.move_kept_rows("attempt_19990101", 90 * DAY, DUTY_ROWS_PER_STATEMENT),
        "CREATE TABLE IF NOT EXISTS pgworkers.attempt_19990101 (LIKE pgworkers.attempt INCLUDING ALL);"
        + HISTORY.format(state="'dead'", kept="false", first="{first}", last="{last}")
        + """;INSERT INTO pgworkers.attempt_19990101 (job_id, attempt, lease, queue, task, verdict, finished_at)
              SELECT id, 1, 1, 'a', 't', 'error', finished_at FROM pgworkers.history WHERE id >= {first}""",
    ),
    "ticks": (
        lambda: fire.prune_ticks(14 * DAY, DUTY_ROWS_PER_STATEMENT),
        """INSERT INTO pgworkers.tick (schedule, scope, at)
           SELECT 's' || n, '', now() - interval '20 days' FROM generate_series({first}, {last}) n""",
    ),
    "requests": (
        lambda: requests.prune_requests(DUTY_ROWS_PER_STATEMENT),
        "INSERT INTO pgworkers.request (host, kind) SELECT gen_random_uuid(), 'stack' FROM generate_series({first}, {last})",
    ),
    "operations": (
        lambda: operations.prune_operations(90 * DAY, DUTY_ROWS_PER_STATEMENT),
        "INSERT INTO pgworkers.operation (verb, job_id) SELECT 'cancel', n FROM generate_series({first}, {last}) n",
    ),
    "scan starts of limits": (
        lambda: concurrency.prune_limit_scan_starts(DAY, DUTY_ROWS_PER_STATEMENT),
        """INSERT INTO pgworkers.limit_scan_start (kind, name, since, older_running_ids)
           SELECT 'key', 'k' || n, now() - interval '2 days' * mod(n, 2), '{{}}' FROM generate_series({first}, {last}) n""",
    ),
    "finished batches": (
        lambda: batches.prune_batches(14 * DAY, DUTY_ROWS_PER_STATEMENT),
        "INSERT INTO pgworkers.batch (total, finished_at) SELECT 1, now() FROM generate_series({first}, {last})",
    ),
    "statistics": (
        lambda: statistics.prune(statistics.STATISTICS_RETENTION_SECONDS, DUTY_ROWS_PER_STATEMENT),
        """INSERT INTO pgworkers.minute_statistics SELECT now(), 'a', 't' || n, 'started', 1, 0, 0, '{{1}}'
             FROM generate_series({first}, {last}) n""",
    ),
    "hosts": (
        lambda: hosts.prune_hosts(DUTY_ROWS_PER_STATEMENT),
        """WITH made AS (INSERT INTO pgworkers.host (id, name, pid, app, version, queues, lease, renewed_at)
                         SELECT gen_random_uuid(), 'box', 1, 'app.py', '1', '{{}}', '1 s', now() - interval '1 day'
                           FROM generate_series({first}, {last}) RETURNING id)
           INSERT INTO pgworkers.job (queue, task, state, host, lease) SELECT 'a', 't', 'running', id, 1 FROM made""",
    ),
    "strangers": (
        lambda: gauges.unknown_tasks(["a"]),
        "INSERT INTO pgworkers.job (queue, task) SELECT 'a', 't' || n FROM generate_series({first}, {last}) n",
    ),
    "promote": (
        lambda: maintenance.promote_due(DUTY_ROWS_PER_STATEMENT),
        """INSERT INTO pgworkers.job (queue, task, state, run_at)
           SELECT 'a', 't', 'scheduled', now() + interval '1 day' FROM generate_series({first}, {last})""",
    ),
    "expire": (
        lambda: maintenance.expire_jobs(DUTY_ROWS_PER_STATEMENT),
        """INSERT INTO pgworkers.job (queue, task, expires_at)
           SELECT 'a', 't', now() + interval '1 day' FROM generate_series({first}, {last})""",
    ),
    "look": (
        due_duties,
        """WITH made AS (INSERT INTO pgworkers.batch (total) SELECT 1 FROM generate_series({first}, {last}) RETURNING id)
           INSERT INTO pgworkers.job (queue, task, state, run_at, expires_at)
           SELECT 'a', 't', 'scheduled', now() + interval '1 day', now() + interval '1 day' FROM made""",
    ),
}


@pytest.fixture
def db(dsn: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SET TimeZone = 'UTC'")
        yield conn


@pytest.fixture
def leading(dsn: str) -> Any:
    """A session that plans as the leader's does."""
    options = " ".join(f"-c {name}={value}" for name, value in HOST_PLANNER_SETTINGS.items())
    with psycopg.connect(dsn, autocommit=True, options=options) as conn:
        yield conn


def blocks(db: Db, query: Query[Any], *, generic: bool) -> int:
    """How many pages a statement touches, its functions included, planned for its values or for any."""
    with db.transaction(force_rollback=True):
        if generic:
            text, names = query.statement.numbered("pgworkers")
            db.execute(b"PREPARE planned AS " + text)
            values = [sql.Literal(cast("dict[str, Any]", query.params)[name]) for name in names]
            given = sql.SQL("({})").format(sql.SQL(", ").join(values)) if values else sql.SQL("")
            found = db.execute(
                sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE planned {}").format(given)
            )
        else:
            text = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query.statement.render("pgworkers")
            found = db.execute(text, query.params)
        (plan,) = found.fetchone() or ([],)
        if generic:
            db.execute("DEALLOCATE planned")
    root = plan[0]["Plan"]
    return int(root["Shared Hit Blocks"] + root["Shared Read Blocks"])


def reads(db: Db, leading: Db, what: str, first: int, last: int) -> list[int]:
    """The pages that a statement reads after rows `first` to `last` were inserted: planned before that, and after a vacuum.

    Each in an operator's session, and as the leading session plans it.
    """
    make, rows = MANY_ROWS[what]
    for statement in rows.format(first=first, last=last).split(";"):
        db.execute(cast("Any", statement))
    read = [blocks(db, make(), generic=False), blocks(leading, make(), generic=True)]
    db.execute("VACUUM ANALYZE")
    return [*read, blocks(db, make(), generic=False), blocks(leading, make(), generic=True)]


def compare(db: Db, leading: Db, what: str, many: int, deeper: int) -> None:
    """More rows cost deeper indexes, and no more than that: a small factor."""
    db.execute("VACUUM ANALYZE")
    few = max(reads(db, leading, what, 1, 2000))
    assert max(reads(db, leading, what, 2001, many)) < deeper * few + 100, (
        "it reads more where there is more to pass by"
    )


@pytest.mark.parametrize("what", MANY_ROWS)
def test_a_statement_of_a_duty_reads_no_more_with_many_rows(db: Db, leading: Db, what: str) -> None:
    compare(db, leading, what, 20_000, 4)


def test_the_leader_links_a_portion_of_new_followers_without_reading_all_of_them(db: Db, leading: Db) -> None:
    followers = 20 * DUTY_ROWS_PER_STATEMENT
    db.execute("INSERT INTO pgworkers.job (id, queue, task) VALUES (0, 'a', 't')")
    db.execute(
        "INSERT INTO pgworkers.job (queue, task, state, run_at)"
        f" SELECT 'a', 't', 'scheduled', pgworkers.far_future() FROM generate_series(1, {followers})".encode()
    )
    db.execute(
        "INSERT INTO pgworkers.dependency (parent_id, job_id, on_failed)"
        " SELECT 0, id, 'wait' FROM pgworkers.job WHERE state = 'scheduled'"
    )
    db.execute("VACUUM ANALYZE pgworkers.dependency")
    read = (
        "SELECT seq_tup_read + idx_tup_fetch + pg_stat_get_xact_tuples_returned('pgworkers.dependency_new'::regclass)"
        " FROM pg_stat_xact_all_tables WHERE relname = 'dependency'"
    )
    with leading.transaction():
        (before,) = leading.execute(read).fetchone() or (0,)
        assert leading.execute(
            f"SELECT pgworkers.link_dependencies({DUTY_ROWS_PER_STATEMENT})".encode()
        ).fetchone() == (DUTY_ROWS_PER_STATEMENT,)
        (after,) = leading.execute(read).fetchone() or (0,)
    assert after - before < followers, "it read all that wait"
    while leading.execute(
        f"SELECT pgworkers.link_dependencies({DUTY_ROWS_PER_STATEMENT})".encode()
    ).fetchone() != (0,):
        pass
    assert db.execute("SELECT count(*) FROM pgworkers.dependency WHERE NOT linked").fetchone() == (0,)


class PermanentLeadership:
    """A leadership that is never lost."""

    is_leader, leader_since = True, monotonic()

    async def until_leading(self) -> None:
        pass


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every slice is over after its first statement."""
    monkeypatch.setattr("pgworkers.master.duties.DUTY_SLICE_SECONDS", 0.0)


def test_a_duty_that_is_not_finished_lets_the_others_come_in_between(db: Db, dsn: str, no_time: None) -> None:
    db.execute(
        "INSERT INTO pgworkers.job (queue, task, state, run_at)"
        f" SELECT 'a', 't', 'scheduled', now() FROM generate_series(1, {3 * DUTY_ROWS_PER_STATEMENT})".encode()
    )
    done: list[DutyPerformed] = []

    async def story() -> None:
        facts = EventBus()
        facts.subscribe(done.append, DutyPerformed)
        line = ReconnectingConnection("duty", dsn, PATIENT, facts)
        duties = DutyRunner(str(uuid4()), line, facts, PATIENT, lambda: True, lambda: None)
        running = asyncio.ensure_future(duties.run(cast("Leadership", PermanentLeadership())))
        try:
            while sum(one.count for one in done if one.duty == "promote") < 3 * DUTY_ROWS_PER_STATEMENT:
                assert not running.done()
                await asyncio.sleep(0.01)
        finally:
            running.cancel()
            await line.close()

    asyncio.run(story())
    promoted = [number for number, one in enumerate(done) if one.duty == "promote" and one.count]
    assert [done[number].count for number in promoted[:3]] == [DUTY_ROWS_PER_STATEMENT] * 3, (
        "one statement a slice"
    )
    assert set(range(promoted[0], promoted[2])) - set(promoted), "another duty came in between"


def test_a_walk_goes_on_where_its_last_slice_ended(db: Db, dsn: str, no_time: None) -> None:
    """The batches that are complete come last; those before them live."""
    for statement in MANY_ROWS["batches"][1].format(first=1, last=2 * BATCHES_PER_STATEMENT).split(";"):
        db.execute(cast("Any", statement))
    db.execute("INSERT INTO pgworkers.batch (total) SELECT 1 FROM generate_series(1, 10)")

    async def story() -> int:
        line = ReconnectingConnection("duty", dsn, PATIENT, EventBus())
        duties = DutyRunner(str(uuid4()), line, EventBus(), PATIENT, lambda: True, lambda: None)
        duty = duties.duties["batches"]
        try:
            slices = [(await duties.perform("batches"), duty.is_unfinished) for _ in range(3)]
            assert slices == [(0, True), (0, True), (10, False)]
            db.execute("UPDATE pgworkers.batch SET finished_at = NULL WHERE finished_at IS NOT NULL")
            return await duties.perform_completely("batches")
        finally:
            await line.close()

    assert asyncio.run(story()) == 10, "performed by hand it goes to its end"


@pytest.mark.long
@pytest.mark.parametrize("what", MANY_ROWS)
def test_a_statement_of_a_duty_reads_no_more_with_half_a_million_rows(db: Db, leading: Db, what: str) -> None:
    compare(db, leading, what, 500_000, 6)
