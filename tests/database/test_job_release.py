"""Release: what was claimed but not started goes back as if it had never been claimed."""

from __future__ import annotations

from support.database_host import DatabaseHost

from pgworkers.job import cancel, finish, queries
from pgworkers.job.model import JobState


def test_a_released_job_is_ready_at_once_and_its_attempt_is_given_back(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    job = host.enqueue_and_claim()
    host.listen()
    assert host.execute(finish.release(host.id, [job.fence])).released_count == 1
    assert host.notifications() == [("pgworkers", "ready:a")]
    seen = host.job_view(job.id)
    assert (seen.state, seen.attempt, seen.host) == (JobState.READY, 0, None)
    assert host.execute(queries.job_attempts(job.id)) == []
    (again,) = other.claim()
    assert (again.attempt, again.lease) == (1, 2), "the lease must grow, whatever the attempt does"


def test_only_what_is_still_held_is_released(host: DatabaseHost, other: DatabaseHost) -> None:
    for _ in range(3):
        host.enqueue()
    one, two, three = host.claim(3)
    host.finish_job(one)
    host.retry_job(two, delay_seconds=0.0)
    (taken,) = other.claim()
    held = [job.fence for job in (three, two, one)]
    assert host.execute(finish.release(host.id, held)).released_count == 1
    assert host.execute(finish.release(host.id, held)).released_count == 0
    assert host.job_view(taken.id).state is JobState.CLAIMED
    assert host.execute(finish.release(host.id, [])).released_count == 0


def test_a_claimed_job_with_a_cancel_request_is_cancelled_on_release(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    job = host.enqueue_and_claim()
    assert other.execute(cancel.cancel(job.id)) == "cancelling"
    assert host.execute(finish.release(host.id, [job.fence])).released_count == 1
    seen = host.job_view(job.id)
    assert (seen.state, seen.attempt) == (JobState.CANCELLED, 0)
    assert other.claim() == []
