"""Idempotency keys: within its window a key leads to the first job, finished or not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from support.database_host import Desk, blocked, until

from pgworkers.errors import ArgumentError, UsageError
from pgworkers.job import maintenance
from pgworkers.job.copy import copy_jobs
from pgworkers.job.enqueue import Enqueued, enqueue, enqueue_error
from pgworkers.job.model import JobState, NewJob

Session = Callable[[], psycopg.Connection[Any]]
DAY = 86_400.0
EXPIRE = "UPDATE pgworkers.idempotency_key SET expires_at = now() WHERE key = %s"


def put(desk: Desk, key: str | None = "k", window: float | None = None, **more: Any) -> Enqueued:
    job = NewJob("t", **{"queue": "a", "idempotency_key": key, "idempotency_window": window, **more})
    return desk.execute(enqueue(job))


def count(desk: Desk, table: str = "job") -> int:
    row = desk.conn.execute(f"SELECT count(*) FROM pgworkers.{table}".encode()).fetchone()
    assert row is not None
    return int(row[0])


def test_the_first_job_is_returned_after_its_end_and_unique_does_not_do_that(desk: Desk) -> None:
    first = put(desk)
    assert first.is_new
    assert put(desk) == Enqueued(first.id, False)
    (held,) = desk.take()
    assert put(desk) == Enqueued(first.id, False), "while it runs"
    desk.end(held)
    assert put(desk) == Enqueued(first.id, False), "and when it has ended"
    desk.conn.execute("DELETE FROM pgworkers.history")
    assert put(desk) == Enqueued(first.id, False), "also when its row is gone"
    assert count(desk) == 0
    other = put(desk, None, unique_key="k")
    desk.end(*desk.take())
    assert put(desk, None, unique_key="k").id != other.id


def test_a_key_belongs_to_its_task(desk: Desk) -> None:
    jobs = {put(desk, "k").id, put(desk, "l").id, desk.put("u", idempotency_key="k")}
    assert len(jobs) == 3


@pytest.mark.parametrize(("window", "seconds"), [(None, DAY), (90.5, 90.5), (31 * DAY, 31 * DAY)])
def test_the_window_begins_with_the_first_enqueue(desk: Desk, window: float | None, seconds: float) -> None:
    first = put(desk, window=window)
    find = (
        "SELECT job_id, date_part('epoch', k.expires_at - j.created_at)::float8"
        "  FROM pgworkers.idempotency_key k JOIN pgworkers.job j ON j.id = k.job_id"
    )
    assert desk.conn.execute(find).fetchall() == [(first.id, seconds)]
    put(desk, window=5.0)
    assert desk.conn.execute(find).fetchall() == [(first.id, seconds)], "a repeat does not move it"


def test_after_its_window_a_key_makes_another_job(desk: Desk) -> None:
    first = put(desk)
    desk.conn.execute(EXPIRE, ["k"])
    second = put(desk)
    assert second.is_new
    assert second.id != first.id
    assert put(desk) == Enqueued(second.id, False)
    assert count(desk, "idempotency_key") == 1


def test_expired_keys_are_deleted_in_bounded_steps_and_the_others_stay(desk: Desk, other: Desk) -> None:
    for n in range(5):
        put(desk, f"old {n}")
    desk.conn.execute("UPDATE pgworkers.idempotency_key SET expires_at = now()")
    kept = put(desk, "new")
    with other.conn.transaction():
        other.conn.execute("SELECT FROM pgworkers.idempotency_key WHERE key = 'old 0' FOR UPDATE")
        assert [desk.execute(maintenance.prune_idempotency_keys(3)) for _ in range(3)] == [3, 1, 0], (
            "it waits for no lock"
        )
    assert desk.execute(maintenance.prune_idempotency_keys(3)) == 1
    assert put(desk, "new") == Enqueued(kept.id, False)


def test_fifty_enqueuers_with_one_idempotency_key_make_one_job(
    desk: Desk, session: Session, schema: str
) -> None:
    desks = [Desk(session(), schema) for _ in range(50)]
    answers: list[Enqueued] = []
    for key in ("fresh", "expired"):
        if key == "expired":
            put(desk, key)
            desk.conn.execute(EXPIRE, [key])
        answers.clear()
        before = count(desk)
        threads = [
            threading.Thread(target=lambda mine: answers.append(put(mine, key)), args=[mine])  # noqa: B023
            for mine in desks
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 50
        assert len({answer.id for answer in answers}) == 1
        assert [answer.is_new for answer in answers].count(True) == 1
        assert count(desk) == before + 1


def test_a_key_whose_transaction_rolled_back_leaves_nothing(desk: Desk) -> None:
    with desk.conn.transaction(force_rollback=True):
        undone = put(desk)
    assert count(desk, "idempotency_key") == count(desk) == 0
    first = put(desk)
    assert first.is_new
    assert first.id != undone.id


def test_a_second_enqueue_waits_for_the_transaction_of_the_first(desk: Desk, other: Desk) -> None:
    again = enqueue(NewJob("t", queue="a", idempotency_key="k"))
    with desk.conn.transaction(force_rollback=True):
        put(desk)
        future = other.in_thread(again)
        until(lambda: blocked(desk.conn, other.conn))
    assert future.result(60).is_new, "the first one was rolled back"
    again = enqueue(NewJob("t", queue="a", idempotency_key="l"))
    with desk.conn.transaction():
        first = put(desk, "l")
        future = other.in_thread(again)
        until(lambda: blocked(desk.conn, other.conn))
    assert future.result(60) == Enqueued(first.id, False)


def test_in_a_transaction_that_sees_an_old_state_nothing_is_doubled(desk: Desk, other: Desk) -> None:
    with desk.conn.transaction(force_rollback=True):
        desk.conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        desk.conn.execute("SELECT 1 FROM pgworkers.job")
        put(other)
        with pytest.raises(psycopg.errors.SerializationFailure):
            put(desk)
    assert count(desk) == 1


def test_with_a_unique_key_the_key_leads_to_the_job_that_was_returned(desk: Desk) -> None:
    live = put(desk, None, unique_key="u")
    assert put(desk, "k", unique_key="u") == Enqueued(live.id, False)
    desk.end(*desk.take())
    assert put(desk, "k", unique_key="u") == Enqueued(live.id, False)
    assert put(desk, None, unique_key="u").is_new


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
def test_what_cannot_be_a_key_or_a_window(desk: Desk, job: NewJob, says: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        desk.execute(enqueue(job))
    error = enqueue_error(caught.value)
    assert isinstance(error, ArgumentError)
    assert says in str(error)
    assert count(desk) == count(desk, "idempotency_key") == 0


def test_many_at_once_refuse_a_key(desk: Desk) -> None:
    with pytest.raises(UsageError, match="t: a job with an idempotency key cannot be enqueued in bulk"):
        copy_jobs(desk.conn, desk.schema, [NewJob("t", idempotency_key="k")])
    assert count(desk) == 0


def test_without_a_key_the_table_is_not_touched(desk: Desk) -> None:
    with desk.conn.transaction():
        put(desk, None)
        put(desk, None, unique_key="u", delay=60.0)
        assert _scans(desk) == (0, 0)


def test_keys_are_found_by_index_whatever_the_statistics_say(desk: Desk) -> None:
    """Planned while the table was empty, as on the first day; the plan is kept, and then many keys come."""
    desk.conn.execute("VACUUM ANALYZE pgworkers.idempotency_key")
    for n in range(10):
        put(desk, f"first {n}")
    desk.conn.execute(
        "INSERT INTO pgworkers.idempotency_key (task, login, key, job_id, expires_at)"
        " SELECT 't', '', 'many ' || n, n, now() + interval '1 day' FROM generate_series(1, 5000) n"
    )
    with desk.conn.transaction():
        put(desk, "many 7")
        put(desk, "another")
        sequential, by_index = _scans(desk)
    assert (sequential, by_index > 0) == (0, True)


def _scans(desk: Desk) -> tuple[int, int]:
    """Sequential and index scans of the table of keys by this session, which no other test has used."""
    row = desk.conn.execute(
        "SELECT seq_scan, idx_scan FROM pg_stat_xact_user_tables WHERE relname = 'idempotency_key'"
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def test_how_the_first_job_ended_does_not_matter(desk: Desk) -> None:
    first = put(desk)
    desk.conn.execute("SELECT pgworkers.cancel_many(ARRAY[%s]::bigint[])", [first.id])
    assert desk.see(first.id).state == JobState.CANCELLED
    assert put(desk) == Enqueued(first.id, False)
