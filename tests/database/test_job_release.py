"""Release: what was claimed but not started goes back as if it had never been claimed."""

from __future__ import annotations

from support.database_host import Desk

from pgworkers.job import cancel, finish, queries
from pgworkers.job.model import JobState


def test_a_released_job_is_ready_at_once_and_its_attempt_is_given_back(desk: Desk, other: Desk) -> None:
    job = desk.run_one()
    desk.listen()
    assert desk.execute(finish.release(desk.host, [job.fence])).released_count == 1
    assert desk.notices() == [("pgworkers", "ready:a")]
    seen = desk.see(job.id)
    assert (seen.state, seen.attempt, seen.host) == (JobState.READY, 0, None)
    assert desk.execute(queries.job_attempts(job.id)) == []
    (again,) = other.take()
    assert (again.attempt, again.lease) == (1, 2), "the lease must grow, whatever the attempt does"


def test_only_what_is_still_held_is_released(desk: Desk, other: Desk) -> None:
    for _ in range(3):
        desk.put()
    one, two, three = desk.take(3)
    desk.end(one)
    desk.again(two, delay_seconds=0.0)
    (taken,) = other.take()
    held = [job.fence for job in (three, two, one)]
    assert desk.execute(finish.release(desk.host, held)).released_count == 1
    assert desk.execute(finish.release(desk.host, held)).released_count == 0
    assert desk.see(taken.id).state is JobState.CLAIMED
    assert desk.execute(finish.release(desk.host, [])).released_count == 0


def test_a_job_wished_away_while_it_was_claimed_is_cancelled_not_given_back(desk: Desk, other: Desk) -> None:
    job = desk.run_one()
    assert other.execute(cancel.cancel(job.id)) == "cancelling"
    assert desk.execute(finish.release(desk.host, [job.fence])).released_count == 1
    seen = desk.see(job.id)
    assert (seen.state, seen.attempt) == (JobState.CANCELLED, 0)
    assert other.take() == []
