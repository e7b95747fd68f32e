"""Cancel and discard: the answer for each state of the job."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from support.database_host import DatabaseHost, blocked, until

from pgworkers.job import cancel, finish, requeue
from pgworkers.job.finish import JobFinish
from pgworkers.job.model import JobState, Verdict
from pgworkers.postgres.statements import Query


def test_a_job_that_waits_is_cancelled_at_once(host: DatabaseHost) -> None:
    ready, scheduled = host.enqueue(), host.enqueue(delay=60.0)
    host.listen()
    for job_id in (ready, scheduled):
        assert host.execute(cancel.cancel(job_id)) == "cancelled"
        seen = host.job_view(job_id)
        assert (seen.state, seen.verdict) == (JobState.CANCELLED, "cancelled")
    assert host.notifications() == [("pgworkers_done", str(ready)), ("pgworkers_done", str(scheduled))]
    assert host.execute(cancel.cancel(ready)) == "cancelled"


def test_a_running_job_is_flagged_once_and_its_host_notified(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    host.listen()
    assert host.execute(cancel.cancel(job.id)) == "cancelling"
    first = host.job_view(job.id)
    assert (first.state, host.notifications()) == (JobState.CLAIMED, [("pgworkers", f"cancel:{job.id}")])
    assert host.execute(cancel.cancel(job.id)) == "cancelling"
    assert host.job_view(job.id).cancel_at == first.cancel_at
    assert host.finish_job(job, JobState.CANCELLED, verdict=Verdict.CANCELLED, error="cancelled") == "written"
    assert host.execute(cancel.cancel(job.id)) == "cancelled"


def test_no_such_job(host: DatabaseHost) -> None:
    assert host.execute(cancel.cancel(12345)) is None
    assert host.execute(cancel.discard(12345)) is None


def test_a_finish_that_committed_first_wins(host: DatabaseHost, other: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    end = JobFinish(
        **job.fence._asdict(),
        state=JobState.SUCCEEDED,
        verdict=Verdict.SUCCEEDED,
    )
    with host.conn.transaction():
        host.execute(finish.finish(host.id, [end]))
        waiting = other.in_thread(cancel.cancel(job.id))
        until(lambda: blocked(host.conn, other.conn))
    assert waiting.result(timeout=20) == "succeeded"


def test_a_cancel_and_a_claim_at_once_lead_to_one_of_two_ends(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    job_id = host.enqueue()
    with other.conn.transaction():
        assert other.execute(cancel.cancel(job_id)) == "cancelled"
        assert host.claim() == []  # skips the locked row
    assert host.claim() == []
    job = host.enqueue_and_claim()
    assert other.execute(cancel.cancel(job.id)) == "cancelling"


def test_discarding_gives_up_what_waits_and_leaves_what_runs(host: DatabaseHost) -> None:
    job_id, job = host.enqueue(delay=60.0), host.enqueue_and_claim()
    assert host.execute(cancel.discard(job_id)) == "dead"
    seen = host.job_view(job_id)
    assert (seen.state, seen.verdict, seen.error) == (JobState.DEAD, "discarded", "discarded by an operator")
    assert host.execute(cancel.discard(job.id)) == "running"
    assert host.finish_job(job) == "written"
    assert host.execute(cancel.discard(job.id)) == "succeeded"
    assert host.execute(cancel.discard(job_id)) == "dead"


def test_a_discard_that_waited_for_a_finish_answers_what_became_of_the_job(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    job = host.enqueue_and_claim()
    end = JobFinish(
        **job.fence._asdict(),
        state=JobState.SUCCEEDED,
        verdict=Verdict.SUCCEEDED,
    )
    with host.conn.transaction():
        host.execute(finish.finish(host.id, [end]))
        waiting = other.in_thread(cancel.discard(job.id))
        until(lambda: blocked(host.conn, other.conn))
    assert waiting.result(timeout=20) == "succeeded"


def test_a_cancel_of_many_returns_an_answer_for_each(host: DatabaseHost) -> None:
    running, ended = host.enqueue_and_claim(), host.enqueue_and_claim()
    host.finish_job(ended)
    ready, scheduled = host.enqueue(), host.enqueue(delay=60.0)
    host.listen()
    asked = [scheduled, 12345, ready, ended.id, ready, running.id]
    assert host.execute(cancel.cancel_many(asked)) == {
        running.id: "cancelling",
        ended.id: "succeeded",
        ready: "cancelled",
        scheduled: "cancelled",
        12345: None,
    }
    assert sorted(host.notifications()) == [
        ("pgworkers", f"cancel:{running.id}"),
        ("pgworkers_done", f"{ready} {scheduled}"),
    ]
    assert host.job_view(running.id).cancel_at is not None
    assert [host.job_view(one).verdict for one in (ready, scheduled)] == ["cancelled", "cancelled"]
    assert host.execute(cancel.cancel_many([])) == {}


def test_many_are_discarded_but_those_that_run(host: DatabaseHost) -> None:
    running, waiting = host.enqueue_and_claim(), [host.enqueue(), host.enqueue(delay=60.0)]
    gone = host.execute(cancel.discard_many([*waiting, running.id, 12345]))
    assert gone == {waiting[0]: "dead", waiting[1]: "dead", running.id: "running", 12345: None}
    assert {host.job_view(one).error for one in waiting} == {"discarded by an operator"}
    assert host.job_view(running.id).cancel_at is None
    assert host.finish_job(running) == "written"


def test_waiters_are_notified_without_ids_when_these_do_not_fit(host: DatabaseHost) -> None:
    jobs = [host.enqueue() for _ in range(3)]
    host.conn.execute("UPDATE pgworkers.job SET id = id + 1000000000000000000")
    more = host.conn.execute(
        "INSERT INTO pgworkers.job (id, queue, task, args, priority, max_attempts, max_crashes) OVERRIDING SYSTEM VALUE"
        " SELECT 2000000000000000000 + n, 'a', 't', '{}', 0, 1, 1 FROM generate_series(1, 400) n RETURNING id"
    ).fetchall()
    host.listen()
    answers = host.execute(
        cancel.cancel_many([1000000000000000000 + job for job in jobs] + [row[0] for row in more])
    )
    assert (len(answers), set(answers.values())) == (403, {"cancelled"})
    assert host.notifications() == [("pgworkers_done", "*")]


@pytest.mark.parametrize("on_failed", ["cancel", "run"])
def test_a_job_and_what_waits_for_it_are_called_off_together(host: DatabaseHost, on_failed: str) -> None:
    parent = host.enqueue()
    child = host.enqueue(after=(parent,), on_failed=on_failed)
    grandchild = host.enqueue(after=(child,))
    assert host.execute(cancel.discard_many([child, parent])) == {parent: "dead", child: "dead"}
    assert host.job_view(grandchild).state is JobState.CANCELLED
    assert host.conn.execute("SELECT count(*) FROM pgworkers.dependency").fetchone() == (0,)


@pytest.mark.parametrize(
    ("verb", "answer"), [(cancel.cancel_many, "cancelled"), (cancel.discard_many, "dead")]
)
def test_one_that_ends_meanwhile_keeps_its_end_and_holds_up_no_other(
    host: DatabaseHost,
    other: DatabaseHost,
    verb: Callable[[list[int]], Query[dict[int, str | None]]],
    answer: str,
) -> None:
    job, waiting = host.enqueue_and_claim(), host.enqueue()
    end = JobFinish(
        **job.fence._asdict(),
        state=JobState.SUCCEEDED,
        verdict=Verdict.SUCCEEDED,
    )
    with host.conn.transaction():
        host.execute(finish.finish(host.id, [end]))
        asked = other.in_thread(verb([waiting, job.id]))
        until(lambda: blocked(host.conn, other.conn))
    assert asked.result(timeout=20) == {job.id: "succeeded", waiting: answer}


def test_a_job_that_is_requeued_meanwhile_is_still_cancelled(host: DatabaseHost, other: DatabaseHost) -> None:
    busy, dead = host.enqueue(), host.enqueue()
    host.execute(cancel.discard(dead))
    with host.conn.transaction():
        host.conn.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE", [busy])
        asked = other.in_thread(cancel.cancel_many([busy, dead]))  # it has looked, and waits for the first
        until(lambda: blocked(host.conn, other.conn))
        host.execute(requeue.requeue([dead]))
    assert asked.result(timeout=20) == {busy: "cancelled", dead: "cancelled"}
    assert host.job_view(dead).state is JobState.CANCELLED


def test_many_are_locked_in_the_order_of_their_ids_so_that_two_verbs_cannot_deadlock(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    first, second = host.enqueue(), host.enqueue()
    with host.conn.transaction():
        host.conn.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE", [first])
        asked = other.in_thread(cancel.cancel_many([second, first]))
        until(lambda: blocked(host.conn, other.conn))
        try:
            host.conn.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE NOWAIT", [second])
        except psycopg.errors.LockNotAvailable:
            pytest.fail("it holds the second while it waits for the first")
    assert asked.result(timeout=20) == {first: "cancelled", second: "cancelled"}
