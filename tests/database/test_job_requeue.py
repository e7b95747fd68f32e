"""Requeue: an operator lets finished jobs run again."""

from __future__ import annotations

from support.database_host import DatabaseHost, blocked, until

from pgworkers.job import cancel, requeue
from pgworkers.job.model import JobState
from pgworkers.job.requeue import RequeueResult


def test_a_dead_job_comes_back_with_fresh_budgets_and_its_past(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim(
        priority=3, unique_key="k", meta_json='{"m": 1}', deadline=100.0, timeout=5.0
    )
    host.finish_job(job, JobState.DEAD, error="boom", checkpoint='{"page": 2}', is_crash=True)
    host.listen()
    assert host.execute(requeue.requeue([job.id])) == [RequeueResult(job.id, "requeued")]
    assert host.notifications() == [("pgworkers", "ready:a")]
    seen = host.job_view(job.id)
    assert (seen.state, seen.attempt, seen.crashes, seen.priority) == (JobState.READY, 0, 0, 3)
    assert host.conn.execute("SELECT count(*) FROM pgworkers.history").fetchone() == (0,)
    (again,) = host.claim()
    assert (again.id, again.lease, again.attempt, again.errors) == (job.id, 2, 1, ["boom"])
    assert (again.checkpoint, again.meta, again.timeout_seconds) == ('{"page": 2}', '{"m": 1}', 5.0)
    assert again.seconds_to_deadline is not None
    assert 90 < again.seconds_to_deadline <= 100


def test_one_row_that_cannot_come_back_holds_up_no_other(host: DatabaseHost) -> None:
    conflicting = host.enqueue_and_claim(unique_key="k")
    host.finish_job(conflicting, JobState.DEAD, error="x")
    newer = host.enqueue(unique_key="k")
    dead = host.enqueue_and_claim(priority=9)
    host.finish_job(dead, JobState.DEAD, error="x")
    cancelled = host.enqueue()
    host.execute(cancel.cancel(cancelled))
    succeeded = host.enqueue_and_claim(priority=9)
    host.finish_job(succeeded)
    running = host.enqueue_and_claim(priority=9)
    scheduled = host.enqueue(delay=60.0)
    ids = [conflicting.id, newer, dead.id, cancelled, succeeded.id, running.id, scheduled, 10**9]
    outcomes = {found.id: found.outcome for found in host.execute(requeue.requeue(ids))}
    assert [outcomes[job_id] for job_id in ids] == [
        "conflict",
        "ready",
        "requeued",
        "requeued",
        "succeeded",
        "running",
        "requeued",
        "missing",
    ]
    assert host.job_view(conflicting.id).state is JobState.DEAD
    assert host.job_view(scheduled).state is JobState.READY


def test_two_dead_jobs_with_one_key_do_not_both_come_back(host: DatabaseHost) -> None:
    ids = []
    for _ in range(2):
        job = host.enqueue_and_claim(unique_key="k")
        host.finish_job(job, JobState.DEAD, error="x")
        ids.append(job.id)
    assert [found.outcome for found in host.execute(requeue.requeue(ids))] == ["requeued", "conflict"]


def test_two_operators_at_once_bring_a_job_back_once(host: DatabaseHost, other: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    host.finish_job(job, JobState.DEAD, error="x")
    with host.conn.transaction():
        assert host.execute(requeue.requeue([job.id])) == [RequeueResult(job.id, "requeued")]
        waiting = other.in_thread(requeue.requeue([job.id]))
        until(lambda: blocked(host.conn, other.conn))
    (second,) = waiting.result(timeout=20)
    assert second.outcome == "changing", "the state that it saw was an old one"
    assert requeue.requeue_until_settled(other.execute, [job.id]) == {job.id: "ready"}
    assert host.states() == [(job.id, "ready")]


def test_nothing_asked_nothing_done(host: DatabaseHost) -> None:
    assert host.execute(requeue.requeue([])) == []
