"""`job.watch()` and `job.awatch()`: states, progress and end; one listening connection; a lost database; a slow reader."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.cluster import wait_for
from support.database_host import DatabaseHost

from pgworkers import App, NotFound, ResultTimeout, UsageError, WatchEvent
from pgworkers.job import finish
from pgworkers.job.changes import progress_fraction
from pgworkers.job.model import ClaimedJob, JobState, Verdict
from pgworkers.postgres import connect
from pgworkers.settings import Settings

Db = psycopg.Connection[Any]


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    made = App(dsn=dsn, poll_interval="0.05s")
    yield made
    made.close()


@pytest.fixture
def worker(dsn: str) -> Iterator[DatabaseHost]:
    """A host whose verbs the test runs by hand."""
    conn = connect.connect(Settings(statement_timeout=60.0), dsn, "test")
    made = DatabaseHost(conn, "pgworkers")
    made.register()
    yield made
    conn.close()


def report(worker: DatabaseHost, claimed: ClaimedJob, progress: str) -> None:
    update = finish.ProgressUpdate(**claimed.fence._asdict(), progress=progress, checkpoint=None)
    worker.execute(finish.save_progress(worker.id, [update]))


def sessions(db: Db, role: str) -> int:
    row = db.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s",
        [f"pgworkers {role}"],
    ).fetchone()
    assert row is not None
    return int(row[0])


class Watcher:
    """A watch in a thread, or in an event loop of its own."""

    def __init__(self, app: App, job_id: int, kind: str) -> None:
        self.events: list[WatchEvent] = []
        self.error: BaseException | None = None
        work = self._watch if kind == "blocking" else lambda a, j: asyncio.run(self._awatch(a, j))
        self._thread = threading.Thread(target=self._run, args=[lambda: work(app, job_id)])
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.error = error

    def _watch(self, app: App, job_id: int) -> None:
        for event in app.job(job_id).watch():
            self.events.append(event)

    async def _awatch(self, app: App, job_id: int) -> None:
        async for event in app.job(job_id).awatch():
            self.events.append(event)

    def saw(self, kind: str, **values: Any) -> Callable[[], bool]:
        def look() -> bool:
            return any(
                event.kind == kind and all(getattr(event, name) == value for name, value in values.items())
                for event in list(self.events)
            )

        return look

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_states_progress_and_end_of_a_job(app: App, db: Db, worker: DatabaseHost, kind: str) -> None:
    watcher = Watcher(app, worker.enqueue(), kind)
    wait_for(watcher.saw("state", state="ready"))
    (claimed,) = worker.claim()
    wait_for(watcher.saw("state", state="claimed", attempt=1))
    report(worker, claimed, '{"done": 3, "total": 10}')
    wait_for(watcher.saw("progress", progress={"done": 3, "total": 10}, fraction=0.3))
    worker.retry_job(claimed, 0.0, error="ValueError: once")
    wait_for(lambda: watcher.events[-1].state in ("ready", "scheduled"))
    assert watcher.events[-1].error == "ValueError: once"
    (again,) = worker.claim()
    worker.finish_job(again, JobState.DEAD, error="ValueError: twice")
    watcher.join()
    end = watcher.events[-1]
    assert (end.kind, end.state, end.verdict, end.attempt) == ("end", "dead", "error", 2)
    assert end.error == "ValueError: twice"
    assert [event.kind for event in watcher.events].count("end") == 1
    wait_for(lambda: sessions(db, "wait") == 0)
    wait_for(lambda: "pgworkers background" not in [thread.name for thread in threading.enumerate()])


def test_all_watchers_of_a_process_share_two_connections(app: App, db: Db, worker: DatabaseHost) -> None:
    jobs = [worker.enqueue() for _ in range(8)]
    watchers = [Watcher(app, job, "blocking") for job in jobs for _ in range(2)]
    for watcher in watchers:
        wait_for(watcher.saw("state"))
    wait_for(lambda: sessions(db, "wait") == 1)
    assert sessions(db, "client") == 1
    for claimed in worker.claim(8):
        worker.finish_job(claimed)
    for watcher in watchers:
        watcher.join()
        assert watcher.events[-1].state == "succeeded"
    wait_for(lambda: sessions(db, "wait") + sessions(db, "client") == 0)


def test_all_watchers_of_an_event_loop_share_two_connections(app: App, db: Db, worker: DatabaseHost) -> None:
    jobs = [worker.enqueue() for _ in range(8)]
    seen: list[WatchEvent] = []

    async def follow(job: int) -> WatchEvent:
        last = None
        async for event in app.job(job).awatch():
            seen.append(event)
            last = event
        assert last is not None
        return last

    async def main() -> None:
        watching = asyncio.gather(*(follow(job) for job in jobs))
        await asyncio.to_thread(wait_for, lambda: len(seen) == len(jobs) and sessions(db, "wait") == 1)
        assert sessions(db, "client") == 1
        for claimed in worker.claim(8):
            worker.finish_job(claimed)
        assert {event.state for event in await watching} == {"succeeded"}
        await asyncio.to_thread(wait_for, lambda: sessions(db, "wait") == 0)
        await app.aclose()

    asyncio.run(main())


def test_the_end_arrives_by_notification(dsn: str, worker: DatabaseHost, db: Db) -> None:
    app = App(dsn=dsn, poll_interval="1h")
    watcher = Watcher(app, worker.enqueue(), "blocking")
    wait_for(lambda: sessions(db, "wait") == 1 and watcher.events)
    # LISTEN may not have run yet: without the poll, an end before it is found by the look that follows it.
    worker.finish_job(worker.claim()[0], result="5")
    watcher.join()
    assert watcher.events[-1].kind == "end"
    app.close()


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_watch_survives_the_loss_of_its_connections(
    app: App, db: Db, worker: DatabaseHost, kind: str
) -> None:
    watcher = Watcher(app, worker.enqueue(), kind)
    wait_for(lambda: sessions(db, "wait") == 1 and watcher.events)
    (claimed,) = worker.claim()
    for done in range(1, 4):
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name IN ('pgworkers wait', 'pgworkers client')"
        )
        report(worker, claimed, f'{{"done": {done}}}')
        wait_for(lambda done=done: watcher.events[-1].progress == {"done": done})
    db.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name IN ('pgworkers wait', 'pgworkers client')"
    )
    worker.finish_job(claimed)
    watcher.join()
    assert watcher.events[-1].state == "succeeded"


def test_a_job_that_has_ended_has_one_event(app: App, worker: DatabaseHost) -> None:
    job = worker.enqueue()
    worker.finish_job(worker.claim()[0])
    (event,) = app.job(job).watch()
    assert (event.kind, event.state, event.verdict) == ("end", "succeeded", "succeeded")


def test_a_job_that_is_not_there_is_not_found(app: App) -> None:
    with pytest.raises(NotFound, match="there is no job #999999"):
        next(iter(app.job(999_999).watch()))

    async def main() -> None:
        with pytest.raises(NotFound, match="there is no job #999999"):
            async for _ in app.job(999_999).awatch():
                pass
        await app.aclose()

    asyncio.run(main())


def test_a_job_that_is_deleted_while_it_is_watched_is_not_found(
    app: App, db: Db, worker: DatabaseHost
) -> None:
    watcher = Watcher(app, job := worker.enqueue(), "blocking")
    wait_for(watcher.saw("state"))
    db.execute("DELETE FROM pgworkers.job WHERE id = %s", [job])
    with pytest.raises(NotFound):
        watcher.join()


def test_a_watch_whose_time_is_up_says_that_the_job_goes_on(app: App, db: Db, worker: DatabaseHost) -> None:
    job = app.job(worker.enqueue())
    with pytest.raises(ResultTimeout, match=r"has not ended after 0\.2s; it goes on"):
        list(job.watch(timeout="0.2s"))
    wait_for(lambda: sessions(db, "wait") == 0)
    assert job.state == "ready"


def test_leaving_the_loop_ends_the_watch(app: App, db: Db, worker: DatabaseHost) -> None:
    job = app.job(worker.enqueue())
    for event in job.watch():
        assert event.state == "ready"
        break
    wait_for(lambda: sessions(db, "wait") + sessions(db, "client") == 0)

    async def main() -> None:
        async for event in job.awatch():
            assert event.state == "ready"
            break
        await app.aclose()

    asyncio.run(main())
    wait_for(lambda: sessions(db, "wait") + sessions(db, "client") == 0)


def test_watch_does_not_block_an_event_loop(app: App) -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match=r"async for event in job.awatch\(\)"):
            app.job(1).watch()

    asyncio.run(main())


def test_a_slow_reader_gets_the_latest_state(app: App, worker: DatabaseHost) -> None:
    job = worker.enqueue()
    events = iter(app.job(job).watch())
    assert next(events).state == "ready"
    (claimed,) = worker.claim()
    for done in range(50):
        report(worker, claimed, f'{{"done": {done}}}')
    worker.finish_job(claimed)
    wait_for(lambda: app.job(job).state == "succeeded")
    assert [event.kind for event in events][-1] == "end"


@pytest.mark.parametrize(
    "progress", ['"text"', "[1]", '{"done": "x", "total": 0}', '{"total": -3}', '{"done": 1e300, "total": 1}']
)
def test_any_stored_progress_can_be_watched(app: App, worker: DatabaseHost, progress: str) -> None:
    job = worker.enqueue()
    (claimed,) = worker.claim()
    report(worker, claimed, progress)
    event = next(iter(app.job(job).watch()))
    assert event.fraction in (None, 1.0)
    assert progress_fraction(event.progress) == event.fraction


def test_forged_notifications_do_not_end_a_watch(app: App, db: Db, worker: DatabaseHost) -> None:
    watcher = Watcher(app, job := worker.enqueue(), "blocking")
    wait_for(lambda: sessions(db, "wait") == 1)
    for payload in ("²", "9" * 5000, "*", str(job), ""):
        db.execute("SELECT pg_notify('pgworkers_done', %s)", [payload])
    assert watcher.events[-1].kind == "state"
    worker.finish_job(worker.claim()[0])
    watcher.join()


def test_a_process_with_an_open_watch_can_exit(dsn: str, worker: DatabaseHost) -> None:
    code = (
        "import sys; from pgworkers import App\n"
        "app = App(dsn=sys.argv[1])\n"
        "events = iter(app.job(int(sys.argv[2])).watch())\n"
        "print(next(events).state)\n"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, dsn, str(worker.enqueue())],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", ""), time.monotonic() - began


def test_the_verdict_of_a_cancel(app: App, worker: DatabaseHost) -> None:
    job = app.job(worker.enqueue())
    watcher = Watcher(app, job.id, "blocking")
    wait_for(watcher.saw("state"))
    assert job.cancel("not needed") == "cancelled"
    watcher.join()
    assert (watcher.events[-1].state, watcher.events[-1].verdict) == ("cancelled", Verdict.CANCELLED)
