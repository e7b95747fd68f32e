"""Jobs that come after others: released once, cancelled, run or kept waiting, whichever way the parents end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.bad_endings import BAD_ENDS, waits
from support.database_host import DatabaseHost

from pgworkers import App, NotFound, UsageError
from pgworkers.job import burst, cancel, enqueue, finish, maintenance, requeue
from pgworkers.job.maintenance import due_duties
from pgworkers.job.model import ClaimedJob, JobState, NewJob, Verdict


def edges(host: DatabaseHost) -> int:
    row = host.conn.execute("SELECT count(*) FROM pgworkers.dependency").fetchone()
    assert row is not None
    return int(row[0])


def follow(host: DatabaseHost, *parents: int, **more: Any) -> int:
    return host.enqueue(task="child", after=parents, **more)


def test_it_waits_for_all_of_them_and_runs_once(host: DatabaseHost) -> None:
    first, second = host.enqueue(), host.enqueue()
    child = follow(host, first, second)
    host.listen()
    assert waits(host, child)
    host.execute(maintenance.promote_due(100))
    assert waits(host, child), "no time ever comes for it"
    one, two = host.claim(9, tasks=("t", "child"))
    host.finish_job(one)
    assert waits(host, child)
    host.notifications()
    host.finish_job(two)
    assert ("pgworkers", "ready:a") in host.notifications()
    assert [job.id for job in host.claim(tasks=("child",))] == [child]
    assert edges(host) == 0


def test_it_waits_for_retries_too(host: DatabaseHost) -> None:
    parent = host.enqueue()
    child = follow(host, parent)
    (job,) = host.claim()
    host.retry_job(job, delay_seconds=0.0)
    assert waits(host, child)
    (job,) = host.claim()
    host.finish_job(job)
    assert not waits(host, child)


@pytest.mark.parametrize("how", BAD_ENDS)
@pytest.mark.parametrize("policy", ["cancel", "run", "wait"])
def test_a_parent_that_fails_in_any_way_triggers_on_failed_of_the_child(
    host: DatabaseHost, how: str, policy: str
) -> None:
    parent = host.enqueue()
    child = follow(host, parent, on_failed=policy)
    BAD_ENDS[how](host, parent)
    assert host.job_view(parent).state in (JobState.DEAD, JobState.CANCELLED)
    found = host.job_view(child)
    match policy:
        case "cancel":
            assert found.state is JobState.CANCELLED
            assert found.error == f"cancelled: job #{parent}, which it waited for, did not succeed"
        case "run":
            assert found.state is JobState.READY
        case "wait":
            assert waits(host, child)
    assert edges(host) == (1 if policy == "wait" else 0)


@pytest.mark.parametrize("how", BAD_ENDS)
def test_one_that_waits_goes_on_when_an_operator_repairs_its_parent(host: DatabaseHost, how: str) -> None:
    parent = host.enqueue()
    child = follow(host, parent, on_failed="wait")
    BAD_ENDS[how](host, parent)
    host.execute(requeue.requeue([parent]))
    (job,) = host.claim()
    host.finish_job(job)
    assert host.job_view(child).state is JobState.READY


def test_a_cancel_cascades_to_all_descendants_except_those_that_run_anyway(
    host: DatabaseHost,
) -> None:
    root = host.enqueue()
    a = follow(host, root)
    b = follow(host, a)
    c = follow(host, a, b)
    d = follow(host, c, on_failed="run")
    e = follow(host, c, on_failed="wait")
    host.execute(cancel.cancel(root))
    assert [str(host.job_view(job).state) for job in (a, b, c, d)] == ["cancelled"] * 3 + ["ready"]
    assert waits(host, e)


def test_a_waiting_job_that_ends_by_itself_leaves_nothing_behind(host: DatabaseHost) -> None:
    parent = host.enqueue()
    for how in ("cancel", "discard", "expire"):
        child = follow(host, parent)
        BAD_ENDS[how](host, child)
        assert host.job_view(child).state in (JobState.DEAD, JobState.CANCELLED)
    assert edges(host) == 0
    (job,) = host.claim()
    assert host.finish_job(job) == "written"


def test_a_parent_and_its_child_that_expire_together_have_both_expired(host: DatabaseHost) -> None:
    parent = follow(host, host.enqueue())
    child, later = follow(host, parent), follow(host, parent)
    host.conn.execute("UPDATE pgworkers.job SET expires_at = now() WHERE id = ANY (%s)", [[parent, child]])
    assert host.execute(maintenance.expire_jobs(10)) == 2
    assert [str(host.job_view(job).state) for job in (parent, child, later)] == ["dead", "dead", "cancelled"]
    assert edges(host) == 0


def test_an_operator_may_start_a_waiting_job_at_once(host: DatabaseHost) -> None:
    parent = host.enqueue()
    child = follow(host, parent)
    host.execute(requeue.requeue([child]))
    (running,) = host.claim(tasks=("child",))
    assert running.id == child
    host.execute(cancel.cancel(parent))
    assert host.job_view(child).state is JobState.CLAIMED, "it does not wait any more, so it is left alone"
    assert host.finish_job(running) == "written"
    assert edges(host) == 0


def test_parents_that_have_ended_before(host: DatabaseHost) -> None:
    done = host.enqueue_and_claim()
    host.finish_job(done)
    dead = host.enqueue_and_claim()
    host.finish_job(dead, JobState.DEAD)
    assert host.job_view(follow(host, done.id)).state is JobState.READY
    assert host.job_view(follow(host, done.id, dead.id)).state is JobState.CANCELLED
    assert host.job_view(follow(host, dead.id, on_failed="run")).state is JobState.READY
    patient = follow(host, dead.id, on_failed="wait")
    assert waits(host, patient)
    host.execute(requeue.requeue([dead.id]))
    (again,) = host.claim()
    host.finish_job(again)
    assert host.job_view(patient).state is JobState.READY


def test_a_parent_that_never_was_is_refused(host: DatabaseHost) -> None:
    with pytest.raises(psycopg.errors.NoDataFound):
        follow(host, 4711)


def test_a_finish_during_the_linking_of_a_child_releases_the_child(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    """The parent ends while the leader marks it and has not committed yet."""
    job = host.enqueue_and_claim()
    child = other.execute(enqueue.enqueue(NewJob("child", queue="a", after=(job.id,)))).id
    with other.conn.transaction():
        assert other.execute(maintenance.link_dependencies(100)) == 1
        assert host.finish_job(job) == "locked", "it waits for nothing, and is sent again"
    assert host.finish_job(job) == "written"
    assert other.job_view(child).state is JobState.READY


@pytest.mark.parametrize("how", ["succeeded", "dead", "requeued"])
@pytest.mark.parametrize("policy", ["cancel", "run", "wait"])
def test_a_parent_that_ended_before_the_leader_linked_it(host: DatabaseHost, how: str, policy: str) -> None:
    job = host.enqueue_and_claim()
    new = NewJob("child", queue="a", after=(job.id,), on_failed=policy)  # type: ignore[arg-type]
    child = host.execute(enqueue.enqueue(new)).id
    host.finish_job(job, JobState.SUCCEEDED if how == "succeeded" else JobState.DEAD)
    if how == "requeued":
        host.execute(requeue.requeue([job.id]))
    assert waits(host, child)
    assert host.execute(maintenance.link_dependencies(100)) == 1
    if how == "requeued" or (how == "dead" and policy == "wait"):
        assert waits(host, child)
        host.execute(requeue.requeue([job.id]))
        (again,) = host.claim()
        host.finish_job(again)
    if how == "dead" and policy == "cancel":
        assert host.job_view(child).error == f"cancelled: job #{job.id}, which it waited for, did not succeed"
    else:
        assert host.job_view(child).state is JobState.READY
    assert edges(host) == 0
    assert host.execute(maintenance.link_dependencies(100)) == 0


def test_parents_that_end_at_the_same_moment_release_the_child_once(
    session: Callable[[], psycopg.Connection[Any]], schema: str
) -> None:
    database_hosts = [DatabaseHost(session(), schema) for _ in range(4)]
    for host in database_hosts:
        host.register()
    for _ in range(15):
        for _ in database_hosts:
            database_hosts[0].enqueue()
        held = [host.claim()[0] for host in database_hosts]
        child = follow(database_hosts[0], *(job.id for job in held))
        start = threading.Barrier(len(database_hosts))

        def end(n: int, start: threading.Barrier = start, held: list[Any] = held) -> None:
            start.wait()
            database_hosts[n].finish_job(held[n])

        threads = [threading.Thread(target=end, args=(n,)) for n in range(len(database_hosts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        database_hosts[0].execute(
            maintenance.link_dependencies(100)
        )  # of two that touch the child at once, one leaves it to the leader
        assert database_hosts[0].job_view(child).state is JobState.READY
        (job,) = database_hosts[0].claim(9, tasks=("child",))
        database_hosts[0].finish_job(job)
    assert edges(database_hosts[0]) == 0


def test_one_finish_of_many_parents_and_many_children(host: DatabaseHost) -> None:
    """A diamond of layers: 20 layers of 10, each job after all of the layer before."""
    layers = [[host.enqueue() for _ in range(10)]]
    for _ in range(19):
        layers.append([host.enqueue(after=layers[-1]) for _ in range(10)])
    order: list[int] = []
    while jobs := host.claim(100):
        order += [job.id for job in jobs]
        for job in jobs:
            host.finish_job(job)
    assert order == [job for layer in layers for job in layer]


@pytest.fixture
def app(emptied: str) -> Iterator[App]:
    made = App(dsn=emptied)
    made.queue("a")
    yield made
    made.close()


def test_from_python(app: App, host: DatabaseHost) -> None:
    @app.task
    def t() -> None: ...

    first = t.enqueue()
    second = t.using(after=[first], on_failed="run").enqueue()
    third = t.using(after=[first.id, second]).enqueue()
    assert (second.state, third.state) == ("scheduled", "scheduled")
    assert host.execute(maintenance.link_dependencies(100)) == 3
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


def test_jobs_without_children_cost_no_extra_reads(host: DatabaseHost) -> None:
    """With a trap in the place of `settle_dependents`, every way to end works for a job that is not linked, and none for
    one that is."""
    definition = host.conn.execute(
        "SELECT pg_get_functiondef('pgworkers.settle_dependents'::regproc)"
    ).fetchone()
    assert definition is not None
    host.conn.execute(
        "CREATE OR REPLACE FUNCTION pgworkers.settle_dependents(ids bigint[], batch_ids bigint[], were_running boolean,"
        " succeeded_ids bigint[] DEFAULT NULL, max_links integer DEFAULT 1000) RETURNS void LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'called'; END $$"
    )
    try:
        host.finish_job(host.enqueue_and_claim())
        for how in BAD_ENDS.values():
            how(host, host.enqueue())
        assert {state for _, state in host.states()} == {"succeeded", "dead", "cancelled"}
        parent = host.enqueue()
        follow(host, parent)
        with pytest.raises(psycopg.errors.RaiseException, match="called"):
            host.execute(cancel.cancel(parent))
    finally:
        host.conn.execute(definition[0])


def test_a_child_that_an_operator_released_is_not_cancelled_with_its_parent(
    host: DatabaseHost,
) -> None:
    parent = host.enqueue()
    (running,) = host.claim()
    child = follow(host, parent)
    grandchild = follow(host, child)
    host.execute(requeue.requeue([child]))
    host.finish_job(running, JobState.DEAD)
    assert dict(host.states()) == {parent: "dead", child: "ready", grandchild: "scheduled"}
    (job,) = host.claim(tasks=("child",))
    host.finish_job(job)
    assert [job.id for job in host.claim(tasks=("child",))] == [grandchild]
    assert edges(host) == 0


def many_followers(host: DatabaseHost, count: int, on_failed: str = "cancel") -> ClaimedJob:
    """A running parent that has as many linked followers."""
    parent = host.enqueue_and_claim()
    host.conn.execute(
        "WITH made AS (INSERT INTO pgworkers.job (state, run_at, queue, task, has_links)"
        " SELECT 'scheduled', pgworkers.far_future(), 'a', 'child', true FROM generate_series(1, %s) RETURNING id)"
        " INSERT INTO pgworkers.dependency SELECT %s, id, %s, true FROM made",
        [count, parent.id, on_failed],
    )
    host.conn.execute("UPDATE pgworkers.job SET has_links = true WHERE id = %s", [parent.id])
    return parent


def written(host: DatabaseHost) -> int:
    """Rows that this session has written and not yet reported, as it does between transactions."""
    row = host.conn.execute(
        "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_xact_user_tables WHERE schemaname = 'pgworkers'"
    ).fetchone()
    assert row is not None
    return int(row[0])


def followers(host: DatabaseHost) -> dict[str, int]:
    return dict(
        host.conn.execute("SELECT state::text, count(*) FROM pgworkers.jobs WHERE task = 'child' GROUP BY 1")
    )


@pytest.mark.parametrize(
    ("end", "becomes"),
    [(JobState.DEAD, "cancelled"), (JobState.SUCCEEDED, "ready")],
    ids=["fails", "succeeds"],
)
def test_more_followers_than_one_portion_are_settled_in_portions(
    host: DatabaseHost, end: JobState, becomes: str
) -> None:
    parent = many_followers(host, 2500)
    one = finish.JobFinish(**parent.fence._asdict(), state=end, verdict=Verdict.SUCCEEDED)
    with host.conn.transaction():
        before = written(host)
        host.execute(finish.finish(host.id, [one]))
        assert written(host) - before < 10, "the end itself does not wait for them"
    assert followers(host) == {"scheduled": 2500}
    done = 0
    while done < 2500:
        with host.conn.transaction(force_rollback=True):  # a leader that dies in the middle
            host.execute(maintenance.link_dependencies(1000))
        assert followers(host).get(becomes, 0) == done, "all of a portion or nothing"
        with host.conn.transaction():
            before = written(host)
            host.execute(maintenance.link_dependencies(1000))
            assert written(host) - before < 10 * 1000
        found = followers(host)
        assert done < found[becomes] <= done + 1000
        done = found[becomes]
    host.execute(maintenance.link_dependencies(1000))
    assert followers(host) == {becomes: 2500}
    assert edges(host) == 0
    assert host.conn.execute("SELECT FROM pgworkers.ended_parent").fetchone() is None


def test_a_cascade_wider_than_a_portion_goes_on_below(host: DatabaseHost) -> None:
    parent = many_followers(host, 40)
    host.conn.execute(
        "WITH made AS (INSERT INTO pgworkers.job (state, run_at, queue, task, has_links)"
        " SELECT 'scheduled', pgworkers.far_future(), 'a', 'child', false FROM pgworkers.dependency, generate_series(1, 40)"
        " RETURNING id), numbered AS (SELECT id, row_number() OVER () AS n FROM made)"
        " INSERT INTO pgworkers.dependency"
        " SELECT %s + 1 + n %% 40, id, 'cancel', true FROM numbered",
        [parent.id],
    )
    one = finish.JobFinish(**parent.fence._asdict(), state=JobState.DEAD, verdict=Verdict.ERROR)
    with host.conn.transaction():
        before = written(host)
        host.execute(finish.finish(host.id, [one]))
        assert written(host) - before < 10 * 1000
    assert followers(host) == {"cancelled": 40, "scheduled": 1600}
    while host.execute(maintenance.link_dependencies(1000)):
        pass
    assert followers(host) == {"cancelled": 1640}


def test_followers_of_a_requeued_parent_wait_for_it_again(host: DatabaseHost) -> None:
    parent = many_followers(host, 1500)
    host.execute(
        finish.finish(
            host.id,
            [finish.JobFinish(**parent.fence._asdict(), state=JobState.DEAD, verdict=Verdict.ERROR)],
        )
    )
    host.execute(requeue.requeue([parent.id]))
    while host.execute(maintenance.link_dependencies(1000)):
        pass
    assert followers(host) == {"scheduled": 1500}
    (job,) = host.claim()
    host.finish_job(job)
    while host.execute(maintenance.link_dependencies(1000)):
        pass
    assert followers(host) == {"ready": 1500}


def test_the_leader_is_notified_of_unlinked_children(host: DatabaseHost) -> None:
    parent = many_followers(host, 1001)
    assert host.execute(due_duties())["link_dependencies"] is None
    host.execute(
        finish.finish(
            host.id,
            [finish.JobFinish(**parent.fence._asdict(), state=JobState.DEAD, verdict=Verdict.ERROR)],
        )
    )
    assert host.execute(due_duties())["link_dependencies"] == 0
    assert host.execute(burst.unfinished_work(["a"], ["child"])).jobs == 1001


def test_a_burst_waits_for_the_followers_of_a_success_that_are_left(host: DatabaseHost) -> None:
    parent = many_followers(host, 1101)
    host.conn.execute("UPDATE pgworkers.dependency SET on_failed = 'wait'")
    one = finish.JobFinish(**parent.fence._asdict(), state=JobState.SUCCEEDED, verdict=Verdict.SUCCEEDED)
    host.execute(finish.finish(host.id, [one]))
    assert host.execute(burst.unfinished_work(["a"], ["child"])).jobs == 1101


def test_the_end_of_a_parent_does_not_wait_for_the_links_of_another(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    """Or two ends with a follower in common could wait for each other."""
    failing, busy = host.enqueue(), host.enqueue()
    child = follow(host, failing, busy)
    (job, _) = host.claim(2)
    with other.conn.transaction():
        other.conn.execute("UPDATE pgworkers.dependency SET linked = false WHERE parent_id = %s", [busy])
        host.conn.execute("SET lock_timeout = '5s'")
        host.finish_job(job, JobState.DEAD, verdict=Verdict.ERROR)
    assert host.job_view(child).state is JobState.CANCELLED
    host.execute(maintenance.link_dependencies(10))
    assert edges(host) == 0


def test_a_chain_longer_than_a_portion_is_settled_a_portion_at_a_time(host: DatabaseHost) -> None:
    parent = many_followers(host, 2500)
    host.conn.execute("UPDATE pgworkers.dependency SET parent_id = job_id - 1")
    host.execute(
        finish.finish(
            host.id,
            [finish.JobFinish(**parent.fence._asdict(), state=JobState.DEAD, verdict=Verdict.ERROR)],
        )
    )
    assert followers(host) == {"cancelled": 1000, "scheduled": 1500}
    looks = 0
    while host.execute(maintenance.link_dependencies(1000)):
        looks += 1
    assert followers(host) == {"cancelled": 2500}
    assert looks < 10
