"""The joblib backend on a real host: results in order, a failure, a killed worker, a restart of the database."""

from __future__ import annotations

import math
import os
import signal
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import joblib
import pytest
from support.cluster import UNHURRIED, Cluster, wait_for
from support.server import OwnServer

from pgworkers import App, JobFailed, UsageError
from pgworkers.joblib import register

CALL = 'app.include("call", modules=["math", "textwrap"])'


def make_app(dsn: str) -> App:
    made = App(dsn=dsn, poll_interval="0.1s")
    made.queue("default")

    @made.task
    def gate(value: Any = None) -> Any: ...

    @made.task
    def hang() -> None: ...

    made.include("call", modules=["math", "textwrap"])
    register(made)
    return made


@pytest.fixture
def app(cluster: Cluster) -> Iterator[App]:
    made = make_app(cluster.dsn)
    yield made
    made.close()


@pytest.mark.excused("audit", "the built-in task keeps no ledger")
def test_calls_come_back_in_order_and_run_elsewhere(cluster: Cluster, app: App) -> None:
    cluster.declare(CALL)
    cluster.start(queues="default:2")
    with joblib.parallel_backend("pgworkers"):
        found = joblib.Parallel()(joblib.delayed(math.factorial)(n) for n in range(20))
        assert found == [math.factorial(n) for n in range(20)]
        texts = joblib.Parallel(batch_size=3)(
            joblib.delayed(textwrap.shorten)(f"text   {n}", width=20) for n in range(7)
        )
        assert texts == [f"text {n}" for n in range(7)]
        as_they_end = joblib.Parallel(return_as="generator")(joblib.delayed(math.sqrt)(n) for n in (1, 4))
        assert list(as_they_end) == [1.0, 2.0]
        with pytest.raises(JobFailed, match="ValueError") as caught:
            joblib.Parallel()(joblib.delayed(math.sqrt)(n) for n in (1, -1, 4))
        assert caught.value.verdict == "error"
        with pytest.raises(UsageError, match="cannot be imported by a worker"):
            joblib.Parallel()(joblib.delayed(lambda n: n)(n) for n in range(3))
    count = cluster.db.execute("SELECT count(*) FROM pgworkers.jobs WHERE task = 'call'").fetchone()
    assert count is not None
    assert count[0] >= 20 + 7 + 2


def test_a_killed_worker_costs_no_call(cluster: Cluster, app: App) -> None:
    master = cluster.start(queues="default:2")
    found: list[list[int]] = []

    def work() -> None:
        with joblib.parallel_backend("pgworkers"):
            found.append(joblib.Parallel()(joblib.delayed(app.tasks["gate"])(value=n) for n in range(3)))

    thread = threading.Thread(target=work)
    thread.start()
    (worker, _), *_ = wait_for(lambda: master.titles("gate"))
    os.kill(worker, signal.SIGKILL)
    wait_for(
        lambda: any(cluster.attempts(job) for (job,) in cluster.db.execute("SELECT id FROM pgworkers.job"))
    )
    cluster.open_gate()
    thread.join(120)
    assert found == [[0, 1, 2]]


@pytest.mark.excused("audit", "the built-in task keeps no ledger")
def test_a_failure_cancels_the_other_calls(cluster: Cluster, app: App) -> None:
    cluster.declare(CALL)
    cluster.start(queues="default:2")
    calls = [joblib.delayed(app.tasks["hang"])(), joblib.delayed(math.sqrt)(-1)]
    with joblib.parallel_backend("pgworkers"), pytest.raises(JobFailed, match="ValueError"):
        joblib.Parallel()(calls)
    assert cluster.until_all_ended() == {"cancelled": 1, "dead": 1}


def test_a_restart_of_the_database_delays_the_calls(own_cluster: Cluster, own_server: OwnServer) -> None:
    cluster = own_cluster
    app = make_app(cluster.dsn)
    cluster.start(queues="default:2", **UNHURRIED)
    found: list[list[int]] = []

    def work() -> None:
        with joblib.parallel_backend("pgworkers", n_jobs=2):
            found.append(joblib.Parallel()(joblib.delayed(app.tasks["gate"])(value=n) for n in range(3)))

    thread = threading.Thread(target=work)
    thread.start()
    wait_for(lambda: cluster.counts().get("running", 0) >= 2)
    wait_for(lambda: sum(cluster.counts().values()) == 3)
    own_server.crash()
    own_server.start()
    cluster.open_gate()
    cluster.reconnect()
    thread.join(120)
    assert found == [[0, 1, 2]]
    app.close()
