"""The client's connection: shared by threads, not by forks; replaced when it broke idle, not re-sent when in use."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgworkers import App, DatabaseUnreachable, OutcomeUnknown
from pgworkers.errors import ArgumentError
from pgworkers.task import Task

Db = psycopg.Connection[Any]


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    made = App(
        dsn=dsn, statement_timeout="1m", lease_duration="10m"
    )  # what hangs here is ended by the test, not by the clock
    made.queue("default")

    @made.task
    def job(n: int) -> int:
        return n

    yield made
    made.close()


def task(app: App) -> Task[..., Any]:
    return app.tasks["job"]


def clients(db: Db, role: str = "client") -> list[int]:
    rows = db.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s ORDER BY pid",
        [f"pgworkers {role}"],
    ).fetchall()
    return [pid for (pid,) in rows]


def wait_for(fact: Callable[[], Any]) -> None:
    until = time.monotonic() + 60
    while not fact():
        assert time.monotonic() < until, "waited for 60 s in vain"
        time.sleep(0.01)


def count(db: Db) -> int:
    row = db.execute("SELECT count(*) FROM pgworkers.job").fetchone()
    assert row is not None
    return int(row[0])


def test_one_connection_for_all_threads_and_calls(app: App, db: Db) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for n in range(20):
                task(app).enqueue(n)
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert count(db) == 160
    assert len(clients(db)) == 1
    app.close()
    wait_for(lambda: not clients(db))
    task(app).enqueue(1)
    assert len(clients(db)) == 1


def test_one_connection_for_all_coroutines_of_a_loop(app: App, db: Db) -> None:
    async def main() -> None:
        await asyncio.gather(*(task(app).aenqueue(n) for n in range(20)))
        assert len(clients(db)) == 1
        await app.aclose()
        await asyncio.to_thread(wait_for, lambda: not clients(db))
        await task(app).aenqueue(1)
        assert len(clients(db)) == 1

    asyncio.run(main())
    wait_for(lambda: not clients(db))
    assert count(db) == 21


def test_an_idle_connection_that_broke_is_replaced_without_a_word(app: App, db: Db) -> None:
    task(app).enqueue(1)
    (before,) = clients(db)
    db.execute("SELECT pg_terminate_backend(%s)", [before])
    wait_for(lambda: not clients(db))
    task(app).enqueue(2)
    assert count(db) == 2

    async def main() -> None:
        app.close()
        await task(app).aenqueue(3)
        for pid in clients(db):
            db.execute("SELECT pg_terminate_backend(%s)", [pid])
        await asyncio.to_thread(wait_for, lambda: not clients(db))
        await task(app).aenqueue(4)

    asyncio.run(main())
    assert count(db) == 4


class Blocked:
    """Holds the job table so that a statement of the client hangs, then ends its backend."""

    def __init__(self, db: Db, dsn: str) -> None:
        self.db = db
        self.holder = psycopg.connect(dsn)
        self.holder.execute("LOCK TABLE pgworkers.job IN ACCESS EXCLUSIVE MODE")

    def hangs(self) -> set[int]:
        """Wait until a statement of the client hangs; the backends."""
        waiting = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
            "AND application_name = 'pgworkers client'"
        )
        wait_for(lambda: self.db.execute(waiting).fetchall())
        return {pid for (pid,) in self.db.execute(waiting).fetchall()}

    def cut(self) -> None:
        pids = self.hangs()
        for pid in pids:
            self.db.execute("SELECT pg_terminate_backend(%s)", [pid])
        # The client receives the error before the backend is gone.
        wait_for(lambda: not pids & set(clients(self.db)))

    def release(self) -> None:
        if not self.holder.closed:
            self.holder.rollback()
            self.holder.close()


@pytest.fixture
def blocked(db: Db, dsn: str) -> Iterator[Blocked]:
    made = Blocked(db, dsn)
    yield made
    made.release()


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    ended: list[Any] = []

    def run() -> None:
        try:
            ended.append(work())
        except BaseException as exc:
            ended.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, ended


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_an_enqueue_that_is_cut_is_unknown_and_not_sent_again(
    app: App, db: Db, blocked: Blocked, kind: str
) -> None:
    work = (
        (lambda: task(app).enqueue(1)) if kind == "blocking" else (lambda: asyncio.run(task(app).aenqueue(1)))
    )
    thread, ended = in_thread(work)
    blocked.cut()
    thread.join(60)
    (error,) = ended
    assert isinstance(error, OutcomeUnknown)
    assert "may or may not have been committed" in str(error)
    assert not clients(db)  # nothing was sent again
    blocked.release()
    assert count(db) == 0
    task(app).enqueue(2)
    assert count(db) == 1


def test_a_look_that_is_cut_is_repeated_once(app: App, db: Db, dsn: str) -> None:
    job = task(app).enqueue(1)
    blocked = Blocked(db, dsn)
    try:
        thread, ended = in_thread(lambda: job.state)
        blocked.cut()
        wait_for(lambda: clients(db))
    finally:
        blocked.release()
    thread.join(60)
    assert ended == ["ready"]


def test_a_statement_that_is_refused_keeps_the_connection(app: App, db: Db) -> None:
    task(app).using(unique="x").enqueue(1)
    before = clients(db)
    with pytest.raises(Exception, match="already holds the unique key"):
        task(app).using(unique="x", on_conflict="raise").enqueue(1)
    task(app).enqueue(2)
    assert clients(db) == before


def test_an_exception_thrown_through_a_statement_gives_up_the_connection(app: App, db: Db, dsn: str) -> None:
    async def main() -> None:
        await task(app).aenqueue(0)
        blocked = Blocked(db, dsn)
        try:
            sending = asyncio.ensure_future(task(app).aenqueue(1))
            await asyncio.to_thread(blocked.hangs)  # a cancel that comes before its statement cancels nothing
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sending, 0.01)
        finally:
            blocked.release()
        await task(app).aenqueue(2)

    asyncio.run(main())
    assert db.execute("SELECT args->'n' FROM pgworkers.job ORDER BY id").fetchall() == [(0,), (2,)]


def test_an_unreachable_database_is_reported_without_the_password() -> None:
    app = App(dsn="postgresql://me:s3cret@127.0.0.1:1/x")
    app.queue("default")

    @app.task
    def job() -> None: ...

    for attempt in (job.enqueue, lambda: asyncio.run(job.aenqueue())):
        with pytest.raises(DatabaseUnreachable) as caught:
            attempt()
        assert not isinstance(caught.value, OutcomeUnknown)
        assert "s3cret" not in str(caught.value)


FORKS = """
import os, sys, threading
from pgworkers import App
app = App(dsn=sys.argv[1])
app.queue("default")
@app.task
def job(n: int) -> int:
    return n
job.enqueue(0)
backend = app.client._process_connection._shared.session.conn.info.backend_pid
children = []
for child in range(3):
    pid = os.fork()
    if pid == 0:
        for n in range(10):
            job.enqueue(n)
        assert app.client._process_connection._shared.session.conn.info.backend_pid != backend
        app.close()
        os._exit(0)
    children.append(pid)
for n in range(10):
    job.enqueue(n)
assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
job.enqueue(1)
assert app.client._process_connection._shared.session.conn.info.backend_pid == backend
app.client._process_connection._lock.acquire()   # a child forked in the middle of another thread's enqueue
pid = os.fork()
if pid == 0:
    job.enqueue(99)
    app.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
app.client._process_connection._lock.release()
app.close()
"""


def test_forked_children_use_their_own_connection(dsn: str, db: Db) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", FORKS, dsn], check=True, timeout=60)
    assert count(db) == 1 + 30 + 10 + 1 + 1
    wait_for(lambda: not clients(db))


@pytest.mark.parametrize("variable", ["PGWORKERS_DSN", "DATABASE_URL", "PGWORKERS_DSN_FILE"])
def test_the_environment_wins_over_the_dsn_in_the_code(
    dsn: str, db: Db, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    (tmp_path / "dsn").write_text(dsn)
    app = App(dsn="postgresql://127.0.0.1:1/nowhere", connect_timeout="2s")
    app.queue("default")
    job = app.task(name="job")(lambda: None)
    with pytest.raises(DatabaseUnreachable):
        job.enqueue()
    app = App(dsn="postgresql://127.0.0.1:1/nowhere")
    app.queue("default")
    job = app.task(name="job")(lambda: None)
    monkeypatch.setenv(variable, str(tmp_path / "dsn") if variable.endswith("FILE") else dsn)
    job.enqueue()
    app.close()
    assert count(db) == 1


def test_preparing_a_job_decides_on_no_database(dsn: str, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module may prepare jobs while it is imported, before the environment is complete (dotenv, Django's settings)."""
    app = App(payload_limit="100")
    app.queue("default")

    @app.task
    def job(text: str) -> None:
        pass

    job.prepare("early")
    with pytest.raises(ArgumentError, match="more than 100"):
        job.prepare("x" * 200)
    monkeypatch.setenv("PGWORKERS_PAYLOAD_LIMIT", "1kB")
    monkeypatch.setenv("DATABASE_URL", dsn)
    assert app.enqueue_many([job.prepare("x" * 200)]) == 1
    app.close()
    assert count(db) == 1
