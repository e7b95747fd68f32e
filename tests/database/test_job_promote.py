"""Promote: what waits for its time becomes ready when it has come, or dead when it is over."""

from __future__ import annotations

from support.database_host import DatabaseHost, until

from pgworkers.job import maintenance
from pgworkers.job.model import JobState


def test_nothing_is_promoted_early_and_the_next_due_time_is_returned(host: DatabaseHost) -> None:
    assert host.execute(maintenance.promote_due(10)) == maintenance.PromoteResult(0, None)
    host.enqueue(delay=3600.0)
    host.enqueue(delay=7200.0)
    promoted = host.execute(maintenance.promote_due(10))
    assert promoted.count == 0
    assert promoted.next_in_seconds is not None
    assert 3500 < promoted.next_in_seconds <= 3600


def test_due_jobs_become_ready_and_each_queue_is_notified_once(host: DatabaseHost) -> None:
    ids = [host.enqueue(delay=0.05), host.enqueue(delay=0.05), host.enqueue(delay=0.05, queue="b")]
    host.listen()
    until(lambda: host.execute(maintenance.promote_due(10)).count)
    until(lambda: host.execute(maintenance.promote_due(10)).next_in_seconds is None)
    assert host.states() == [(job_id, "ready") for job_id in ids]
    assert sorted(set(host.notifications())) == [("pgworkers", "ready:a"), ("pgworkers", "ready:b")]


def test_the_earliest_are_promoted_first_and_a_full_batch_asks_for_another(host: DatabaseHost) -> None:
    with host.conn.transaction():  # one now() for all
        late, early, middle = host.enqueue(delay=0.12), host.enqueue(delay=0.04), host.enqueue(delay=0.08)
    until(lambda: host.conn.execute("SELECT max(run_at) <= now() FROM pgworkers.job").fetchone() == (True,))
    assert host.execute(maintenance.promote_due(2)) == maintenance.PromoteResult(2, 0.0)
    assert host.states() == [(late, "scheduled"), (early, "ready"), (middle, "ready")]
    assert host.execute(maintenance.promote_due(2)) == maintenance.PromoteResult(1, None)


def test_a_row_that_another_session_holds_is_left_to_it(host: DatabaseHost, other: DatabaseHost) -> None:
    job_id = host.enqueue(delay=0.01)
    with other.conn.transaction():
        other.conn.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE", [job_id])
        assert host.execute(maintenance.promote_due(10)).count == 0
    until(lambda: host.execute(maintenance.promote_due(10)).count)


def test_a_job_not_started_in_time_is_dead_and_says_so(host: DatabaseHost) -> None:
    ready, waiting = host.enqueue(expires=0.0), host.enqueue(delay=0.01, expires=0.0)
    kept = host.enqueue(expires=3600.0)
    host.listen()
    until(
        lambda: (
            host.conn.execute("SELECT count(*) FROM pgworkers.job WHERE expires_at <= now()").fetchone()
            == (2,)
        )
    )
    assert host.execute(maintenance.expire_jobs(1)) == 1
    assert host.execute(maintenance.expire_jobs(10)) == 1
    assert host.execute(maintenance.expire_jobs(10)) == 0
    for job_id in (ready, waiting):
        seen = host.job_view(job_id)
        assert (seen.state, seen.verdict) == (JobState.DEAD, "expired")
        assert seen.error is not None
        assert seen.error.startswith("expired: not started by 2")
    assert host.job_view(kept).state is JobState.READY
    assert len(host.notifications()) == 2


def test_a_job_that_runs_never_expires(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim(expires=3600.0)  # not so short that it could be over before the claim
    host.conn.execute("UPDATE pgworkers.job SET expires_at = expires_at - interval '2 h'")
    assert host.execute(maintenance.expire_jobs(10)) == 0
    assert host.finish_job(job) == "written"
