"""`app.executor()` on a real host: results, failures, a killed worker, cancels, a restart of the database."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from concurrent.futures import CancelledError, as_completed, wait
from typing import Any

import psycopg
import pytest
from support.cluster import UNHURRIED, Cluster, wait_for
from support.server import OwnServer

from pgworkers import App, JobFailed, UsageError
from pgworkers.builtin_tasks import find_function
from pgworkers.executor import function_name

CALL = 'app.include("call", modules=["math", "time", "textwrap"])'


def make_app(dsn: str) -> App:
    """The tasks as the host declares them; their handlers run there."""
    made = App(dsn=dsn, poll_interval="0.1s")
    made.queue("default")

    @made.task
    def work(seconds: float = 0.0, value: Any = None, gated: bool = False) -> Any: ...

    @made.task
    def gate(value: Any = None) -> Any: ...

    @made.task(retries=0)
    def fail(text: str = "on purpose") -> str: ...

    @made.task
    def hang() -> None: ...

    made.include("call", modules=["math", "time", "textwrap"])
    return made


@pytest.fixture
def app(cluster: Cluster) -> Iterator[App]:
    made = make_app(cluster.dsn)
    yield made
    made.close()


def sessions(cluster: Cluster) -> int:
    row = cluster.db.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgworkers wait'"
    ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.excused("audit", "the built-in task keeps no ledger")
def test_results_failures_and_functions(cluster: Cluster, app: App) -> None:
    cluster.declare(CALL)
    cluster.start(queues="default:2")
    work, fail = app.tasks["work"], app.tasks["fail"]
    with app.executor() as pool:
        assert list(pool.map(lambda value: value, [])) == []
        futures = [pool.submit(work, value=n) for n in range(20)]
        assert sessions(cluster) <= 1
        assert sorted(future.result(60) for future in as_completed(futures, timeout=60)) == list(range(20))
        assert list(pool.map(math.factorial, [1, 2, 3, 10], timeout=60)) == [1, 2, 6, 3628800]
        assert pool.submit("math:hypot", 3, 4).result(60) == 5
        assert pool.submit("textwrap:shorten", text="hello   world", width=20).result(60) == "hello world"
        failed = pool.submit(fail, text="no paper").exception(60)
        assert isinstance(failed, JobFailed)
        assert (failed.state, failed.verdict) == ("dead", "error")
        assert "no paper" in str(failed)
        raised = pool.submit(math.sqrt, -1).exception(60)
        assert isinstance(raised, JobFailed)
        assert "ValueError" in str(raised)
        assert cluster.row(raised.job_id)["attempt"] == 1, "a function that raised is not called again"
        with pytest.raises(UsageError, match="cannot be imported by a worker; nothing was enqueued"):
            pool.submit(lambda: None)
        refused = pool.submit("os:system", "true").exception(60)
        assert "is not among those that jobs may call" in str(refused)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(work)
    wait_for(lambda: sessions(cluster) == 0)


def test_cancelling_waiting_and_running_jobs(cluster: Cluster, app: App) -> None:
    cluster.start(queues="default:1")
    pool = app.executor()
    running = pool.submit(app.tasks["hang"])
    wait_for(running.running)
    waiting = pool.submit(app.tasks["work"])
    assert not waiting.running()
    assert waiting.cancel()
    assert running.cancel()
    assert wait([waiting, running], timeout=60).not_done == set()
    with pytest.raises(CancelledError):
        running.result()
    cluster.until(running.job.id, "cancelled")
    done = pool.submit(app.tasks["work"], value=1)
    assert done.result(60) == 1
    assert not done.cancel()
    cancelled_elsewhere = pool.submit(app.tasks["hang"])
    wait_for(cancelled_elsewhere.running)
    app.job(cancelled_elsewhere.job.id).cancel()
    error = cancelled_elsewhere.exception(60)
    assert isinstance(error, JobFailed)
    assert (error.state, error.verdict) == ("cancelled", "cancelled")
    left = [pool.submit(app.tasks["hang"]) for _ in range(3)]
    pool.shutdown(cancel_futures=True)
    assert all(future.cancelled() for future in left)
    assert cluster.until_all_ended() == {"cancelled": 6, "succeeded": 1}
    wait_for(lambda: sessions(cluster) == 0)


def test_a_shutdown_that_does_not_wait_still_resolves(cluster: Cluster, app: App) -> None:
    cluster.start(queues="default:1")
    pool = app.executor(priority=5)
    future = pool.submit(app.tasks["gate"], value=7)
    pool.shutdown(wait=False)
    assert cluster.row(future.job.id)["priority"] == 5
    cluster.open_gate()
    assert future.result(60) == 7
    wait_for(lambda: sessions(cluster) == 0)


def test_a_killed_worker_costs_an_attempt_and_not_the_future(cluster: Cluster, app: App) -> None:
    master = cluster.start(queues="default:1")
    with app.executor() as pool:
        future = pool.submit(app.tasks["gate"], value=5)
        (worker, _), *_ = wait_for(lambda: master.titles(f"#{future.job.id}"))
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: cluster.row(future.job.id)["attempt"] == 2)
        cluster.open_gate()
        assert future.result(60) == 5


def test_a_restart_of_the_database_delays_the_futures(own_cluster: Cluster, own_server: OwnServer) -> None:
    cluster = own_cluster
    app = make_app(cluster.dsn)
    cluster.start(queues="default:1", **UNHURRIED)
    with app.executor() as pool:
        futures = [pool.submit(app.tasks["gate"], value=n) for n in range(4)]
        wait_for(futures[0].running)
        own_server.crash()
        cluster.open_gate()
        own_server.start()
        cluster.reconnect()
        assert [future.result(120) for future in futures] == [0, 1, 2, 3]
    app.close()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("math", "is not module:name"),
        ("math:__loader__", "is not module:name"),
        ("math:sqrt.__self__", "is not module:name"),
        ("ma th:sqrt", "is not module:name"),
        ("x" * 100_000, "is not module:name"),
        ("os:system", "is not among those"),
        ("math.sub:f", "is not among those"),
        ("math:pi", "defines no function pi"),
        ("math:none", "defines no function none"),
        ("subprocess:os", "is not among those"),
        ("textwrap:re", "defines no function re"),
        ("textwrap:TextWrapper", "defines no function TextWrapper"),
        ("shutil:COPY_BUFSIZE", "defines no function"),
        ("pgworkers.builtin_tasks:import_module", "defines no function import_module"),
    ],
)
def test_a_job_reaches_only_functions_of_named_modules(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"{why}.*nothing was called"):
        find_function(text, ("math", "textwrap", "shutil", "pgworkers.builtin_tasks"))


def test_the_name_of_a_function() -> None:
    assert function_name(math.sqrt) == "math:sqrt"
    assert find_function("math:sqrt", ("math",)) is math.sqrt
    with pytest.raises(UsageError, match="at the top level of a module"):
        function_name(psycopg.Connection.execute)


def test_functions_need_a_declaration(dsn: str) -> None:
    app = App(dsn=dsn)
    app.queue("default")
    with pytest.raises(UsageError, match=r'declare app.include\("call", modules='):
        app.executor().submit(math.sqrt, 2)
    with pytest.raises(UsageError, match="needs the modules whose functions jobs may call"):
        app.include("call")
    with pytest.raises(UsageError, match="priorit"):
        app.executor(priorit=1)  # type: ignore[call-arg]
