"""Every kind of process killed, by every means, and what is left afterwards."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import time

import psutil
import pytest
from support.cluster import TURNS, UNHURRIED, Cluster, wait_for
from support.ledger import audit, read
from support.time_bounds import BUSY

from pgworkers.job.model import MAX_CONSECUTIVE_LOSSES


@pytest.mark.parametrize(
    ("how", "verdict", "status"),
    [
        ("kill", "crash", "SIGKILL"),
        ("segv", "crash", "SIGSEGV"),
        ("abort", "crash", "SIGABRT"),
        ("exit0", "exit", "exit 0"),
        ("exit3", "exit", "exit 3"),
    ],
)
def test_a_job_that_ends_its_worker_costs_one_attempt(
    cluster: Cluster, how: str, verdict: str, status: str
) -> None:
    master = cluster.start(queues="default:1")
    [neighbour, job] = cluster.enqueue("work") + cluster.enqueue("die", args={"how": how, "times": 1})
    row = cluster.until(job, "succeeded")
    assert row["attempt"] == 2
    assert row["crashes"] == 1
    [attempt] = cluster.attempts(job)
    assert (attempt["verdict"], attempt["exit_status"]) == (verdict, status)
    if how in ("segv", "abort"):
        assert "in die" in attempt["stack"]
    assert cluster.state(neighbour) == "succeeded"
    assert len(master.worker_pids()) == 1
    assert audit(cluster.db, cluster.ledger, [neighbour, job]) == []


def test_sys_exit_in_a_handler_is_a_failure_of_the_job(cluster: Cluster) -> None:
    cluster.start(queues="default:1")
    [job] = cluster.enqueue("die", args={"how": "sysexit"}, max_attempts=1)
    assert cluster.until(job, "dead")["verdict"] == "exit"


def test_a_poison_job_is_dead_after_max_crashes_and_the_queue_behind_it_finishes(cluster: Cluster) -> None:
    cluster.start(queues="default:1")
    [poison] = cluster.enqueue("die", max_crashes=2)
    others = cluster.enqueue("work", 20)
    row = cluster.until(poison, "dead")
    assert row["crashes"] == 2
    assert row["attempt"] == 2
    assert [(a["verdict"], a["exit_status"]) for a in cluster.attempts(poison)] == [("crash", "SIGKILL")] * 2
    for job in others:
        cluster.until(job, "succeeded")
    assert audit(cluster.db, cluster.ledger, [poison, *others]) == []


@pytest.mark.slow
def test_five_thousand_jobs_while_workers_are_killed_fifty_times(cluster: Cluster) -> None:
    master = cluster.start(queues="default:2,images:2")
    jobs = cluster.enqueue("work", 2500, args={"seconds": 0.002}, max_crashes=100, max_attempts=100)
    jobs += cluster.enqueue(
        "work", 2500, queue="images", args={"seconds": 0.002}, max_crashes=100, max_attempts=100
    )
    rand = random.Random(7)
    killed = 0
    while killed < 50:
        workers = master.worker_pids()
        if workers:
            try:
                os.kill(rand.choice(workers), signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                pass
        time.sleep(0.02)
    counts = cluster.until_all_ended(timeout=100)
    assert counts == {"succeeded": 5000}
    assert audit(cluster.db, cluster.ledger, jobs) == []
    crashes = cluster.db.execute("SELECT count(*) FROM pgworkers.attempt WHERE verdict = 'crash'").fetchone()[
        0
    ]
    assert crashes == cluster.db.execute("SELECT sum(crashes) FROM pgworkers.history").fetchone()[0]
    assert crashes > 0, "no kill hit a running job: nothing was tested"
    assert len(wait_for(lambda: len(master.worker_pids()) == 4 and master.worker_pids())) == 4


def test_kills_of_a_supervisor_cost_its_jobs_nothing(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1")
    [job] = cluster.enqueue("gate", max_attempts=2, max_crashes=2)
    for kill in range(1, 5):
        wait_for(lambda kill=kill: len(read(cluster.ledger)) == kill, what=f"start {kill}")
        [supervisor] = master.supervisor_pids("default")
        os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: len(read(cluster.ledger)) == 5)
    cluster.open_gate()
    row = cluster.until(job, "succeeded")
    assert (row["attempt"], row["crashes"], row["lease"]) == (1, 0, 5)
    attempts = cluster.attempts(job)
    assert [attempt["verdict"] for attempt in attempts] == ["interrupted"] * 4
    assert {attempt["error"] for attempt in attempts} == {"its supervisor died (SIGKILL)"}
    assert audit(cluster.db, cluster.ledger, [job]) == []


def test_a_job_that_kills_its_supervisors_is_found(cluster: Cluster) -> None:
    cluster.declare(
        "@app.task\ndef parricide(ctx: Ctx) -> None:\n"
        "    note(ctx, 'START')\n    os.kill(os.getppid(), signal.SIGKILL)\n    time.sleep(60)\n"
    )
    cluster.start(queues="default:1")
    [job] = cluster.enqueue("parricide", max_attempts=100, max_crashes=100)
    row = cluster.until(job, "dead", timeout=120)
    assert (row["verdict"], row["lease"]) == ("crash", MAX_CONSECUTIVE_LOSSES)
    last = cluster.attempts(job)[-1]["error"]
    assert last == (
        "its supervisor died (SIGKILL); not tried again: it was running in 10 deaths of its supervisor or host in a row"
    )
    [other] = cluster.enqueue("work")
    cluster.until(other, "succeeded")
    assert audit(cluster.db, cluster.ledger, [job, other]) == []


def test_a_killed_supervisor_is_replaced_and_its_jobs_end_with_the_true_cause(cluster: Cluster) -> None:
    master = cluster.start(queues="default:2,images:1")
    jobs = cluster.enqueue("gate", 2)
    [other] = cluster.enqueue("gate", queue="images")
    wait_for(lambda: len(read(cluster.ledger)) == 3)
    workers = master.worker_pids("default/")
    [supervisor] = master.supervisor_pids("default")
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in workers), timeout=2 + BUSY)
    cluster.open_gate()
    for job in jobs:
        row = cluster.until(job, "succeeded")
        assert row["crashes"] == 0
        [attempt] = cluster.attempts(job)
        assert "supervisor" in attempt["error"]
        assert attempt["verdict"] == "interrupted"
    assert cluster.until(other, "succeeded")["attempt"] == 1, "another queue was hit"
    assert audit(cluster.db, cluster.ledger, [*jobs, other]) == []


def test_after_kill_9_of_the_master_nothing_is_left_and_another_host_finishes(cluster: Cluster) -> None:
    first = cluster.start(queues="default:3")
    jobs = cluster.enqueue("work", 12, args={"seconds": 0.7})
    jobs += cluster.enqueue("litter", 1, args={"seconds": 5}, priority=10)
    wait_for(lambda: len(read(cluster.ledger)) >= 3)
    first.signal(signal.SIGKILL)
    first.wait()
    wait_for(lambda: not first.processes(), timeout=2 + BUSY, what="the tree is gone")
    cluster.start(queues="default:3")
    cluster.until_all_ended(timeout=60)
    assert audit(cluster.db, cluster.ledger, jobs) == []
    lost = cluster.db.execute("SELECT DISTINCT verdict, error FROM pgworkers.attempt").fetchall()
    assert lost
    assert all(verdict == "host_lost" and "no heartbeat" in error for verdict, error in lost)


def test_kill_9_of_the_whole_family_at_once(cluster: Cluster) -> None:
    first = cluster.start(queues="default:2,images:2")
    jobs = cluster.enqueue("work", 4, args={"seconds": 5}) + cluster.enqueue(
        "work", 4, args={"seconds": 0.5}, queue="images"
    )
    wait_for(lambda: len(read(cluster.ledger)) >= 4)
    for process in first.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # the death of the master alone ends the others
            process.kill()
    first.wait()
    wait_for(lambda: not first.processes(), timeout=2 + BUSY)
    cluster.start(queues="default:4,images:2")
    cluster.until_all_ended(timeout=60)
    assert audit(cluster.db, cluster.ledger, jobs) == []


def test_grandchildren_in_their_own_session_do_not_outlive_their_job(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1")
    [job] = cluster.enqueue("litter")
    cluster.until(job, "succeeded")
    wait_for(lambda: len(master.processes()) == 3, what="master, supervisor and worker only")


@pytest.mark.excused("I6", "its handler stood still with its host and goes on beside the other")
def test_a_host_that_was_stopped_longer_than_its_lease_cannot_finish_what_it_lost(cluster: Cluster) -> None:
    """Its end is sent while another runs the job: nothing but the guard keeps it out."""
    cluster.declare(TURNS)
    first = cluster.start(queues="default:1")
    [job] = cluster.enqueue("turns")
    [start] = wait_for(lambda: read(cluster.ledger))
    frozen = first.processes()
    for process in frozen:
        process.suspend()
    cluster.start(queues="default:1")
    wait_for(lambda: [e for e in read(cluster.ledger) if e.lease == 2], what="rescued, and begun again")
    cluster.open_turn(1)
    [worker] = [one for one in frozen if one.pid == start.pid]
    worker.resume()  # before the processes that could stop it
    wait_for(lambda: [e for e in read(cluster.ledger) if e.kind == "END"], what="its handler ended")
    for process in frozen:
        process.resume()
    wait_for(  # noticed by the refused result, or by an earlier renewal
        lambda: cluster.state(job) != "running" or re.search("result refused|lease lost", first.log()),
        what="its end was judged",
    )
    assert cluster.state(job) == "running", "a stale end was written"
    cluster.open_turn(2)
    row = cluster.until(job, "succeeded")
    assert (row["lease"], row["attempt"], row["crashes"], row["result"]) == (2, 2, 0, 2)


def test_c_code_that_holds_the_gil_longer_than_the_lease_is_not_rescued(cluster: Cluster) -> None:
    cluster.start(queues="default:1")
    cluster.start(queues="default:1")
    turns, jobs = 200_000_000, []
    while True:  # until one takes longer than the lease, on whatever machine this is
        jobs += cluster.enqueue("hold_gil", args={"turns": turns})
        row = cluster.until(jobs[-1], "succeeded", timeout=60)
        assert (row["attempt"], row["crashes"], row["lease"]) == (1, 0, 1)
        if row["duration"] > 5.0:
            break
        turns = int(turns * min(10.0, 6.5 / row["duration"]))
    assert audit(cluster.db, cluster.ledger, jobs) == []


@pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("unshare"), reason="NOT TESTED: PID 1 needs root and unshare"
)
def test_as_pid_1_it_works_reaps_strangers_and_drains(cluster: Cluster) -> None:
    master = cluster.start(
        queues="default:1",
        prefix=("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"),
        **UNHURRIED,
    )
    [inside] = psutil.Process(master.pid).children()
    [job] = cluster.enqueue("litter", args={"seconds": 0.2})
    cluster.until(job, "succeeded")
    wait_for(lambda: len(inside.children(recursive=True)) == 2, what="supervisor and worker only, no zombie")
    inside.send_signal(signal.SIGTERM)
    assert master.wait() == 0, master.log()
    assert cluster.db.execute("SELECT count(*) FROM pgworkers.host").fetchone() == (0,)
