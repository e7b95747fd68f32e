"""Threads that handlers leave behind: a worker that uses CPU without a job is replaced; sleeping threads are allowed."""

from __future__ import annotations

import urllib.request

import pytest
from support.cluster import Cluster, wait_for

THREADS = """
import threading


def burn():
    while True:
        pass


def doze():
    while True:
        time.sleep(0.05)


def begin(target):
    for _ in range(3):
        threading.Thread(target=target, daemon=True).start()


if os.environ.get("HOOKED"):
    @app.on_worker_start
    def burns_by_itself():
        threading.Thread(target=burn, daemon=True).start()


@app.task
def leaves(ctx: Ctx, how: str) -> None:
    note(ctx, "START")
    begin({"burn": burn, "doze": doze}[how])
    note(ctx, "END")
"""


@pytest.mark.parametrize("hooked", ["", "yes"])
def test_threads_that_burn_without_a_job_cost_their_worker_its_place(cluster: Cluster, hooked: str) -> None:
    """A worker whose threads sleep, or were started by a start hook, stays."""
    cluster.declare(THREADS)
    master = cluster.start(queues="default:1,calm:1", PGWORKERS_METRICS_ADDRESS="127.0.0.1:0", HOOKED=hooked)
    [calm] = cluster.enqueue("leaves", queue="calm", args={"how": "doze"})
    cluster.until(calm, "succeeded")
    [stays] = wait_for(lambda: master.worker_pids("calm"))
    gone = []
    for _ in range(2):
        [job] = cluster.enqueue("leaves", args={"how": "burn"})
        cluster.until(job, "succeeded")
        told = wait_for(
            lambda job=job: [
                line for line in master.log().splitlines() if f"its last was #{job} leaves" in line
            ]
        )
        assert len(told) == 1
        assert "worker default/0 (pid " in told[0]
        assert "is replaced: leftover threads use CPU while the worker has no job" in told[0]
        gone.append(int(told[0].split("(pid ")[1].split(")")[0]))
        wait_for(lambda: set(gone).isdisjoint(master.worker_pids("default")), what="gone")
    assert len(set(gone)) == 2
    assert master.worker_pids("calm") == [stays]
    [after] = cluster.enqueue("work")
    cluster.until(after, "succeeded")
    [address] = [line.split()[1] for line in master.log().splitlines() if line.startswith("metrics ")]
    samples = urllib.request.urlopen(address, timeout=60).read().decode()
    assert 'pgworkers_worker_exits_total{queue="default",reason="threads"} 2' in samples
    assert 'pgworkers_worker_exits_total{queue="calm",reason="threads"} 0' in samples
    assert "died" not in master.log()
