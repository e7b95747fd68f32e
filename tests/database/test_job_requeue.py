"""Requeue: an operator lets finished jobs run again."""

from __future__ import annotations

from support.database_host import Desk, blocked, until

from pgworkers.job import cancel, requeue
from pgworkers.job.model import JobState
from pgworkers.job.requeue import RequeueResult


def test_a_dead_job_comes_back_with_fresh_budgets_and_its_past(desk: Desk) -> None:
    job = desk.run_one(priority=3, unique_key="k", meta_json='{"m": 1}', deadline=100.0, timeout=5.0)
    desk.end(job, JobState.DEAD, error="boom", checkpoint='{"page": 2}', is_crash=True)
    desk.listen()
    assert desk.execute(requeue.requeue([job.id])) == [RequeueResult(job.id, "requeued")]
    assert desk.notices() == [("pgworkers", "ready:a")]
    seen = desk.see(job.id)
    assert (seen.state, seen.attempt, seen.crashes, seen.priority) == (JobState.READY, 0, 0, 3)
    assert desk.conn.execute("SELECT count(*) FROM pgworkers.history").fetchone() == (0,)
    (again,) = desk.take()
    assert (again.id, again.lease, again.attempt, again.errors) == (job.id, 2, 1, ["boom"])
    assert (again.checkpoint, again.meta, again.timeout_seconds) == ('{"page": 2}', '{"m": 1}', 5.0)
    assert again.seconds_to_deadline is not None
    assert 90 < again.seconds_to_deadline <= 100


def test_one_row_that_cannot_come_back_holds_up_no_other(desk: Desk) -> None:
    conflicting = desk.run_one(unique_key="k")
    desk.end(conflicting, JobState.DEAD, error="x")
    newer = desk.put(unique_key="k")
    dead = desk.run_one(priority=9)
    desk.end(dead, JobState.DEAD, error="x")
    cancelled = desk.put()
    desk.execute(cancel.cancel(cancelled))
    succeeded = desk.run_one(priority=9)
    desk.end(succeeded)
    running = desk.run_one(priority=9)
    scheduled = desk.put(delay=60.0)
    ids = [conflicting.id, newer, dead.id, cancelled, succeeded.id, running.id, scheduled, 10**9]
    outcomes = {found.id: found.outcome for found in desk.execute(requeue.requeue(ids))}
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
    assert desk.see(conflicting.id).state is JobState.DEAD
    assert desk.see(scheduled).state is JobState.READY


def test_two_dead_jobs_with_one_key_do_not_both_come_back(desk: Desk) -> None:
    ids = []
    for _ in range(2):
        job = desk.run_one(unique_key="k")
        desk.end(job, JobState.DEAD, error="x")
        ids.append(job.id)
    assert [found.outcome for found in desk.execute(requeue.requeue(ids))] == ["requeued", "conflict"]


def test_two_operators_at_once_bring_a_job_back_once(desk: Desk, other: Desk) -> None:
    job = desk.run_one()
    desk.end(job, JobState.DEAD, error="x")
    with desk.conn.transaction():
        assert desk.execute(requeue.requeue([job.id])) == [RequeueResult(job.id, "requeued")]
        waiting = other.in_thread(requeue.requeue([job.id]))
        until(lambda: blocked(desk.conn, other.conn))
    (second,) = waiting.result(timeout=20)
    assert second.outcome == "changing", "the state that it saw was an old one"
    assert requeue.requeue_until_settled(other.execute, [job.id]) == {job.id: "ready"}
    assert desk.states() == [(job.id, "ready")]


def test_nothing_asked_nothing_done(desk: Desk) -> None:
    assert desk.execute(requeue.requeue([])) == []
