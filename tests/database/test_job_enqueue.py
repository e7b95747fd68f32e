"""Enqueue: one job by the function that psql and triggers use too, many by COPY."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.rows import dict_row
from support.database_host import DatabaseHost

from pgworkers.errors import ArgumentError, DatabaseUnreachable, DuplicateJob, SchemaOutOfDate, UsageError
from pgworkers.job import queues
from pgworkers.job.copy import COPY_BLOCK_ROWS, copy_jobs, copy_steps
from pgworkers.job.enqueue import Enqueued, enqueue, enqueue_error
from pgworkers.job.hosts import set_idle_queues
from pgworkers.job.model import JobState, NewJob
from pgworkers.postgres.connect import connect
from pgworkers.postgres.session import BlockingSession
from pgworkers.postgres.steps import AsyncConnectionRunner
from pgworkers.settings import Settings
from pgworkers.specs import TaskSpec

Session = Callable[[], psycopg.Connection[Any]]


def count(host: DatabaseHost) -> int:
    (found,) = host.conn.execute("SELECT count(*) FROM pgworkers.job").fetchone() or (0,)
    return int(found)


def refused(host: DatabaseHost, job: NewJob) -> Exception:
    """The error a caller would see; and nothing was enqueued."""
    with pytest.raises(psycopg.Error) as caught:
        host.execute(enqueue(job))
    assert count(host) == 0
    return enqueue_error(caught.value)


def test_a_job_is_ready_and_sleeping_hosts_are_notified(host: DatabaseHost) -> None:
    host.register()
    host.execute(set_idle_queues(host.id, ["a"]))
    host.listen()
    made = host.execute(enqueue(NewJob("t", '{"a": [1, "é"]}', queue="a", meta_json='{"why": 1}')))
    assert made.is_new
    seen = host.job_view(made.id)
    assert (seen.state, seen.args, seen.meta, seen.queue) == (
        JobState.READY,
        {"a": [1, "é"]},
        {"why": 1},
        "a",
    )
    assert (seen.attempt, seen.max_attempts, seen.lease, seen.priority) == (0, 20, 0, 0)
    assert host.notifications() == [(host.id, f"one:a:{host.id}")]


@contextmanager
def own_session(host: DatabaseHost) -> Iterator[BlockingSession]:
    """As a process that enqueues has it."""
    dsn = host.conn.info.dsn
    with connect(Settings(dsn=dsn), dsn, "client") as conn:
        yield BlockingSession(conn, "pgworkers")


PLAIN = NewJob("t ä", '{"a": "\u2603"}', queue="q ö", priority=-7, max_attempts=3, max_crashes=2)


def test_a_plain_job_is_the_same_on_our_own_session_and_on_a_cursor(host: DatabaseHost) -> None:
    """The first and the sixth enqueue of a session differ, too: then it is prepared."""
    with own_session(host) as session:
        made = [session.run(enqueue(PLAIN, is_own_transaction=True)) for _ in range(7)]
    made.append(host.execute(enqueue(PLAIN)))
    assert all(each.is_new for each in made)
    for each in made:
        seen = host.job_view(each.id)
        assert (seen.task, seen.args, seen.queue, seen.priority) == ("t ä", {"a": "\u2603"}, "q ö", -7)
        assert (seen.state, seen.max_attempts) == (JobState.READY, 3)


@pytest.mark.parametrize("part", ["task", "queue", "args_json"])
def test_a_nul_ends_no_text_on_the_wire(host: DatabaseHost, part: str) -> None:
    job = msgspec.structs.replace(PLAIN, **{part: getattr(PLAIN, part)[:4] + "\0" + getattr(PLAIN, part)[4:]})
    assert isinstance(refused(host, job), ArgumentError)
    with own_session(host) as session, pytest.raises(psycopg.DataError):
        session.run(enqueue(job, is_own_transaction=True))
    assert count(host) == 0


def test_what_the_task_says_is_used_where_the_caller_says_nothing(host: DatabaseHost) -> None:
    host.execute(queues.declare_tasks([TaskSpec("t", "reports", priority=7, max_attempts=2, max_crashes=1)]))
    seen = host.job_view(host.execute(enqueue(NewJob("t"))).id)
    assert (seen.queue, seen.priority, seen.max_attempts) == ("reports", 7, 2)
    seen = host.job_view(host.execute(enqueue(NewJob("t", queue="x", priority=-1, max_attempts=9))).id)
    assert (seen.queue, seen.priority, seen.max_attempts) == ("x", -1, 9)
    assert host.job_view(host.execute(enqueue(NewJob("nobody"))).id).queue == "default"


def test_a_later_time_makes_it_scheduled_without_a_notification(host: DatabaseHost) -> None:
    host.listen()
    at = datetime.now(UTC) + timedelta(hours=1)
    by_time = host.job_view(host.enqueue(run_at=at))
    assert (by_time.state, by_time.run_at) == (JobState.SCHEDULED, at)
    assert host.job_view(host.enqueue(delay=60.0)).state is JobState.SCHEDULED
    assert host.notifications() == []
    assert host.job_view(host.enqueue(delay=5.0)).state is JobState.SCHEDULED
    assert host.notifications() == [("pgworkers", "due:")], "sooner than the leader may look by itself"
    assert host.job_view(host.enqueue(delay=0.0)).state is JobState.READY
    assert host.job_view(host.enqueue(run_at=datetime(2020, 1, 1, tzinfo=UTC))).state is JobState.READY


def test_a_unique_key_leads_to_the_live_job_that_holds_it(host: DatabaseHost) -> None:
    first = host.execute(enqueue(NewJob("t", '{"v": 1}', queue="a", unique_key="k")))
    assert host.execute(enqueue(NewJob("t", '{"v": 2}', queue="a", unique_key="k"))) == Enqueued(
        first.id, False
    )
    assert host.job_view(first.id).args == {"v": 1}
    replaced = host.execute(
        enqueue(NewJob("t", '{"v": 3}', queue="a", unique_key="k", on_conflict="replace"))
    )
    assert replaced == Enqueued(first.id, False)
    assert host.job_view(first.id).args == {"v": 3}
    assert host.execute(enqueue(NewJob("other", queue="a", unique_key="k"))).is_new, "keys belong to a task"
    (job,) = host.claim()
    host.execute(enqueue(NewJob("t", '{"v": 4}', queue="a", unique_key="k", on_conflict="replace")))
    assert host.job_view(first.id).args == {"v": 3}, "what runs keeps its arguments"
    host.finish_job(job)
    assert host.execute(enqueue(NewJob("t", queue="a", unique_key="k"))).is_new, "a finished job holds no key"


def test_raise_names_the_job_that_is_in_the_way(host: DatabaseHost) -> None:
    first = host.enqueue(unique_key="k%20")
    with pytest.raises(psycopg.Error) as caught:
        host.enqueue(unique_key="k%20", on_conflict="raise")
    error = enqueue_error(caught.value)
    assert isinstance(error, DuplicateJob)
    assert (error.job_id, error.unique) == (first, "k%20")
    assert count(host) == 1


def test_fifty_enqueuers_with_one_key_make_one_job(host: DatabaseHost, session: Session, schema: str) -> None:
    database_hosts = [DatabaseHost(session(), schema) for _ in range(50)]
    answers: list[Enqueued] = []

    def work(mine: DatabaseHost) -> None:
        answers.append(mine.execute(enqueue(NewJob("t", queue="a", unique_key="k"))))

    threads = [threading.Thread(target=work, args=[mine]) for mine in database_hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({answer.id for answer in answers}) == 1
    assert [answer.is_new for answer in answers].count(True) == 1
    assert len(answers) == 50


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (NewJob("t", "[1]"), "args must be a JSON object of arguments by name, not array"),
        (NewJob("t", '{"a": "\\u0000"}'), "cannot store"),
        (NewJob("t", '{"a": "\\ud800"}'), "cannot store"),
        (NewJob("t", '{"a": NaN}'), "cannot store"),
        (NewJob("t", "nope"), "cannot store"),
        (NewJob("t\x00"), "cannot store"),
        (NewJob("t", queue=""), "name is empty"),
        (NewJob("t", queue="x" * 201), "longer than 200"),
        (NewJob("x" * 201), "longer than 200"),
        (NewJob("t", unique_key=""), "unique key is empty"),
        (NewJob("t", unique_key="k" * 1001), "longer than 1000"),
        (NewJob("t", max_attempts=0), "from 1 to 10001"),
        (NewJob("t", '{"a": "%s"}' % ("x" * 4_200_000)), "larger than 4MB"),
        (NewJob("t", '{"a": ' + "[" * 200_000 + "]" * 200_000 + "}"), "cannot store"),
        (NewJob("t", "null"), "args must be a JSON object of arguments by name, not null"),
        (NewJob("t", meta_json="[1]"), "meta must be a JSON object, not array"),
        (NewJob("t", '{"a": ' + "[" * 129 + "]" * 129 + "}"), "128 levels deep"),
        (NewJob("t", meta_json='{"a": ' + "[" * 129 + "]" * 129 + "}"), "128 levels deep"),
        (NewJob("t", delay=-1.0), "delay must be from 0 to 100 years, not -00:00:01"),
        (NewJob("t", timeout=-1.0), "timeout must be longer than 0, not -00:00:01"),
        (NewJob("t", timeout=101 * 366 * 86400.0), "timeout must be from 0 to 100 years"),
        (NewJob("t", deadline=-0.5), "deadline must be from 0 to 100 years"),
        (NewJob("t", expires=-5.0), "expires must be from 0 to 100 years"),
        (NewJob("t", memory=-1), "memory is in bytes, at least 1048576 (1MB) and less than 2^60, not -1"),
        (NewJob("t", on_conflict="explode"), "use return, replace or raise"),  # type: ignore[arg-type]
    ],
    ids=range(25),
)
def test_what_cannot_work_is_refused_at_once_with_a_reason(
    host: DatabaseHost, job: NewJob, says: str
) -> None:
    error = refused(host, job)
    assert isinstance(error, ArgumentError)
    assert says in str(error)
    assert "nothing was enqueued" in str(error)


def test_a_database_without_our_tables_says_what_to_do(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn, pytest.raises(psycopg.Error) as caught:
        DatabaseHost(conn, "pgworkers").enqueue()
    error = enqueue_error(caught.value)
    assert isinstance(error, SchemaOutOfDate)
    assert "migrate up" in str(error)


def test_an_error_unrelated_to_the_job_is_a_pgworkers_error() -> None:
    error = enqueue_error(psycopg.OperationalError("the connection is closed"))
    assert isinstance(error, DatabaseUnreachable)
    assert "the connection is closed; nothing was enqueued" in str(error)


def test_it_happens_in_the_callers_transaction(host: DatabaseHost, other: DatabaseHost) -> None:
    with host.conn.transaction(force_rollback=True):
        host.enqueue()
    assert count(host) == 0
    with host.conn.transaction():
        host.enqueue()
        assert count(other) == 0
    assert count(other) == 1


def test_sql_can_enqueue_and_cancel_by_itself(db: psycopg.Connection[Any]) -> None:
    row = db.execute(
        """SELECT id, created FROM pgworkers.enqueue('t', '{"a": 1}', delay => '1 hour')"""
    ).fetchone()
    assert row is not None
    assert row[1]
    assert db.execute("SELECT state::text FROM pgworkers.jobs WHERE id = %s", [row[0]]).fetchone() == (
        "scheduled",
    )
    assert db.execute("SELECT pgworkers.cancel(%s)", [row[0]]).fetchone() == ("cancelled",)


def test_a_serializable_transaction_of_the_user_gets_an_error_it_can_retry(
    host: DatabaseHost, session: Session
) -> None:
    job_id = host.enqueue(unique_key="k")
    conn = session()
    conn.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    with conn.transaction():
        assert DatabaseHost(conn, "pgworkers").enqueue(unique_key="k") == job_id


def test_what_is_long_deep_or_large_but_within_bounds_is_taken(host: DatabaseHost) -> None:
    century = 100 * 365 * 86400.0
    deep = '{"a": ' + "[" * 127 + "]" * 127 + "}"
    job = NewJob("t", deep, delay=century, timeout=century, memory=1 << 20, meta_json=deep)
    assert host.execute(enqueue(job)).is_new
    assert host.execute(enqueue(NewJob("t", '{"a": "%s"}' % ("x" * 100_000), delay=0.0))).is_new


def test_many_jobs_by_copy(host: DatabaseHost) -> None:
    host.execute(queues.declare_tasks([TaskSpec("t", "reports", priority=7, max_attempts=2)]))
    at = datetime.now(UTC) + timedelta(hours=1)
    jobs = [
        NewJob("t", '{"a": "tab\\t back\\\\slash é"}'),
        NewJob(
            "t", queue="b", priority=1, delay=60.0, expires=5.0, deadline=50.0, timeout=1.5, memory=9 << 20
        ),
        NewJob("x", run_at=at, concurrency_key="c", meta_json='{"m": 1}', max_attempts=3, max_crashes=1),
    ]
    host.listen()
    told: list[int] = []
    assert copy_jobs(host.conn, host.schema, jobs, told.append) == 3
    assert told == [1, 3], "from the first job on that has something special, all columns are sent"
    one, two, three = (host.job_view(job_id) for job_id, _ in host.states())
    assert (one.state, one.queue, one.priority, one.max_attempts) == (JobState.READY, "reports", 7, 2)
    assert one.args == {"a": "tab\t back\\slash é"}
    assert (two.state, two.queue, two.priority) == (JobState.SCHEDULED, "b", 1)
    assert (two.run_at - two.created_at) == timedelta(seconds=60)
    assert (three.state, three.run_at, three.queue, three.meta) == (
        JobState.SCHEDULED,
        at,
        "default",
        {"m": 1},
    )
    details = host.conn.execute(
        "SELECT expires_at - run_at, deadline_at - run_at, timeout, memory FROM pgworkers.job WHERE queue = 'b'"
    ).fetchone()
    assert details == (timedelta(seconds=5), timedelta(seconds=50), timedelta(seconds=1.5), 9 << 20)
    assert host.notifications() == [("pgworkers", "ready:reports")]


def test_copy_takes_an_endless_stream_in_chunks_and_keeps_none(host: DatabaseHost) -> None:
    held = most = 0

    def stream() -> Iterator[NewJob]:
        nonlocal held, most
        for n in range(3 * COPY_BLOCK_ROWS + 7):
            held += 1
            most = max(most, held)
            yield NewJob("t", f'{{"n": {n}}}', queue="a")

    def on_copied(total: int) -> None:
        nonlocal held
        held = 0
        counts.append(total)

    counts: list[int] = []
    assert copy_jobs(host.conn, host.schema, stream(), on_copied) == 3 * COPY_BLOCK_ROWS + 7
    assert counts == [COPY_BLOCK_ROWS, 2 * COPY_BLOCK_ROWS, 3 * COPY_BLOCK_ROWS, 3 * COPY_BLOCK_ROWS + 7]
    assert most <= COPY_BLOCK_ROWS
    row = host.conn.execute(
        "SELECT count(*), bool_and((args->>'n')::int = id - 1) FROM pgworkers.job"
    ).fetchone()
    assert row == (3 * COPY_BLOCK_ROWS + 7, True), "ids in the order of the stream"


@pytest.mark.parametrize("bad", [NewJob("t", "[]"), NewJob("t", "nope"), NewJob("t", queue="")], ids=range(3))
def test_one_bad_row_and_nothing_is_enqueued(host: DatabaseHost, bad: NewJob) -> None:
    jobs = [NewJob("t", queue="a")] * (COPY_BLOCK_ROWS + 1) + [bad]
    with pytest.raises(psycopg.Error) as caught:
        copy_jobs(host.conn, host.schema, jobs, None)
    assert isinstance(enqueue_error(caught.value), ArgumentError)
    assert count(host) == 0
    assert host.enqueue()  # the connection is as good as before


def test_unique_keys_are_refused_in_bulk_and_so_is_an_iterator_that_fails(host: DatabaseHost) -> None:
    with pytest.raises(UsageError, match="unique key"):
        copy_jobs(host.conn, host.schema, [NewJob("t"), NewJob("t", unique_key="k")], None)

    def broken() -> Iterator[NewJob]:
        yield NewJob("t")
        raise RuntimeError("the file ended early")

    with pytest.raises(RuntimeError):
        copy_jobs(host.conn, host.schema, broken(), None)
    assert count(host) == 0


def test_copy_joins_the_callers_transaction(host: DatabaseHost, emptied: str) -> None:
    jobs = [NewJob("t", queue="a")] * 3
    with host.conn.transaction(force_rollback=True):
        copy_jobs(host.conn, host.schema, jobs, None)
    assert count(host) == 0
    with psycopg.connect(emptied, row_factory=dict_row) as conn:  # not autocommit, other rows: a user's own
        copy_jobs(conn, host.schema, jobs, None)
        assert count(host) == 0, "nothing is committed behind the caller's back"
        with pytest.raises(UsageError):
            copy_jobs(conn, host.schema, [NewJob("t", unique_key="k")], None)
        conn.commit()
    assert count(host) == 3


def test_copy_of_nothing(host: DatabaseHost) -> None:
    assert copy_jobs(host.conn, host.schema, [], None) == 0


def test_copy_on_an_async_connection(host: DatabaseHost, emptied: str) -> None:
    async def copy(conn: psycopg.AsyncConnection[Any], jobs: list[NewJob]) -> int:
        return await AsyncConnectionRunner(conn, host.schema).run(copy_steps(jobs, is_own_connection=False))

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(emptied, autocommit=True) as conn:
            assert await copy(conn, [NewJob("t", queue="a")] * 5) == 5
            with pytest.raises(UsageError):
                await copy(conn, [NewJob("t", unique_key="k")])
        async with await psycopg.AsyncConnection.connect(emptied) as conn:
            assert await copy(conn, [NewJob("t", queue="a")] * 2) == 2
            await conn.rollback()

    asyncio.run(work())
    assert count(host) == 5


def test_a_stream_keeps_one_copy_open_while_the_iterator_goes_on(host: DatabaseHost) -> None:
    """Rows keep the order of the iterator. Its time counts towards no timeout, and its failure fails the whole enqueue."""
    strange = '{"n":\n\t0,\r "s": "a\\\\b\\tc"}'

    def stream(fail: bool) -> Iterator[NewJob]:
        yield NewJob("t", strange, queue="a\\b")
        for n in range(1, 3000):
            yield NewJob("t", f'{{"n": {n}}}', queue="a")
        if not fail:
            time.sleep(1.3)
        yield NewJob("t", '{"n": 3000}', queue="a", priority=3, meta_json='{"m": "\\n"}')
        for n in range(3001, 6000):
            yield NewJob("t", f'{{"n": {n}}}', queue="a", concurrency_key=f"k{n}")
        if fail:
            raise RuntimeError("the file ended early")

    counts: list[int] = []
    host.conn.execute("SET statement_timeout = '1s'")
    with pytest.raises(RuntimeError, match="ended early"):
        copy_jobs(host.conn, host.schema, stream(True), is_own_connection=True)
    assert count(host) == 0
    assert copy_jobs(host.conn, host.schema, stream(False), counts.append, is_own_connection=True) == 6000
    assert host.conn.execute("SHOW statement_timeout").fetchone() == ("1s",)
    host.conn.execute("SET statement_timeout = 0")
    assert counts == sorted(counts)
    assert (counts[-1], len(counts) > 4) == (6000, True)
    row = host.conn.execute(
        "SELECT count(*), bool_and(rank = n + 1), count(concurrency_key), bool_and(run_at = created_at)"
        " FROM (SELECT (args->>'n')::int AS n, rank() OVER (ORDER BY id), * FROM pgworkers.job) j"
    ).fetchone()
    assert row == (6000, True, 2999, True)
    first = host.conn.execute("SELECT queue, args FROM pgworkers.job ORDER BY id LIMIT 1").fetchone()
    assert first == ("a\\b", {"n": 0, "s": "a\\b\tc"})
