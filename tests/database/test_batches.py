"""Batches: the job that follows a batch is enqueued once, however many sessions finish the last jobs at the same time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.bad_endings import BAD_ENDS, waits
from support.connect_only_login import stranger_session
from support.database_host import DatabaseHost

from pgworkers import App, Batch, NotFound, ResultTimeout, Task, UsageError, events
from pgworkers.job import batches as verbs
from pgworkers.job import finish, requeue
from pgworkers.job.model import JobState, Verdict
from pgworkers.job.notification_payloads import BatchChanged, parse_host_hint
from pgworkers.observe.statistics import Statistics
from pgworkers.postgres import migrate


@pytest.fixture
def app(emptied: str) -> Iterator[App]:
    made = App(dsn=emptied, poll_interval="50ms")
    made.queue("a")

    @made.task
    def t(n: int = 0) -> None: ...

    @made.task
    def last() -> None: ...

    yield made
    made.close()


def batch(app: App, size: int, **more: Any) -> Batch:
    t: Task[..., Any] = app.tasks["t"]
    return app.batch((t.prepare(n) for n in range(size)), then=app.tasks["last"].prepare(), **more)


def then_id(made: Batch) -> int:
    assert made.then is not None
    return made.then.id


def end_all(host: DatabaseHost, jobs: list[Any], state: JobState = JobState.SUCCEEDED) -> None:
    verdict = Verdict.SUCCEEDED if state is JobState.SUCCEEDED else Verdict.ERROR
    ends = [finish.JobFinish(**job.fence._asdict(), state=state, verdict=verdict) for job in jobs]
    while ends:  # what the claim of another session has locked is sent again, as a host does
        answers = host.finish(ends)
        assert set(answers.values()) <= {"written", "locked"}
        ends = [end for end in ends if answers[end.fence] == "locked"]


def test_counts_and_what_comes_after(app: App, host: DatabaseHost) -> None:
    made = batch(app, 10)
    assert (made.counts().total, made.counts().live) == (10, 10)
    jobs = host.claim(10)
    end_all(host, jobs[:6])
    end_all(host, jobs[6:8], JobState.DEAD)
    counts = made.counts()
    assert (counts.total, counts.live, counts.succeeded, counts.failed) == (10, 2, 6, 2)
    assert waits(host, then_id(made))
    end_all(host, jobs[8:])
    (last,) = host.claim(9, tasks=("last",))
    assert last.id == then_id(made)
    assert last.meta == f'{{"batch": {made.id}}}'
    assert made.wait(timeout=60).live == 0
    host.finish_job(last)


def test_a_large_batch_is_counted_in_portions(
    app: App, host: DatabaseHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = batch(app, 20)
    jobs = host.claim(13)
    end_all(host, jobs[:4])
    end_all(host, jobs[4:13:2], JobState.DEAD)
    whole = made.counts()
    assert (whole.live, whole.succeeded, whole.failed) == (11, 4, 5)
    for portion in (1, 3, 20):
        monkeypatch.setattr("pgworkers.job.batches.COUNT_PORTION_IDS", portion)
        step = host.execute(verbs.count_batch(made.id))
        assert step is not None
        assert step.counts.live <= portion
        assert step.counts.failed <= portion
        assert made.counts() == whole == asyncio.run(made.acounts())


def test_a_job_that_fails_between_two_portions_is_counted_once(
    app: App, host: DatabaseHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = batch(app, 6)
    jobs = host.claim(6)
    monkeypatch.setattr("pgworkers.job.batches.COUNT_PORTION_IDS", 3)
    step = host.execute(verbs.count_batch(made.id))
    end_all(host, [jobs[0], jobs[5]], JobState.DEAD)
    step = host.execute(verbs.count_batch(made.id, step))
    assert step is not None
    assert (step.counts.live, step.counts.failed, step.next) == (5, 1, None)


def test_a_batch_is_complete_and_notified_within_the_last_finish(app: App, host: DatabaseHost) -> None:
    made = batch(app, 1)
    host.listen()
    host.finish_job(host.claim()[0])
    assert {("pgworkers", "ready:a"), ("pgworkers_done", f"batch:{made.id}")} <= set(host.notifications())


def test_a_batch_of_nothing_is_complete_at_once(app: App, host: DatabaseHost) -> None:
    made = batch(app, 0)
    assert host.job_view(then_id(made)).state is JobState.READY
    assert made.wait(timeout=60).total == 0


def test_a_batch_without_anything_after_it(app: App, host: DatabaseHost) -> None:
    made = app.batch([app.tasks["t"].prepare()])
    assert made.then is None
    with pytest.raises(ResultTimeout, match="it goes on"):
        made.wait(timeout=0.01)
    host.finish_job(host.claim()[0])
    assert made.wait(timeout=60).succeeded == 1


@pytest.mark.parametrize("how", BAD_ENDS)
@pytest.mark.parametrize("policy", ["run", "cancel", "wait"])
def test_every_way_to_end_counts_and_the_policy_decides(
    app: App, host: DatabaseHost, how: str, policy: str
) -> None:
    made = batch(app, 2, on_failed=policy)
    (first,) = host.claim()
    host.finish_job(first)
    (job,) = [row[0] for row in host.conn.execute("SELECT id FROM pgworkers.job WHERE task = 't'")]
    BAD_ENDS[how](host, job)
    host.execute(verbs.settle_open_batches(10))
    last = host.job_view(then_id(made))
    assert made.counts().failed == 1
    match policy:
        case "run":
            assert last.state is JobState.READY
        case "cancel":
            assert last.state is JobState.CANCELLED
            assert last.error == f"cancelled: batch #{made.id} has jobs that did not succeed"
        case "wait":
            assert waits(host, last.id)
            host.execute(requeue.requeue([job]))
            assert made.counts().live == 1
            (again,) = host.claim()
            host.finish_job(again)
            assert host.job_view(last.id).state is JobState.READY
            assert made.counts().failed == 0


def test_what_comes_after_begins_once_even_if_a_job_is_run_again(app: App, host: DatabaseHost) -> None:
    made = batch(app, 1)
    (job,) = host.claim()
    host.finish_job(job, JobState.DEAD)
    (last,) = host.claim(tasks=("last",))
    host.finish_job(last)
    host.execute(requeue.requeue([job.id]))
    host.finish_job(host.claim()[0])
    assert host.claim(tasks=("last",)) == []
    assert made.counts().succeeded == 1


def settled(host: DatabaseHost, notices: list[tuple[str, str]]) -> None:
    """Do what a master does when it receives `batch:<id>`."""
    for _, payload in notices:
        if isinstance(hint := parse_host_hint(payload), BatchChanged):
            while host.execute(verbs.settle_batch(hint.batch)) == "busy":
                time.sleep(0.001)


def test_a_login_that_holds_advisory_locks_stops_no_end_and_no_batch(
    emptied: str, app: App, host: DatabaseHost
) -> None:
    made = batch(app, 2)
    with stranger_session(emptied) as stranger:
        for name in ("pgworkers.batch", '"pgworkers".batch'):
            stranger.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [f"{name} {made.id}"])
        host.conn.execute("SET statement_timeout = '5s'")
        for job in host.claim(2):
            host.finish_job(job)
        assert len(host.claim(tasks=("last",))) == 1


def test_sessions_that_cannot_see_each_other_miss_nothing(
    app: App, host: DatabaseHost, other: DatabaseHost
) -> None:
    """Both have ended a job of the last two and neither has committed: each sees the other's alive."""
    made = batch(app, 2)
    (mine,), (theirs,) = host.claim(), other.claim()
    other.conn.execute("LISTEN pgworkers")
    with host.conn.transaction():
        host.finish_job(mine)
        with other.conn.transaction():
            other.finish_job(theirs)
        assert waits(other, then_id(made))
        assert other.execute(verbs.settle_batch(made.id)) == "busy", "somebody is not done"
    settled(other, other.notifications())
    assert other.job_view(then_id(made)).state is JobState.READY


def test_without_the_notification_the_sweep_finds_it(
    app: App, host: DatabaseHost, other: DatabaseHost
) -> None:
    made = batch(app, 2)
    (mine,), (theirs,) = host.claim(), other.claim()
    with host.conn.transaction():
        host.finish_job(mine)
        with other.conn.transaction():
            other.finish_job(theirs)
    assert waits(host, then_id(made)), "nobody listened"
    assert host.execute(verbs.settle_open_batches(10)).changed_rows == 1
    assert host.job_view(then_id(made)).state is JobState.READY
    assert host.execute(verbs.settle_open_batches(10)).changed_rows == 0


def test_many_sessions_end_the_last_jobs_at_once_and_it_begins_exactly_once(
    app: App, host: DatabaseHost, session: Callable[[], psycopg.Connection[Any]], schema: str
) -> None:
    database_hosts = [DatabaseHost(session(), schema) for _ in range(6)]
    for each in database_hosts:
        each.register()
    host.listen()
    for _ in range(20):
        made = batch(app, len(database_hosts) * 3)
        start = threading.Barrier(len(database_hosts))

        def end(each: DatabaseHost, start: threading.Barrier = start) -> None:
            jobs = each.claim(3)
            start.wait()
            if len(jobs) == 3 and each is database_hosts[0]:
                for job in jobs:
                    each.finish_job(job)
            elif jobs:
                end_all(each, jobs)

        threads = [threading.Thread(target=end, args=(each,)) for each in database_hosts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        settled(host, host.notifications())
        assert host.job_view(then_id(made)).state is JobState.READY
        assert host.execute(verbs.settle_open_batches(10)).changed_rows == 0, (
            "not the sweep: the notification was enough"
        )
        (last,) = host.claim(9, tasks=("last",))
        host.finish_job(last)


def test_there_is_no_notification_while_much_is_left(app: App, host: DatabaseHost) -> None:
    batch(app, 100)
    host.listen()
    end_all(host, host.claim(50))
    assert not [
        payload for _, payload in host.notifications() if isinstance(parse_host_hint(payload), BatchChanged)
    ]


def test_cancel_ends_what_waits_and_flags_what_runs_and_takes_what_comes_after_along(
    app: App, host: DatabaseHost
) -> None:
    made = batch(app, 1200)
    running = host.claim(3)
    assert made.cancel() == 1200
    assert Counter(state for _, state in host.states()) == {"running": 3, "cancelled": 1198}
    assert host.job_view(then_id(made)).state is JobState.CANCELLED
    for job in running:
        assert host.retry_job(job) == "written"
    host.execute(verbs.settle_open_batches(10))
    assert made.wait(timeout=60).failed == 1200
    with pytest.raises(NotFound, match="no batch #4711"):
        app.get_batch(4711).cancel()


def test_from_an_event_loop_and_in_the_users_transaction(app: App, host: DatabaseHost) -> None:
    async def use() -> int:
        made = await app.abatch([app.tasks["t"].prepare()], then=app.tasks["last"].prepare())
        assert (await made.acounts()).live == 1
        waiting = asyncio.create_task(made.await_end(timeout=60))
        await asyncio.to_thread(lambda: host.finish_job(host.claim()[0]))
        done = (await waiting).succeeded
        await (await app.abatch([app.tasks["t"].prepare()])).acancel()
        await app.aclose()
        return done

    assert asyncio.run(use()) == 1
    with host.conn.transaction(force_rollback=True):
        lost = app.batch([app.tasks["t"].prepare()], conn=host.conn)
    with pytest.raises(NotFound):
        lost.counts()


def test_what_cannot_work_is_refused(app: App) -> None:
    prepared = app.tasks["last"].using(delay="1m").prepare()
    with pytest.raises(UsageError, match="give it no after, delay"):
        app.batch([], then=prepared)
    with pytest.raises(UsageError, match="on_failed='x': use cancel, run, wait"):
        app.batch([], on_failed="x")  # type: ignore[arg-type]


def test_old_batches_are_forgotten_and_open_ones_kept(app: App, host: DatabaseHost) -> None:
    done, alive = batch(app, 0), batch(app, 1)
    assert host.execute(verbs.prune_batches(3600, 10)) == 0
    host.conn.execute(
        "UPDATE pgworkers.batch SET finished_at = finished_at - interval '1 day' WHERE id = %s", [done.id]
    )
    assert host.execute(verbs.prune_batches(3600, 10)) == 1
    assert alive.counts().live == 1


def test_in_a_schema_of_another_name(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        migrate.up(conn, "order")
        app = App(dsn=empty_dsn, schema="order")
        app.queue("a")

        @app.task
        def t() -> None: ...

        made = app.batch([t.prepare(), t.prepare()], then=t.prepare())
        after = t.using(after=[then_id(made)]).enqueue()
        assert app.rate("x", rate=1, per="1h").try_acquire()
        host = DatabaseHost(conn, "order")
        host.register()
        end_all(host, host.claim(9))
        end_all(host, host.claim(9))
        assert after.state == "ready"
        statistics = Statistics()
        statistics(events.AttemptStarted(1, 1, "a", "t", 1, 0.5))
        query = statistics.write_query()
        assert query is not None
        assert host.execute(query) == 1
        app.close()


@pytest.mark.slow
def test_thirty_thousand_jobs_ended_by_two_hosts(app: App, host: DatabaseHost, other: DatabaseHost) -> None:
    """In big bites by two sessions at once; what comes after begins once, when all have ended."""
    made = batch(app, 30_000)

    def work(each: DatabaseHost) -> None:
        while jobs := each.claim(500):
            end_all(each, jobs)

    threads = [threading.Thread(target=work, args=(each,)) for each in (host, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    host.execute(verbs.settle_open_batches(10))
    counts = made.counts()
    assert (counts.live, counts.succeeded, counts.failed) == (0, 30_000, 0)
    assert [job.id for job in host.claim(9, tasks=("last",))] == [then_id(made)]


def test_a_locked_batch_delays_no_result_and_is_completed_later(
    app: App, host: DatabaseHost, other: DatabaseHost
) -> None:
    made = batch(app, 2)
    host.listen()
    with other.conn.transaction():
        other.conn.execute("SELECT FROM pgworkers.batch WHERE id = %s FOR UPDATE", [made.id])
        host.conn.execute("SET statement_timeout = '10s'")
        end_all(host, host.claim(2))
        assert ("pgworkers", f"batch:{made.id}") in host.notifications(), "the leader completes it"
        assert host.execute(verbs.settle_batch(made.id)) == "busy"
        assert waits(host, then_id(made))
    assert host.execute(verbs.settle_open_batches(100)).changed_rows == 1, "so does the duty"
    assert [job.id for job in host.claim(9, tasks=("last",))] == [then_id(made)]
