"""Cancel and discard: the answer for each state of the job."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from support.database_host import Desk, blocked, until

from pgworkers.job import cancel, finish, requeue
from pgworkers.job.finish import JobFinish
from pgworkers.job.model import JobState, Verdict
from pgworkers.postgres.statements import Query


def test_a_job_that_waits_is_cancelled_at_once(desk: Desk) -> None:
    ready, scheduled = desk.put(), desk.put(delay=60.0)
    desk.listen()
    for job_id in (ready, scheduled):
        assert desk.execute(cancel.cancel(job_id)) == "cancelled"
        seen = desk.see(job_id)
        assert (seen.state, seen.verdict) == (JobState.CANCELLED, "cancelled")
    assert desk.notices() == [("pgworkers_done", str(ready)), ("pgworkers_done", str(scheduled))]
    assert desk.execute(cancel.cancel(ready)) == "cancelled"


def test_a_job_that_runs_is_only_flagged_once_and_its_host_told(desk: Desk) -> None:
    job = desk.run_one()
    desk.listen()
    assert desk.execute(cancel.cancel(job.id)) == "cancelling"
    first = desk.see(job.id)
    assert (first.state, desk.notices()) == (JobState.CLAIMED, [("pgworkers", f"cancel:{job.id}")])
    assert desk.execute(cancel.cancel(job.id)) == "cancelling"
    assert desk.see(job.id).cancel_at == first.cancel_at
    assert desk.end(job, JobState.CANCELLED, verdict=Verdict.CANCELLED, error="cancelled") == "written"
    assert desk.execute(cancel.cancel(job.id)) == "cancelled"


def test_no_such_job(desk: Desk) -> None:
    assert desk.execute(cancel.cancel(12345)) is None
    assert desk.execute(cancel.discard(12345)) is None


def test_a_finish_that_committed_first_wins(desk: Desk, other: Desk) -> None:
    job = desk.run_one()
    end = JobFinish(
        **job.fence._asdict(),
        state=JobState.SUCCEEDED,
        verdict=Verdict.SUCCEEDED,
    )
    with desk.conn.transaction():
        desk.execute(finish.finish(desk.host, [end]))
        waiting = other.in_thread(cancel.cancel(job.id))
        until(lambda: blocked(desk.conn, other.conn))
    assert waiting.result(timeout=20) == "succeeded"


def test_a_cancel_and_a_claim_at_once_lead_to_one_of_two_ends(desk: Desk, other: Desk) -> None:
    job_id = desk.put()
    with other.conn.transaction():
        assert other.execute(cancel.cancel(job_id)) == "cancelled"
        assert desk.take() == []  # skips the locked row
    assert desk.take() == []
    job = desk.run_one()
    assert other.execute(cancel.cancel(job.id)) == "cancelling"


def test_discarding_gives_up_what_waits_and_leaves_what_runs(desk: Desk) -> None:
    job_id, job = desk.put(delay=60.0), desk.run_one()
    assert desk.execute(cancel.discard(job_id)) == "dead"
    seen = desk.see(job_id)
    assert (seen.state, seen.verdict, seen.error) == (JobState.DEAD, "discarded", "discarded by an operator")
    assert desk.execute(cancel.discard(job.id)) == "running"
    assert desk.end(job) == "written"
    assert desk.execute(cancel.discard(job.id)) == "succeeded"
    assert desk.execute(cancel.discard(job_id)) == "dead"


def test_a_discard_that_waited_for_a_finish_answers_what_became_of_the_job(desk: Desk, other: Desk) -> None:
    job = desk.run_one()
    end = JobFinish(
        **job.fence._asdict(),
        state=JobState.SUCCEEDED,
        verdict=Verdict.SUCCEEDED,
    )
    with desk.conn.transaction():
        desk.execute(finish.finish(desk.host, [end]))
        waiting = other.in_thread(cancel.discard(job.id))
        until(lambda: blocked(desk.conn, other.conn))
    assert waiting.result(timeout=20) == "succeeded"


def test_many_at_once_each_hears_its_own_answer(desk: Desk) -> None:
    running, ended = desk.run_one(), desk.run_one()
    desk.end(ended)
    ready, scheduled = desk.put(), desk.put(delay=60.0)
    desk.listen()
    asked = [scheduled, 12345, ready, ended.id, ready, running.id]
    assert desk.execute(cancel.cancel_many(asked)) == {
        running.id: "cancelling",
        ended.id: "succeeded",
        ready: "cancelled",
        scheduled: "cancelled",
        12345: None,
    }
    assert sorted(desk.notices()) == [
        ("pgworkers", f"cancel:{running.id}"),
        ("pgworkers_done", f"{ready} {scheduled}"),
    ]
    assert desk.see(running.id).cancel_at is not None
    assert [desk.see(one).verdict for one in (ready, scheduled)] == ["cancelled", "cancelled"]
    assert desk.execute(cancel.cancel_many([])) == {}


def test_many_are_discarded_but_those_that_run(desk: Desk) -> None:
    running, waiting = desk.run_one(), [desk.put(), desk.put(delay=60.0)]
    gone = desk.execute(cancel.discard_many([*waiting, running.id, 12345]))
    assert gone == {waiting[0]: "dead", waiting[1]: "dead", running.id: "running", 12345: None}
    assert {desk.see(one).error for one in waiting} == {"discarded by an operator"}
    assert desk.see(running.id).cancel_at is None
    assert desk.end(running) == "written"


def test_waiters_are_told_to_look_themselves_when_the_ids_would_not_fit(desk: Desk) -> None:
    jobs = [desk.put() for _ in range(3)]
    desk.conn.execute("UPDATE pgworkers.job SET id = id + 1000000000000000000")
    more = desk.conn.execute(
        "INSERT INTO pgworkers.job (id, queue, task, args, priority, max_attempts, max_crashes) OVERRIDING SYSTEM VALUE"
        " SELECT 2000000000000000000 + n, 'a', 't', '{}', 0, 1, 1 FROM generate_series(1, 400) n RETURNING id"
    ).fetchall()
    desk.listen()
    answers = desk.execute(
        cancel.cancel_many([1000000000000000000 + job for job in jobs] + [row[0] for row in more])
    )
    assert (len(answers), set(answers.values())) == (403, {"cancelled"})
    assert desk.notices() == [("pgworkers_done", "*")]


@pytest.mark.parametrize("on_failed", ["cancel", "run"])
def test_a_job_and_what_waits_for_it_are_called_off_together(desk: Desk, on_failed: str) -> None:
    parent = desk.put()
    child = desk.put(after=(parent,), on_failed=on_failed)
    grandchild = desk.put(after=(child,))
    assert desk.execute(cancel.discard_many([child, parent])) == {parent: "dead", child: "dead"}
    assert desk.see(grandchild).state is JobState.CANCELLED
    assert desk.conn.execute("SELECT count(*) FROM pgworkers.dependency").fetchone() == (0,)


@pytest.mark.parametrize(
    ("verb", "answer"), [(cancel.cancel_many, "cancelled"), (cancel.discard_many, "dead")]
)
def test_one_that_ends_meanwhile_keeps_its_end_and_holds_up_no_other(
    desk: Desk, other: Desk, verb: Callable[[list[int]], Query[dict[int, str | None]]], answer: str
) -> None:
    job, waiting = desk.run_one(), desk.put()
    end = JobFinish(
        **job.fence._asdict(),
        state=JobState.SUCCEEDED,
        verdict=Verdict.SUCCEEDED,
    )
    with desk.conn.transaction():
        desk.execute(finish.finish(desk.host, [end]))
        asked = other.in_thread(verb([waiting, job.id]))
        until(lambda: blocked(desk.conn, other.conn))
    assert asked.result(timeout=20) == {job.id: "succeeded", waiting: answer}


def test_one_that_is_requeued_meanwhile_is_cancelled_all_the_same(desk: Desk, other: Desk) -> None:
    busy, dead = desk.put(), desk.put()
    desk.execute(cancel.discard(dead))
    with desk.conn.transaction():
        desk.conn.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE", [busy])
        asked = other.in_thread(cancel.cancel_many([busy, dead]))  # it has looked, and waits for the first
        until(lambda: blocked(desk.conn, other.conn))
        desk.execute(requeue.requeue([dead]))
    assert asked.result(timeout=20) == {busy: "cancelled", dead: "cancelled"}
    assert desk.see(dead).state is JobState.CANCELLED


def test_many_are_locked_in_the_order_of_their_ids_so_that_two_verbs_cannot_deadlock(
    desk: Desk, other: Desk
) -> None:
    first, second = desk.put(), desk.put()
    with desk.conn.transaction():
        desk.conn.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE", [first])
        asked = other.in_thread(cancel.cancel_many([second, first]))
        until(lambda: blocked(desk.conn, other.conn))
        try:
            desk.conn.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE NOWAIT", [second])
        except psycopg.errors.LockNotAvailable:
            pytest.fail("it holds the second while it waits for the first")
    assert asked.result(timeout=20) == {first: "cancelled", second: "cancelled"}
