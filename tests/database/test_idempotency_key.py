"""Idempotency keys: within its window a key leads to the first job, finished or not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from support.database_host import DatabaseHost, blocked, until

from pgworkers.errors import ArgumentError, UsageError
from pgworkers.job import maintenance
from pgworkers.job.copy import copy_jobs
from pgworkers.job.enqueue import Enqueued, enqueue, enqueue_error
from pgworkers.job.model import JobState, NewJob

Session = Callable[[], psycopg.Connection[Any]]
DAY = 86_400.0
EXPIRE = "UPDATE pgworkers.idempotency_key SET expires_at = now() WHERE key = %s"


def put(host: DatabaseHost, key: str | None = "k", window: float | None = None, **more: Any) -> Enqueued:
    job = NewJob("t", **{"queue": "a", "idempotency_key": key, "idempotency_window": window, **more})
    return host.execute(enqueue(job))


def count(host: DatabaseHost, table: str = "job") -> int:
    row = host.conn.execute(f"SELECT count(*) FROM pgworkers.{table}".encode()).fetchone()
    assert row is not None
    return int(row[0])


def test_the_first_job_is_returned_after_its_end_and_unique_does_not_do_that(host: DatabaseHost) -> None:
    first = put(host)
    assert first.is_new
    assert put(host) == Enqueued(first.id, False)
    (held,) = host.claim()
    assert put(host) == Enqueued(first.id, False), "while it runs"
    host.finish_job(held)
    assert put(host) == Enqueued(first.id, False), "and when it has ended"
    host.conn.execute("DELETE FROM pgworkers.history")
    assert put(host) == Enqueued(first.id, False), "also when its row is gone"
    assert count(host) == 0
    other = put(host, None, unique_key="k")
    host.finish_job(*host.claim())
    assert put(host, None, unique_key="k").id != other.id


def test_a_key_belongs_to_its_task(host: DatabaseHost) -> None:
    jobs = {put(host, "k").id, put(host, "l").id, host.enqueue("u", idempotency_key="k")}
    assert len(jobs) == 3


@pytest.mark.parametrize(("window", "seconds"), [(None, DAY), (90.5, 90.5), (31 * DAY, 31 * DAY)])
def test_the_window_begins_with_the_first_enqueue(
    host: DatabaseHost, window: float | None, seconds: float
) -> None:
    first = put(host, window=window)
    find = (
        "SELECT job_id, date_part('epoch', k.expires_at - j.created_at)::float8"
        "  FROM pgworkers.idempotency_key k JOIN pgworkers.job j ON j.id = k.job_id"
    )
    assert host.conn.execute(find).fetchall() == [(first.id, seconds)]
    put(host, window=5.0)
    assert host.conn.execute(find).fetchall() == [(first.id, seconds)], "a repeat does not move it"


def test_after_its_window_a_key_makes_another_job(host: DatabaseHost) -> None:
    first = put(host)
    host.conn.execute(EXPIRE, ["k"])
    second = put(host)
    assert second.is_new
    assert second.id != first.id
    assert put(host) == Enqueued(second.id, False)
    assert count(host, "idempotency_key") == 1


def test_expired_keys_are_deleted_in_bounded_steps_and_the_others_stay(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    for n in range(5):
        put(host, f"old {n}")
    host.conn.execute("UPDATE pgworkers.idempotency_key SET expires_at = now()")
    kept = put(host, "new")
    with other.conn.transaction():
        other.conn.execute("SELECT FROM pgworkers.idempotency_key WHERE key = 'old 0' FOR UPDATE")
        assert [host.execute(maintenance.prune_idempotency_keys(3)) for _ in range(3)] == [3, 1, 0], (
            "it waits for no lock"
        )
    assert host.execute(maintenance.prune_idempotency_keys(3)) == 1
    assert put(host, "new") == Enqueued(kept.id, False)


def test_fifty_enqueuers_with_one_idempotency_key_make_one_job(
    host: DatabaseHost, session: Session, schema: str
) -> None:
    database_hosts = [DatabaseHost(session(), schema) for _ in range(50)]
    answers: list[Enqueued] = []
    for key in ("fresh", "expired"):
        if key == "expired":
            put(host, key)
            host.conn.execute(EXPIRE, [key])
        answers.clear()
        before = count(host)
        threads = [
            threading.Thread(target=lambda mine: answers.append(put(mine, key)), args=[mine])  # noqa: B023
            for mine in database_hosts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 50
        assert len({answer.id for answer in answers}) == 1
        assert [answer.is_new for answer in answers].count(True) == 1
        assert count(host) == before + 1


def test_a_key_whose_transaction_rolled_back_leaves_nothing(host: DatabaseHost) -> None:
    with host.conn.transaction(force_rollback=True):
        undone = put(host)
    assert count(host, "idempotency_key") == count(host) == 0
    first = put(host)
    assert first.is_new
    assert first.id != undone.id


def test_a_second_enqueue_waits_for_the_transaction_of_the_first(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    again = enqueue(NewJob("t", queue="a", idempotency_key="k"))
    with host.conn.transaction(force_rollback=True):
        put(host)
        future = other.in_thread(again)
        until(lambda: blocked(host.conn, other.conn))
    assert future.result(60).is_new, "the first one was rolled back"
    again = enqueue(NewJob("t", queue="a", idempotency_key="l"))
    with host.conn.transaction():
        first = put(host, "l")
        future = other.in_thread(again)
        until(lambda: blocked(host.conn, other.conn))
    assert future.result(60) == Enqueued(first.id, False)


def test_in_a_transaction_that_sees_an_old_state_nothing_is_doubled(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    with host.conn.transaction(force_rollback=True):
        host.conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        host.conn.execute("SELECT 1 FROM pgworkers.job")
        put(other)
        with pytest.raises(psycopg.errors.SerializationFailure):
            put(host)
    assert count(host) == 1


def test_with_a_unique_key_the_key_leads_to_the_job_that_was_returned(host: DatabaseHost) -> None:
    live = put(host, None, unique_key="u")
    assert put(host, "k", unique_key="u") == Enqueued(live.id, False)
    host.finish_job(*host.claim())
    assert put(host, "k", unique_key="u") == Enqueued(live.id, False)
    assert put(host, None, unique_key="u").is_new


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (NewJob("t", idempotency_key=""), "idempotency key is empty or longer than 1000 bytes"),
        (NewJob("t", idempotency_key="k" * 1001), "idempotency key is empty or longer than 1000 bytes"),
        (NewJob("t", idempotency_key="k", idempotency_window=0.0), "longer than 0 and at most 31 days"),
        (NewJob("t", idempotency_key="k", idempotency_window=-1.0), "longer than 0 and at most 31 days"),
        (NewJob("t", idempotency_key="k", idempotency_window=31 * DAY + 1), "longer than 0 and at most"),
        (NewJob("t", "[]", idempotency_key="k"), "args must be a JSON object"),
        (NewJob("", idempotency_key="k"), "name is empty"),
    ],
)
def test_what_cannot_be_a_key_or_a_window(host: DatabaseHost, job: NewJob, says: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        host.execute(enqueue(job))
    error = enqueue_error(caught.value)
    assert isinstance(error, ArgumentError)
    assert says in str(error)
    assert count(host) == count(host, "idempotency_key") == 0


def test_many_at_once_refuse_a_key(host: DatabaseHost) -> None:
    with pytest.raises(UsageError, match="t: a job with an idempotency key cannot be enqueued in bulk"):
        copy_jobs(host.conn, host.schema, [NewJob("t", idempotency_key="k")])
    assert count(host) == 0


def test_without_a_key_the_table_is_not_touched(host: DatabaseHost) -> None:
    with host.conn.transaction():
        put(host, None)
        put(host, None, unique_key="u", delay=60.0)
        assert _scans(host) == (0, 0)


def test_keys_are_found_by_index_whatever_the_statistics_say(host: DatabaseHost) -> None:
    """Planned while the table was empty, as on the first day; the plan is kept, and then many keys come."""
    host.conn.execute("VACUUM ANALYZE pgworkers.idempotency_key")
    for n in range(10):
        put(host, f"first {n}")
    host.conn.execute(
        "INSERT INTO pgworkers.idempotency_key (task, login, key, job_id, expires_at)"
        " SELECT 't', '', 'many ' || n, n, now() + interval '1 day' FROM generate_series(1, 5000) n"
    )
    with host.conn.transaction():
        put(host, "many 7")
        put(host, "another")
        sequential, by_index = _scans(host)
    assert (sequential, by_index > 0) == (0, True)


def _scans(host: DatabaseHost) -> tuple[int, int]:
    """Sequential and index scans of the table of keys by this session, which no other test has used."""
    row = host.conn.execute(
        "SELECT seq_scan, idx_scan FROM pg_stat_xact_user_tables WHERE relname = 'idempotency_key'"
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def test_how_the_first_job_ended_does_not_matter(host: DatabaseHost) -> None:
    first = put(host)
    host.conn.execute("SELECT pgworkers.cancel_many(ARRAY[%s]::bigint[])", [first.id])
    assert host.job_view(first.id).state == JobState.CANCELLED
    assert put(host) == Enqueued(first.id, False)
