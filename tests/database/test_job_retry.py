"""Retry: an attempt ends and the job goes on; when, at which cost, and what is remembered."""

from __future__ import annotations

from support.database_host import DatabaseHost, until

from pgworkers.job import cancel, maintenance, queries
from pgworkers.job.finish import JobRetry
from pgworkers.job.model import JobState, Verdict


def test_a_failed_attempt_waits_for_its_time_and_costs_an_attempt(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim(expires=3600.0)
    host.listen()
    assert (
        host.retry_job(
            job, delay_seconds=120.0, error="ValueError: no", traceback="tb", checkpoint='{"page": 4}'
        )
        == "written"
    )
    seen = host.job_view(job.id)
    assert (seen.state, seen.attempt, seen.crashes, seen.error) == (
        JobState.SCHEDULED,
        1,
        0,
        "ValueError: no",
    )
    assert (seen.host, seen.started_at, seen.checkpoint) == (None, None, {"page": 4})
    assert 110 < (seen.run_at - seen.created_at).total_seconds() < 130
    (attempt,) = host.execute(queries.job_attempts(job.id))
    assert (attempt.attempt, attempt.verdict, attempt.traceback) == (1, "error", "tb")
    assert str(attempt.host) == host.id
    assert host.notifications() == []
    (expires,) = host.conn.execute("SELECT expires_at FROM pgworkers.job").fetchone() or (1,)
    assert expires is None, "it was started in time: expiry has had its say"


def test_a_retry_without_delay_is_ready_at_once_and_notifies_its_queue(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    host.listen()
    assert host.retry_job(job, delay_seconds=0.0, verdict=Verdict.INTERRUPTED, is_free=True) == "written"
    assert host.job_view(job.id).state is JobState.READY
    assert host.notifications() == [("pgworkers", "ready:a")]


def test_a_free_verdict_gives_the_attempt_back_and_still_leaves_a_post_mortem(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    host.retry_job(job, delay_seconds=0.0, verdict=Verdict.INTERRUPTED, is_free=True, error="drained")
    (again,) = host.claim()
    assert (again.attempt, again.lease) == (1, 2)
    assert [a.verdict for a in host.execute(queries.job_attempts(job.id))] == ["interrupted"]


def test_a_crash_is_counted(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    host.retry_job(job, delay_seconds=0.0, verdict=Verdict.OOM, is_crash=True)
    (again,) = host.claim()
    assert (again.crashes, again.errors) == (1, ["oom"])


def test_a_second_send_is_answered_already_and_a_stale_lease_lost(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    assert host.retry_job(job, delay_seconds=0.0) == "written"
    assert host.retry_job(job, delay_seconds=0.0) == "already"
    assert len(host.execute(queries.job_attempts(job.id))) == 1
    (fresh,) = host.claim()
    assert host.retry_job(job, delay_seconds=0.0, verdict=Verdict.TIMEOUT) == "lost"
    assert host.retry_job(fresh, delay_seconds=0.0) == "written"


def test_a_batch_takes_each_row_by_itself(host: DatabaseHost) -> None:
    for _ in range(3):
        host.enqueue()
    one, two, three = host.claim(3)
    host.finish_job(two)
    agains = [
        JobRetry(
            **three.fence._asdict(),
            verdict=Verdict.ERROR,
            delay_seconds=0.0,
            error="3 \x00",
        ),
        JobRetry(**two.fence._asdict(), verdict=Verdict.ERROR, delay_seconds=0.0, error="2"),
        JobRetry(
            **one.fence._asdict(),
            verdict=Verdict.SNOOZED,
            delay_seconds=50.0,
            is_free=True,
            progress="NaN",
        ),
    ]
    answers = host.retry(agains)
    assert [answers[a.fence] for a in agains] == ["written", "lost", "written"]
    assert [state for _, state in host.states()] == ["scheduled", "succeeded", "ready"]


def test_a_delay_beyond_all_reason_is_stored_and_not_an_error(host: DatabaseHost) -> None:
    for after in (1e300, float("inf"), float("nan"), -5.0):
        job = host.enqueue_and_claim()
        assert host.retry_job(job, delay_seconds=after) == "written"


def test_after_an_acknowledged_cancel_nothing_starts_again(host: DatabaseHost, other: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    assert other.execute(cancel.cancel(job.id)) == "cancelling"
    host.listen()
    assert (
        host.retry_job(job, delay_seconds=0.0, error="boom", checkpoint='{"p": 1}', is_crash=True)
        == "written"
    )
    seen = host.job_view(job.id)
    assert (seen.state, seen.verdict, seen.error, seen.crashes) == (JobState.CANCELLED, "error", "boom", 1)
    assert seen.checkpoint == {"p": 1}
    assert len(host.execute(queries.job_attempts(job.id))) == 1
    assert host.notifications() == [("pgworkers_done", str(job.id))]
    assert host.claim() == []
    assert host.retry_job(job, delay_seconds=0.0, error="boom") == "already"


def test_a_retry_waits_for_no_cancel_and_sees_it_later(host: DatabaseHost, other: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    with other.conn.transaction():
        other.execute(cancel.cancel(job.id))
        assert host.retry_job(job, delay_seconds=0.0) == "locked"
    assert host.retry_job(job, delay_seconds=0.0) == "written"
    assert host.job_view(job.id).state is JobState.CANCELLED


def test_a_retried_job_is_promoted_when_its_time_has_come(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    host.retry_job(job, delay_seconds=0.1)
    until(lambda: host.execute(maintenance.promote_due(10)).count)
    (again,) = host.claim()
    assert (again.id, again.attempt, again.lease) == (job.id, 2, 2)
