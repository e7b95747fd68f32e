"""Jobs that come after others: released once, cancelled, run or kept waiting, whichever way the parents end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.desk import Desk, blocked, until
from support.endings import BAD_ENDS, waits

from pgworkers import App, NotFound, UsageError
from pgworkers.job import cancel, promote, requeue
from pgworkers.job.state import State


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
    desk.ask(promote.promote(100))
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
    desk.again(job, after=0.0)
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
    assert desk.see(parent).state in (State.DEAD, State.CANCELLED)
    found = desk.see(child)
    match policy:
        case "cancel":
            assert found.state is State.CANCELLED
            assert found.error == f"cancelled: job #{parent}, which it was to come after, did not succeed"
        case "run":
            assert found.state is State.READY
        case "wait":
            assert waits(desk, child)
    assert edges(desk) == (1 if policy == "wait" else 0)


@pytest.mark.parametrize("how", BAD_ENDS)
def test_one_that_waits_goes_on_when_an_operator_repairs_its_parent(desk: Desk, how: str) -> None:
    parent = desk.put()
    child = follow(desk, parent, on_failed="wait")
    BAD_ENDS[how](desk, parent)
    desk.ask(requeue.requeue([parent]))
    (job,) = desk.take()
    desk.end(job)
    assert desk.see(child).state is State.READY


def test_cancelling_falls_through_to_the_last_descendant_and_stops_at_those_who_do_not_mind(
    desk: Desk,
) -> None:
    root = desk.put()
    a = follow(desk, root)
    b = follow(desk, a)
    c = follow(desk, a, b)
    d = follow(desk, c, on_failed="run")
    e = follow(desk, c, on_failed="wait")
    desk.ask(cancel.cancel(root))
    assert [str(desk.see(job).state) for job in (a, b, c, d)] == ["cancelled"] * 3 + ["ready"]
    assert waits(desk, e)


def test_a_waiting_job_that_ends_by_itself_leaves_nothing_behind(desk: Desk) -> None:
    parent = desk.put()
    for how in ("cancel", "discard", "expire"):
        child = follow(desk, parent)
        BAD_ENDS[how](desk, child)
        assert desk.see(child).state in (State.DEAD, State.CANCELLED)
    assert edges(desk) == 0
    (job,) = desk.take()
    assert desk.end(job) == "written"


def test_a_parent_and_its_child_that_expire_together_have_both_expired(desk: Desk) -> None:
    parent = follow(desk, desk.put())
    child, later = follow(desk, parent), follow(desk, parent)
    desk.conn.execute("UPDATE pgworkers.job SET expires_at = now() WHERE id = ANY (%s)", [[parent, child]])
    assert desk.ask(promote.expire(10)) == 2
    assert [str(desk.see(job).state) for job in (parent, child, later)] == ["dead", "dead", "cancelled"]
    assert edges(desk) == 0


def test_an_operator_may_start_a_waiting_job_at_once(desk: Desk) -> None:
    parent = desk.put()
    child = follow(desk, parent)
    desk.ask(requeue.requeue([child]))
    (running,) = desk.take(tasks=("child",))
    assert running.id == child
    desk.ask(cancel.cancel(parent))
    assert desk.see(child).state is State.RUNNING, "it does not wait any more, so it is left alone"
    assert desk.end(running) == "written"
    assert edges(desk) == 0


def test_parents_that_have_ended_before(desk: Desk) -> None:
    done = desk.run_one()
    desk.end(done)
    dead = desk.run_one()
    desk.end(dead, State.DEAD)
    assert desk.see(follow(desk, done.id)).state is State.READY
    assert desk.see(follow(desk, done.id, dead.id)).state is State.CANCELLED
    assert desk.see(follow(desk, dead.id, on_failed="run")).state is State.READY
    patient = follow(desk, dead.id, on_failed="wait")
    assert waits(desk, patient)
    desk.ask(requeue.requeue([dead.id]))
    (again,) = desk.take()
    desk.end(again)
    assert desk.see(patient).state is State.READY


def test_a_parent_that_never_was_is_refused(desk: Desk) -> None:
    with pytest.raises(psycopg.errors.NoDataFound):
        follow(desk, 4711)


def test_a_finish_that_waits_for_a_new_follower_hears_of_it(desk: Desk, other: Desk) -> None:
    """The parent ends while somebody enqueues its child and has not committed yet."""
    job = desk.run_one()
    with other.conn.transaction():
        child = other.put(task="child", after=(job.id,))
        ending = threading.Thread(target=lambda: desk.end(job))
        ending.start()
        with psycopg.connect(
            desk.conn.info.dsn, autocommit=True, password=desk.conn.info.password
        ) as watcher:
            until(lambda: blocked(watcher, desk.conn))
    ending.join()
    assert other.see(child).state is State.READY


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
        assert desks[0].see(child).state is State.READY
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
    first.cancel()
    assert (second.state, third.state) == ("ready", "cancelled")
    with pytest.raises(NotFound, match="no job #99 to come after; nothing was enqueued"):
        t.using(after=[99]).enqueue()
    with pytest.raises(UsageError, match="leave delay and at out"):
        t.using(after=[second], delay="1m")
    with pytest.raises(UsageError, match="neither a job nor its number"):
        t.using(after=["x"])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="cannot be enqueued in bulk"):
        app.enqueue_many([t.using(after=[second]).prepare()])


def test_jobs_that_nobody_waits_for_pay_nothing(desk: Desk) -> None:
    """With a trap in the place of `ended`, every way to end works for a job that is not linked, and none for one that is."""
    definition = desk.conn.execute("SELECT pg_get_functiondef('pgworkers.ended'::regproc)").fetchone()
    assert definition is not None
    desk.conn.execute(
        "CREATE OR REPLACE FUNCTION pgworkers.ended(ids bigint[], batches bigint[], ran boolean,"
        " succeeded bigint[] DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'called'; END $$"
    )
    try:
        desk.end(desk.run_one())
        for how in BAD_ENDS.values():
            how(desk, desk.put())
        assert {state for _, state in desk.states()} == {"succeeded", "dead", "cancelled"}
        parent = desk.put()
        follow(desk, parent)
        with pytest.raises(psycopg.errors.RaiseException, match="called"):
            desk.ask(cancel.cancel(parent))
    finally:
        desk.conn.execute(definition[0])


def test_who_was_let_begin_by_an_operator_does_not_fall_with_its_parent_nor_do_those_behind_it(
    desk: Desk,
) -> None:
    parent = desk.put()
    (running,) = desk.take()
    child = follow(desk, parent)
    grandchild = follow(desk, child)
    desk.ask(requeue.requeue([child]))
    desk.end(running, State.DEAD)
    assert dict(desk.states()) == {parent: "dead", child: "ready", grandchild: "scheduled"}
    (job,) = desk.take(tasks=("child",))
    desk.end(job)
    assert [job.id for job in desk.take(tasks=("child",))] == [grandchild]
    assert edges(desk) == 0
