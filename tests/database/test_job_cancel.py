"""Cancel and discard: wishes of people, and what they find."""

from __future__ import annotations

from support.desk import Desk, blocked, until

from pgworkers.job import cancel, discard, finish
from pgworkers.job.finish import End
from pgworkers.job.state import State, Verdict


def test_a_job_that_waits_is_cancelled_at_once(desk: Desk) -> None:
    ready, scheduled = desk.put(), desk.put(delay=60.0)
    desk.listen()
    for job_id in (ready, scheduled):
        assert desk.ask(cancel.cancel(job_id)) == "cancelled"
        seen = desk.see(job_id)
        assert (seen.state, seen.verdict) == (State.CANCELLED, "cancelled")
    assert desk.notices() == [("pgworkers_done", str(ready)), ("pgworkers_done", str(scheduled))]
    assert desk.ask(cancel.cancel(ready)) == "cancelled"


def test_a_job_that_runs_is_only_flagged_once_and_its_host_told(desk: Desk) -> None:
    job = desk.run_one()
    desk.listen()
    assert desk.ask(cancel.cancel(job.id)) == "cancelling"
    first = desk.see(job.id)
    assert (first.state, desk.notices()) == (State.RUNNING, [("pgworkers", f"cancel:{job.id}")])
    assert desk.ask(cancel.cancel(job.id)) == "cancelling"
    assert desk.see(job.id).cancel_at == first.cancel_at
    assert desk.end(job, State.CANCELLED, verdict=Verdict.CANCELLED, error="cancelled") == "written"
    assert desk.ask(cancel.cancel(job.id)) == "cancelled"


def test_no_such_job(desk: Desk) -> None:
    assert desk.ask(cancel.cancel(12345)) is None
    assert desk.ask(discard.discard(12345)) is None


def test_a_finish_that_committed_first_wins(desk: Desk, other: Desk) -> None:
    job = desk.run_one()
    end = End(id=job.id, lease=job.lease, state=State.SUCCEEDED, verdict=Verdict.SUCCEEDED)
    with desk.conn.transaction():
        desk.ask(finish.finish(desk.host, [end]))
        waiting = other.in_thread(cancel.cancel(job.id))
        until(lambda: blocked(desk.conn, other.conn))
    assert waiting.result(timeout=20) == "succeeded"


def test_a_cancel_and_a_claim_at_once_lead_to_one_of_two_ends(desk: Desk, other: Desk) -> None:
    job_id = desk.put()
    with other.conn.transaction():
        assert other.ask(cancel.cancel(job_id)) == "cancelled"
        assert desk.take() == []  # skips the locked row
    assert desk.take() == []
    job = desk.run_one()
    assert other.ask(cancel.cancel(job.id)) == "cancelling"


def test_discarding_gives_up_what_waits_and_leaves_what_runs(desk: Desk) -> None:
    job_id, job = desk.put(delay=60.0), desk.run_one()
    assert desk.ask(discard.discard(job_id)) == "dead"
    seen = desk.see(job_id)
    assert (seen.state, seen.verdict, seen.error) == (State.DEAD, "discarded", "discarded by an operator")
    assert desk.ask(discard.discard(job.id)) == "running"
    assert desk.end(job) == "written"
    assert desk.ask(discard.discard(job.id)) == "succeeded"
    assert desk.ask(discard.discard(job_id)) == "dead"


def test_a_discard_that_waited_for_a_finish_answers_what_became_of_the_job(desk: Desk, other: Desk) -> None:
    job = desk.run_one()
    end = End(id=job.id, lease=job.lease, state=State.SUCCEEDED, verdict=Verdict.SUCCEEDED)
    with desk.conn.transaction():
        desk.ask(finish.finish(desk.host, [end]))
        waiting = other.in_thread(discard.discard(job.id))
        until(lambda: blocked(desk.conn, other.conn))
    assert waiting.result(timeout=20) == "succeeded"
