"""Jobs that come after others: released once, cancelled, run or kept waiting, whichever way the parents end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.bad_endings import BAD_ENDS, waits
from support.database_host import Desk

from pgworkers import App, NotFound, UsageError
from pgworkers.job import burst, cancel, enqueue, finish, maintenance, requeue
from pgworkers.job.maintenance import due_duties
from pgworkers.job.model import ClaimedJob, JobState, NewJob, Verdict


def edges(desk: Desk) -> int:
    row = desk.conn.execute("SELECT count(*) FROM pgworkers.dependency").fetchone()
    assert row is not None
    return int(row[0])


def follow(desk: Desk, *parents: int, **more: Any) -> int:
    return desk.put(task="child", after=parents, **more)


def test_it_waits_for_all_of_them_and_runs_once(desk: Desk) -> None:
    first, second = desk.put(), desk.put()
    child = follow(desk, first, second)
    desk.listen()
    assert waits(desk, child)
    desk.execute(maintenance.promote_due(100))
    assert waits(desk, child), "no time ever comes for it"
    one, two = desk.take(9, tasks=("t", "child"))
    desk.end(one)
    assert waits(desk, child)
    desk.notices()
    desk.end(two)
    assert ("pgworkers", "ready:a") in desk.notices()
    assert [job.id for job in desk.take(tasks=("child",))] == [child]
    assert edges(desk) == 0


def test_it_waits_for_retries_too(desk: Desk) -> None:
    parent = desk.put()
    child = follow(desk, parent)
    (job,) = desk.take()
    desk.again(job, delay_seconds=0.0)
    assert waits(desk, child)
    (job,) = desk.take()
    desk.end(job)
    assert not waits(desk, child)


@pytest.mark.parametrize("how", BAD_ENDS)
@pytest.mark.parametrize("policy", ["cancel", "run", "wait"])
def test_a_parent_that_fails_in_any_way_leads_to_what_the_child_said(
    desk: Desk, how: str, policy: str
) -> None:
    parent = desk.put()
    child = follow(desk, parent, on_failed=policy)
    BAD_ENDS[how](desk, parent)
    assert desk.see(parent).state in (JobState.DEAD, JobState.CANCELLED)
    found = desk.see(child)
    match policy:
        case "cancel":
            assert found.state is JobState.CANCELLED
            assert found.error == f"cancelled: job #{parent}, which it waited for, did not succeed"
        case "run":
            assert found.state is JobState.READY
        case "wait":
            assert waits(desk, child)
    assert edges(desk) == (1 if policy == "wait" else 0)


@pytest.mark.parametrize("how", BAD_ENDS)
def test_one_that_waits_goes_on_when_an_operator_repairs_its_parent(desk: Desk, how: str) -> None:
    parent = desk.put()
    child = follow(desk, parent, on_failed="wait")
    BAD_ENDS[how](desk, parent)
    desk.execute(requeue.requeue([parent]))
    (job,) = desk.take()
    desk.end(job)
    assert desk.see(child).state is JobState.READY


def test_cancelling_falls_through_to_the_last_descendant_and_stops_at_those_who_do_not_mind(
    desk: Desk,
) -> None:
    root = desk.put()
    a = follow(desk, root)
    b = follow(desk, a)
    c = follow(desk, a, b)
    d = follow(desk, c, on_failed="run")
    e = follow(desk, c, on_failed="wait")
    desk.execute(cancel.cancel(root))
    assert [str(desk.see(job).state) for job in (a, b, c, d)] == ["cancelled"] * 3 + ["ready"]
    assert waits(desk, e)


def test_a_waiting_job_that_ends_by_itself_leaves_nothing_behind(desk: Desk) -> None:
    parent = desk.put()
    for how in ("cancel", "discard", "expire"):
        child = follow(desk, parent)
        BAD_ENDS[how](desk, child)
        assert desk.see(child).state in (JobState.DEAD, JobState.CANCELLED)
    assert edges(desk) == 0
    (job,) = desk.take()
    assert desk.end(job) == "written"


def test_a_parent_and_its_child_that_expire_together_have_both_expired(desk: Desk) -> None:
    parent = follow(desk, desk.put())
    child, later = follow(desk, parent), follow(desk, parent)
    desk.conn.execute("UPDATE pgworkers.job SET expires_at = now() WHERE id = ANY (%s)", [[parent, child]])
    assert desk.execute(maintenance.expire_jobs(10)) == 2
    assert [str(desk.see(job).state) for job in (parent, child, later)] == ["dead", "dead", "cancelled"]
    assert edges(desk) == 0


def test_an_operator_may_start_a_waiting_job_at_once(desk: Desk) -> None:
    parent = desk.put()
    child = follow(desk, parent)
    desk.execute(requeue.requeue([child]))
    (running,) = desk.take(tasks=("child",))
    assert running.id == child
    desk.execute(cancel.cancel(parent))
    assert desk.see(child).state is JobState.CLAIMED, "it does not wait any more, so it is left alone"
    assert desk.end(running) == "written"
    assert edges(desk) == 0


def test_parents_that_have_ended_before(desk: Desk) -> None:
    done = desk.run_one()
    desk.end(done)
    dead = desk.run_one()
    desk.end(dead, JobState.DEAD)
    assert desk.see(follow(desk, done.id)).state is JobState.READY
    assert desk.see(follow(desk, done.id, dead.id)).state is JobState.CANCELLED
    assert desk.see(follow(desk, dead.id, on_failed="run")).state is JobState.READY
    patient = follow(desk, dead.id, on_failed="wait")
    assert waits(desk, patient)
    desk.execute(requeue.requeue([dead.id]))
    (again,) = desk.take()
    desk.end(again)
    assert desk.see(patient).state is JobState.READY


def test_a_parent_that_never_was_is_refused(desk: Desk) -> None:
    with pytest.raises(psycopg.errors.NoDataFound):
        follow(desk, 4711)


def test_a_finish_while_the_leader_links_a_new_follower_hears_of_it(desk: Desk, other: Desk) -> None:
    """The parent ends while the leader marks it and has not committed yet."""
    job = desk.run_one()
    child = other.execute(enqueue.enqueue(NewJob("child", queue="a", after=(job.id,)))).id
    with other.conn.transaction():
        assert other.execute(maintenance.link_dependencies(100)) == 1
        assert desk.end(job) == "locked", "it waits for nothing, and is sent again"
    assert desk.end(job) == "written"
    assert other.see(child).state is JobState.READY


@pytest.mark.parametrize("how", ["succeeded", "dead", "requeued"])
@pytest.mark.parametrize("policy", ["cancel", "run", "wait"])
def test_a_parent_that_ended_before_the_leader_linked_it(desk: Desk, how: str, policy: str) -> None:
    job = desk.run_one()
    new = NewJob("child", queue="a", after=(job.id,), on_failed=policy)  # type: ignore[arg-type]
    child = desk.execute(enqueue.enqueue(new)).id
    desk.end(job, JobState.SUCCEEDED if how == "succeeded" else JobState.DEAD)
    if how == "requeued":
        desk.execute(requeue.requeue([job.id]))
    assert waits(desk, child)
    assert desk.execute(maintenance.link_dependencies(100)) == 1
    if how == "requeued" or (how == "dead" and policy == "wait"):
        assert waits(desk, child)
        desk.execute(requeue.requeue([job.id]))
        (again,) = desk.take()
        desk.end(again)
    if how == "dead" and policy == "cancel":
        assert desk.see(child).error == f"cancelled: job #{job.id}, which it waited for, did not succeed"
    else:
        assert desk.see(child).state is JobState.READY
    assert edges(desk) == 0
    assert desk.execute(maintenance.link_dependencies(100)) == 0


def test_parents_that_end_at_the_same_moment_release_the_child_once(
    session: Callable[[], psycopg.Connection[Any]], schema: str
) -> None:
    desks = [Desk(session(), schema) for _ in range(4)]
    for desk in desks:
        desk.register()
    for _ in range(15):
        for _ in desks:
            desks[0].put()
        held = [desk.take()[0] for desk in desks]
        child = follow(desks[0], *(job.id for job in held))
        start = threading.Barrier(len(desks))

        def end(n: int, start: threading.Barrier = start, held: list[Any] = held) -> None:
            start.wait()
            desks[n].end(held[n])

        threads = [threading.Thread(target=end, args=(n,)) for n in range(len(desks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        desks[0].execute(
            maintenance.link_dependencies(100)
        )  # of two that touch the child at once, one leaves it to the leader
        assert desks[0].see(child).state is JobState.READY
        (job,) = desks[0].take(9, tasks=("child",))
        desks[0].end(job)
    assert edges(desks[0]) == 0


def test_one_finish_of_many_parents_and_many_children(desk: Desk) -> None:
    """A diamond of layers: 20 layers of 10, each job after all of the layer before."""
    layers = [[desk.put() for _ in range(10)]]
    for _ in range(19):
        layers.append([desk.put(after=layers[-1]) for _ in range(10)])
    order: list[int] = []
    while jobs := desk.take(100):
        order += [job.id for job in jobs]
        for job in jobs:
            desk.end(job)
    assert order == [job for layer in layers for job in layer]


@pytest.fixture
def app(emptied: str) -> Iterator[App]:
    made = App(dsn=emptied)
    made.queue("a")
    yield made
    made.close()


def test_from_python(app: App, desk: Desk) -> None:
    @app.task
    def t() -> None: ...

    first = t.enqueue()
    second = t.using(after=[first], on_failed="run").enqueue()
    third = t.using(after=[first.id, second]).enqueue()
    assert (second.state, third.state) == ("scheduled", "scheduled")
    assert desk.execute(maintenance.link_dependencies(100)) == 3
    first.cancel()
    assert (second.state, third.state) == ("ready", "cancelled")
    with pytest.raises(NotFound, match="no job #99 to come after; nothing was enqueued"):
        t.using(after=[99]).enqueue()
    with pytest.raises(UsageError, match="leave delay and at out"):
        t.using(after=[second], delay="1m")
    with pytest.raises(UsageError, match="neither a job nor its number"):
        t.using(after=["x"])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="1001 jobs, at most 1000"):
        t.using(after=[second] * 1001)
    with pytest.raises(UsageError, match="cannot be enqueued in bulk"):
        app.enqueue_many([t.using(after=[second]).prepare()])


def test_jobs_that_nobody_waits_for_pay_nothing(desk: Desk) -> None:
    """With a trap in the place of `settle_dependents`, every way to end works for a job that is not linked, and none for
    one that is."""
    definition = desk.conn.execute(
        "SELECT pg_get_functiondef('pgworkers.settle_dependents'::regproc)"
    ).fetchone()
    assert definition is not None
    desk.conn.execute(
        "CREATE OR REPLACE FUNCTION pgworkers.settle_dependents(ids bigint[], batch_ids bigint[], were_running boolean,"
        " succeeded_ids bigint[] DEFAULT NULL, max_links integer DEFAULT 1000) RETURNS void LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'called'; END $$"
    )
    try:
        desk.end(desk.run_one())
        for how in BAD_ENDS.values():
            how(desk, desk.put())
        assert {state for _, state in desk.states()} == {"succeeded", "dead", "cancelled"}
        parent = desk.put()
        follow(desk, parent)
        with pytest.raises(psycopg.errors.RaiseException, match="called"):
            desk.execute(cancel.cancel(parent))
    finally:
        desk.conn.execute(definition[0])


def test_who_was_let_begin_by_an_operator_does_not_fall_with_its_parent_nor_do_those_behind_it(
    desk: Desk,
) -> None:
    parent = desk.put()
    (running,) = desk.take()
    child = follow(desk, parent)
    grandchild = follow(desk, child)
    desk.execute(requeue.requeue([child]))
    desk.end(running, JobState.DEAD)
    assert dict(desk.states()) == {parent: "dead", child: "ready", grandchild: "scheduled"}
    (job,) = desk.take(tasks=("child",))
    desk.end(job)
    assert [job.id for job in desk.take(tasks=("child",))] == [grandchild]
    assert edges(desk) == 0


def many_followers(desk: Desk, count: int, on_failed: str = "cancel") -> ClaimedJob:
    """A running parent that has as many linked followers."""
    parent = desk.run_one()
    desk.conn.execute(
        "WITH made AS (INSERT INTO pgworkers.job (state, run_at, queue, task, has_links)"
        " SELECT 'scheduled', pgworkers.far_future(), 'a', 'child', true FROM generate_series(1, %s) RETURNING id)"
        " INSERT INTO pgworkers.dependency SELECT %s, id, %s, true FROM made",
        [count, parent.id, on_failed],
    )
    desk.conn.execute("UPDATE pgworkers.job SET has_links = true WHERE id = %s", [parent.id])
    return parent


def written(desk: Desk) -> int:
    """Rows that this session has written and not yet reported, as it does between transactions."""
    row = desk.conn.execute(
        "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_xact_user_tables WHERE schemaname = 'pgworkers'"
    ).fetchone()
    assert row is not None
    return int(row[0])


def followers(desk: Desk) -> dict[str, int]:
    return dict(
        desk.conn.execute("SELECT state::text, count(*) FROM pgworkers.jobs WHERE task = 'child' GROUP BY 1")
    )


@pytest.mark.parametrize(
    ("end", "becomes"),
    [(JobState.DEAD, "cancelled"), (JobState.SUCCEEDED, "ready")],
    ids=["fails", "succeeds"],
)
def test_more_followers_than_one_portion_are_settled_in_portions(
    desk: Desk, end: JobState, becomes: str
) -> None:
    parent = many_followers(desk, 2500)
    one = finish.JobFinish(**parent.fence._asdict(), state=end, verdict=Verdict.SUCCEEDED)
    with desk.conn.transaction():
        before = written(desk)
        desk.execute(finish.finish(desk.host, [one]))
        assert written(desk) - before < 10, "the end itself does not wait for them"
    assert followers(desk) == {"scheduled": 2500}
    done = 0
    while done < 2500:
        with desk.conn.transaction(force_rollback=True):  # a leader that dies in the middle
            desk.execute(maintenance.link_dependencies(1000))
        assert followers(desk).get(becomes, 0) == done, "all of a portion or nothing"
        with desk.conn.transaction():
            before = written(desk)
            desk.execute(maintenance.link_dependencies(1000))
            assert written(desk) - before < 10 * 1000
        found = followers(desk)
        assert done < found[becomes] <= done + 1000
        done = found[becomes]
    desk.execute(maintenance.link_dependencies(1000))
    assert followers(desk) == {becomes: 2500}
    assert edges(desk) == 0
    assert desk.conn.execute("SELECT FROM pgworkers.ended_parent").fetchone() is None


def test_a_cascade_wider_than_a_portion_goes_on_below(desk: Desk) -> None:
    parent = many_followers(desk, 40)
    desk.conn.execute(
        "WITH made AS (INSERT INTO pgworkers.job (state, run_at, queue, task, has_links)"
        " SELECT 'scheduled', pgworkers.far_future(), 'a', 'child', false FROM pgworkers.dependency, generate_series(1, 40)"
        " RETURNING id), numbered AS (SELECT id, row_number() OVER () AS n FROM made)"
        " INSERT INTO pgworkers.dependency"
        " SELECT %s + 1 + n %% 40, id, 'cancel', true FROM numbered",
        [parent.id],
    )
    one = finish.JobFinish(**parent.fence._asdict(), state=JobState.DEAD, verdict=Verdict.ERROR)
    with desk.conn.transaction():
        before = written(desk)
        desk.execute(finish.finish(desk.host, [one]))
        assert written(desk) - before < 10 * 1000
    assert followers(desk) == {"cancelled": 40, "scheduled": 1600}
    while desk.execute(maintenance.link_dependencies(1000)):
        pass
    assert followers(desk) == {"cancelled": 1640}


def test_followers_of_a_requeued_parent_wait_for_it_again(desk: Desk) -> None:
    parent = many_followers(desk, 1500)
    desk.execute(
        finish.finish(
            desk.host,
            [finish.JobFinish(**parent.fence._asdict(), state=JobState.DEAD, verdict=Verdict.ERROR)],
        )
    )
    desk.execute(requeue.requeue([parent.id]))
    while desk.execute(maintenance.link_dependencies(1000)):
        pass
    assert followers(desk) == {"scheduled": 1500}
    (job,) = desk.take()
    desk.end(job)
    while desk.execute(maintenance.link_dependencies(1000)):
        pass
    assert followers(desk) == {"ready": 1500}


def test_the_leader_is_told_of_followers_that_are_left(desk: Desk) -> None:
    parent = many_followers(desk, 1001)
    assert desk.execute(due_duties())["link_dependencies"] is None
    desk.execute(
        finish.finish(
            desk.host,
            [finish.JobFinish(**parent.fence._asdict(), state=JobState.DEAD, verdict=Verdict.ERROR)],
        )
    )
    assert desk.execute(due_duties())["link_dependencies"] == 0
    assert desk.execute(burst.unfinished_work(["a"], ["child"])).jobs == 1001


def test_a_burst_waits_for_the_followers_of_a_success_that_are_left(desk: Desk) -> None:
    parent = many_followers(desk, 1101)
    desk.conn.execute("UPDATE pgworkers.dependency SET on_failed = 'wait'")
    one = finish.JobFinish(**parent.fence._asdict(), state=JobState.SUCCEEDED, verdict=Verdict.SUCCEEDED)
    desk.execute(finish.finish(desk.host, [one]))
    assert desk.execute(burst.unfinished_work(["a"], ["child"])).jobs == 1101


def test_the_end_of_a_parent_does_not_wait_for_the_links_of_another(desk: Desk, other: Desk) -> None:
    """Or two ends with a follower in common could wait for each other."""
    failing, busy = desk.put(), desk.put()
    child = follow(desk, failing, busy)
    (job, _) = desk.take(2)
    with other.conn.transaction():
        other.conn.execute("UPDATE pgworkers.dependency SET linked = false WHERE parent_id = %s", [busy])
        desk.conn.execute("SET lock_timeout = '5s'")
        desk.end(job, JobState.DEAD, verdict=Verdict.ERROR)
    assert desk.see(child).state is JobState.CANCELLED
    desk.execute(maintenance.link_dependencies(10))
    assert edges(desk) == 0


def test_a_chain_longer_than_a_portion_is_settled_a_portion_at_a_time(desk: Desk) -> None:
    parent = many_followers(desk, 2500)
    desk.conn.execute("UPDATE pgworkers.dependency SET parent_id = job_id - 1")
    desk.execute(
        finish.finish(
            desk.host,
            [finish.JobFinish(**parent.fence._asdict(), state=JobState.DEAD, verdict=Verdict.ERROR)],
        )
    )
    assert followers(desk) == {"cancelled": 1000, "scheduled": 1500}
    looks = 0
    while desk.execute(maintenance.link_dependencies(1000)):
        looks += 1
    assert followers(desk) == {"cancelled": 2500}
    assert looks < 10
