"""The handle of a job: waiting by notification and by looking, results by annotation, failures, cancel."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgworkers import App, JobFailed, NotFound, ResultError, ResultTimeout, UsageError
from pgworkers.job import claim, finish, hosts, model
from pgworkers.job.model import JobState, Verdict
from pgworkers.postgres.statements import run

Db = psycopg.Connection[Any]


@dataclass
class Report:
    made: datetime
    pages: list[int]
    where: Path


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    made = App(dsn=dsn)
    made.queue("default")

    @made.task
    def report(n: int) -> Report:
        raise NotImplementedError

    @made.task
    async def number(n: int) -> int:
        raise NotImplementedError

    yield made
    made.close()


class ManualHost:
    """Does by hand what a host does to a job."""

    def __init__(self, db: Db) -> None:
        self.db = db
        self.host = str(uuid.uuid4())
        run(
            db,
            "pgworkers",
            hosts.register_host(self.host, "h", 1, "", "app", "v", ["default"], ["add"], 30.0),
        )

    def claim(self) -> list[model.ClaimedJob]:
        return run(
            self.db,
            "pgworkers",
            claim.claim(self.host, [claim.QueueCapacity("default", 1000)], ["report", "number"]),
        )

    def finish(self, *ends: finish.JobFinish) -> None:
        answers = run(self.db, "pgworkers", finish.finish(self.host, list(ends)))
        assert answers == {}, "all are written"

    def succeed(self, job: model.ClaimedJob, result: str) -> None:
        self.finish(
            finish.JobFinish(
                **job.fence._asdict(),
                state=JobState.SUCCEEDED,
                verdict=Verdict.SUCCEEDED,
                result=result,
            )
        )


@pytest.fixture
def hands(db: Db) -> ManualHost:
    return ManualHost(db)


def listening(db: Db) -> int:
    row = db.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgworkers wait'"
    ).fetchone()
    assert row is not None
    return int(row[0])


def wait_for(fact: Callable[[], Any]) -> None:
    until = time.monotonic() + 60
    while not fact():
        assert time.monotonic() < until, "waited for 60 s in vain"
        time.sleep(0.01)


def test_a_result_comes_as_the_task_returns_it(app: App, hands: ManualHost) -> None:
    task = app.tasks["report"]
    job = task.enqueue(1)
    (claimed,) = hands.claim()
    value = Report(datetime(2024, 2, 29, tzinfo=UTC), [1, 2], Path("/tmp/x"))
    hands.succeed(claimed, task.encode_result(value, 1000).decode())
    assert job.result(timeout=10) == value
    assert (job.state, job.error) == ("succeeded", None)
    assert app.job(job.id).result() == {"made": "2024-02-29T00:00:00Z", "pages": [1, 2], "where": "/tmp/x"}


def test_a_result_that_does_not_fit_the_annotation_says_so(app: App, hands: ManualHost) -> None:
    job = app.tasks["number"].enqueue(1)
    hands.succeed(hands.claim()[0], '"seven"')
    with pytest.raises(ResultError, match=r"number: the kept result does not fit.*Expected `int`, got `str`"):
        job.result()


def test_waiting_threads_share_one_connection_and_all_wake(app: App, db: Db, hands: ManualHost) -> None:
    jobs = [app.tasks["number"].enqueue(n) for n in range(12)]
    results: dict[int, Any] = {}

    def wait(job: Any) -> None:
        results[job.id] = job.result(timeout=60)

    threads = [threading.Thread(target=wait, args=[job]) for job in jobs for _ in range(2)]
    for thread in threads:
        thread.start()
    watch = app.client.thread_waiters()
    wait_for(lambda: len(watch._waiters) == len(threads))  # else those that come late find their jobs ended
    wait_for(lambda: listening(db) == 1)
    claimed = {found.id: found for found in hands.claim()}
    for job in jobs:
        assert listening(db) == 1
        hands.succeed(claimed[job.id], str(job.id * 10))
        wait_for(lambda job=job: job.id in results)
    for thread in threads:
        thread.join(60)
    assert results == {job.id: job.id * 10 for job in jobs}
    wait_for(lambda: listening(db) == 0)


def test_waiting_coroutines_share_one_connection_and_all_wake(app: App, db: Db, hands: ManualHost) -> None:
    async def main() -> None:
        task = app.tasks["number"]
        jobs = [await task.aenqueue(n) for n in range(50)]
        waiting = asyncio.gather(*(job.aresult(timeout=60) for job in jobs))
        await asyncio.to_thread(wait_for, lambda: listening(db) == 1)
        for claimed in hands.claim():
            hands.succeed(claimed, str(claimed.id))
        assert await waiting == [job.id for job in jobs]
        await asyncio.to_thread(wait_for, lambda: listening(db) == 0)
        assert jobs[0].state == "succeeded"  # known: no query is needed
        await app.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_lost_notification_is_made_up_for_by_looking(
    app: App, db: Db, hands: ManualHost, kind: str
) -> None:
    job = app.tasks["number"].enqueue(1)
    found: list[Any] = []
    work = (lambda: job.result(60)) if kind == "blocking" else (lambda: asyncio.run(job.aresult(60)))
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    wait_for(lambda: listening(db) == 1)
    (claimed,) = hands.claim()
    # The listener is cut, and the job ends while no session listens.
    db.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgworkers wait'"
    )
    hands.succeed(claimed, "5")
    thread.join(60)
    assert found == [5]


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_forged_notifications_do_not_end_a_wait(app: App, db: Db, hands: ManualHost, kind: str) -> None:
    job = app.tasks["number"].enqueue(1)
    found: list[Any] = []
    work = (lambda: job.result(60)) if kind == "blocking" else (lambda: asyncio.run(job.aresult(60)))
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    wait_for(lambda: listening(db) == 1)
    for payload in ("²", f"{job.id} ²", "9" * 5000, "batch:²", "x" * 7000, "", str(job.id), "*"):
        db.execute("SELECT pg_notify('pgworkers_done', %s)", [payload])
    (claimed,) = hands.claim()
    hands.succeed(claimed, "5")
    thread.join(60)
    assert found == [5]


def test_a_wait_ends_when_the_notification_names_no_ids(app: App, db: Db, hands: ManualHost) -> None:
    job = app.tasks["number"].enqueue(1)
    app.client.database.use(
        app.client.database.dsn(), app.client.settings.__class__(poll_interval=3600)
    )  # only a notification helps
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(job.result(60)))
    thread.start()
    wait_for(lambda: listening(db) == 1)
    (claimed,) = hands.claim()
    hands.succeed(claimed, "5")
    db.execute("SELECT pg_notify('pgworkers_done', '*')")
    thread.join(60)
    assert found == [5]


def test_a_wait_that_is_over_says_that_the_job_goes_on(app: App, db: Db) -> None:
    job = app.tasks["number"].enqueue(1)
    with pytest.raises(
        ResultTimeout, match=f"job #{job.id} is still ready after 0.2s; it has not begun, and"
    ):
        job.result(timeout=0.2)
    with pytest.raises(TimeoutError):
        job.result(timeout=0)
    with pytest.raises(ResultTimeout):
        asyncio.run(job.aresult(timeout="200ms"))
    wait_for(lambda: listening(db) == 0)
    assert job.state == "ready"


def test_a_dead_job_raises_with_its_error(app: App, hands: ManualHost) -> None:
    job = app.tasks["number"].enqueue(1)
    (claimed,) = hands.claim()
    hands.finish(
        finish.JobFinish(
            **claimed.fence._asdict(),
            state=JobState.DEAD,
            verdict=Verdict.ERROR,
            error="ValueError: no such file",
        )
    )
    with pytest.raises(JobFailed, match=rf"job #{job.id} is dead: .*ValueError: no such file") as caught:
        job.result()
    assert (caught.value.state, caught.value.job_id) == ("dead", job.id)
    assert job.error is not None
    assert "ValueError: no such file" in job.error


def test_cancel(app: App, hands: ManualHost) -> None:
    waiting, running = app.tasks["number"].enqueue(1), app.tasks["number"].enqueue(2)
    assert waiting.cancel() == "cancelled"
    assert waiting.state == "cancelled"
    with pytest.raises(JobFailed, match="is cancelled"):
        waiting.result()
    assert waiting.cancel() == "cancelled"
    (claimed,) = hands.claim()
    assert claimed.id == running.id
    assert asyncio.run(running.acancel()) == "cancelling"
    assert running.state == "claimed", "no host has told of a worker that has it"
    assert running.refresh().cancel_at is not None


def test_progress_is_the_last_that_the_handler_reported(app: App, db: Db, hands: ManualHost) -> None:
    job = app.tasks["number"].enqueue(1)
    (claimed,) = hands.claim()
    saved = finish.ProgressUpdate(
        **claimed.fence._asdict(),
        progress='{"done": 3, "total": 10}',
        checkpoint=None,
    )
    run(db, "pgworkers", finish.save_progress(hands.host, [saved]))
    assert job.progress == {"done": 3, "total": 10}


def test_a_job_that_is_not_there(app: App, db: Db, dsn: str) -> None:
    gone = app.job(999_999)
    for look in (lambda: gone.state, gone.result, gone.cancel, gone.refresh):
        with pytest.raises(NotFound, match="there is no job #999999"):
            look()
    with psycopg.connect(dsn) as conn:
        hidden = app.tasks["number"].using(conn=conn).enqueue(1)
        with pytest.raises(NotFound, match="its transaction is not committed yet"):
            hidden.result(timeout=5)
        conn.commit()
    assert hidden.state == "ready"


def test_nothing_blocks_an_event_loop(app: App) -> None:
    async def main() -> None:
        job = await app.tasks["number"].aenqueue(1)
        with pytest.raises(UsageError, match=r"use `await job.aresult"):
            job.result()
        with pytest.raises(UsageError, match=r"await job.arefresh\(\)"):
            _ = job.state
        assert (await job.arefresh()).state == "ready"
        assert job.state == "ready"
        assert repr(job) == f"<Job #{job.id} number ready>"

    asyncio.run(main())
