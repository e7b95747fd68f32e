"""Rows of part A: worker processes that die, are frozen, or are hit by signals."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support.cluster import TURNS, Cluster, wait_for
from support.ledger import audit, read
from support.time_bounds import BACKOFF, BUSY, T_HOST, T_PROC, H, K, L, P, R, S

pytestmark = pytest.mark.timeout(300)
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def stale(log: str, job: int) -> bool:
    """True if its host has noticed the lost lease: by the refused result, or by an earlier renewal."""
    return any(f"#{job} turns {what}" in log for what in ("result refused", "lease lost"))


def started(cluster: Cluster, job: int) -> int:
    """The pid of the worker that runs it."""
    return wait_for(lambda: [e.pid for e in read(cluster.ledger) if e.job == job])[-1]


def test_row_01_kill_9_of_a_worker_in_the_handler(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1")
    [job] = cluster.enqueue("gate")
    victim = started(cluster, job)
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: cluster.attempts(job), timeout=T_PROC + BUSY, what="its death is on record")
    cluster.open_gate()
    row = cluster.until(job, "succeeded", timeout=T_PROC + BACKOFF + 1.0 + BUSY)
    assert (row["attempt"], row["crashes"], row["lease"]) == (2, 1, 2)
    [attempt] = cluster.attempts(job)
    assert (attempt["verdict"], attempt["exit_status"]) == ("crash", "SIGKILL")
    assert victim not in wait_for(lambda: master.worker_pids() or None), "a new worker has taken its place"
    assert audit(cluster.db, cluster.ledger, [job]) == []


@pytest.mark.parametrize(("point", "starts", "ends"), [("after_order", 0, 0), ("before_report", 2, 2)])
def test_rows_02_03_a_worker_dies_before_the_handler_or_after_it(
    cluster: Cluster, point: str, starts: int, ends: int
) -> None:
    """Every worker dies there, so the job is dead after its crashes: one terminal state, each attempt on record."""
    cluster.start(queues="default:1", PGWORKERS_FAULT=point)
    [job] = cluster.enqueue("work", max_crashes=2)
    row = cluster.until(job, "dead", timeout=2 * T_PROC + BACKOFF + P + S + BUSY)
    assert (row["crashes"], row["lease"]) == (2, 2)
    assert [attempt["exit_status"] for attempt in cluster.attempts(job)] == ["SIGKILL", "SIGKILL"]
    kinds = [entry.kind for entry in read(cluster.ledger)]
    assert (kinds.count("START"), kinds.count("END")) == (starts, ends)
    assert audit(cluster.db, cluster.ledger, [job]) == []


@pytest.mark.long
def test_row_09_a_stopped_worker_costs_no_lease_and_finishes_when_it_goes_on(cluster: Cluster) -> None:
    """We do not kill it: a frozen worker is shown as stalled, and no other worker gets its job."""
    master = cluster.start(queues="default:1")
    cluster.start(queues="default:1")
    [job] = cluster.enqueue("work", args={"seconds": 1.0})
    worker = started(cluster, job)
    os.kill(worker, signal.SIGSTOP)
    stopped = time.monotonic()
    wait_for(lambda: any("stalled" in m.log() for m in cluster.masters), what="it is told as stalled")
    wait_for(lambda: time.monotonic() - stopped > L + 2)
    assert (cluster.row(job)["state"], cluster.row(job)["lease"]) == ("running", 1)
    os.kill(worker, signal.SIGCONT)
    row = cluster.until(job, "succeeded")
    assert (row["attempt"], row["lease"], row["crashes"]) == (1, 1, 0)
    assert audit(cluster.db, cluster.ledger, [job]) == []
    assert master.process.poll() is None


@pytest.mark.long
def test_row_10_a_host_stopped_for_less_than_its_lease_keeps_it(cluster: Cluster) -> None:
    first = cluster.start(queues="mine:1")
    cluster.start(queues="default:1")
    [job] = cluster.enqueue("work", queue="mine", args={"seconds": 3.0})
    started(cluster, job)
    frozen = first.processes()
    for process in frozen:
        process.suspend()
    began = time.monotonic()
    wait_for(lambda: time.monotonic() - began > L - 3)
    for process in frozen:
        process.resume()
    row = cluster.until(job, "succeeded")
    assert (row["lease"], row["attempt"], row["crashes"]) == (1, 1, 0)
    assert audit(cluster.db, cluster.ledger, [job]) == []


@pytest.mark.long
@pytest.mark.excused("I6", "without exclusive=True two executions may overlap where a host stood still")
def test_row_10_a_host_stopped_for_more_than_its_lease_writes_nothing(cluster: Cluster) -> None:
    """It wakes up while another holds its jobs: one handler ends that very moment, one hangs."""
    cluster.declare(TURNS)
    first = cluster.start(queues="mine:2")
    cluster.start(queues="default:2")
    jobs = [
        *cluster.enqueue("turns", queue="mine"),
        *cluster.enqueue("turns", queue="mine", args={"hangs": True}),
    ]
    wait_for(lambda: {e.job for e in read(cluster.ledger)} == set(jobs))
    frozen = first.processes()
    for process in frozen:
        process.suspend()
    wait_for(
        lambda: {cluster.state(job) for job in jobs} == {"scheduled"}, timeout=T_HOST + BUSY, what="rescued"
    )
    cluster.db.execute("UPDATE pgworkers.job SET queue = 'default'")
    wait_for(
        lambda: {e.job for e in read(cluster.ledger) if e.lease == 2} == set(jobs),
        timeout=BACKOFF + BUSY,
        what="begun again",
    )
    cluster.open_turn(1)
    begun = {e.pid for e in read(cluster.ledger) if e.lease == 1}
    for process in [one for one in frozen if one.pid in begun]:  # before the processes that could stop them
        process.resume()
    wait_for(lambda: [e for e in read(cluster.ledger) if e.kind == "END"], what="one handler ended")
    for process in [one for one in frozen if one.pid not in begun]:
        process.resume()
    wait_for(lambda: not first.titles("#"), timeout=H + K + BUSY, what="the stale handlers are gone")
    wait_for(
        lambda: cluster.counts() != {"running": 2} or stale(first.log(), jobs[0]), what="its end was judged"
    )
    assert cluster.counts() == {"running": 2}, "a stale end was written"
    cluster.open_turn(2)
    for job in jobs:
        row = cluster.until(job, "succeeded")
        assert (row["lease"], row["crashes"], row["result"]) == (2, 0, 2)


@pytest.mark.long
@pytest.mark.skipif(not os.access(LAST_PID, os.W_OK), reason="NOT TESTED: ns_last_pid needs root")
def test_row_26_a_stranger_with_the_pid_of_a_dead_worker_is_never_hit(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1")
    [job] = cluster.enqueue("hang")
    dead = started(cluster, job)
    os.kill(dead, signal.SIGKILL)
    wait_for(lambda: cluster.attempts(job), what="reaped and on record")
    stranger = _with_pid(dead)
    try:
        wait_for(lambda: len([e for e in read(cluster.ledger) if e.kind == "START"]) == 2)
        cluster.db.execute("SELECT pgworkers.cancel(%s)", (job,))
        cluster.until(job, "cancelled")
        assert master.terminate() == 0, master.log()
        assert stranger.poll() is None, "somebody else was killed"
    finally:
        stranger.kill()
        stranger.wait()


def _with_pid(pid: int) -> subprocess.Popen[bytes]:
    for _ in range(2000):
        LAST_PID.write_text(str(pid - 1))
        made = subprocess.Popen(["sleep", "60"])
        if made.pid == pid:
            return made
        made.kill()
        made.wait()
    raise AssertionError(f"pid {pid} could not be had: nothing was tested")


def _zombies(master: int) -> list[int]:
    found = []
    for child in psutil.Process(master).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.status() == psutil.STATUS_ZOMBIE:
                found.append(child.pid)
    return found


@pytest.mark.long
def test_row_28_two_hundred_children_that_die_at_once_leave_no_zombie(cluster: Cluster) -> None:
    cluster.declare(
        "@app.task\ndef brood(ctx: Ctx) -> None:\n"
        '    note(ctx, "START")\n'
        "    for _ in range(200 if ctx.lease == 1 else 0):\n"
        "        if os.fork() == 0:\n            os.setsid()\n            time.sleep(600)\n            os._exit(0)\n"
        "    while ctx.lease == 1:\n        time.sleep(1)\n"
        '    note(ctx, "END")'
    )
    master = cluster.start(queues="default:2")
    [job] = cluster.enqueue("brood")
    worker = psutil.Process(started(cluster, job))
    brood = wait_for(lambda: len(found := worker.children()) == 200 and found)
    for process in [worker, *brood]:
        with suppress(psutil.NoSuchProcess):  # swept already
            process.kill()
    cluster.until(job, "succeeded")
    wait_for(lambda: not _zombies(master.pid), timeout=R + BUSY, what="no zombie is left")
    assert not [child for child in brood if child.is_running()]
    [after] = cluster.enqueue("work")
    cluster.until(after, "succeeded")
    assert audit(cluster.db, cluster.ledger, [job, after]) == []


@pytest.mark.long
def test_row_28_a_rain_of_signals_loses_no_wake_up_and_leaves_no_zombie(cluster: Cluster) -> None:
    master = cluster.start(queues="default:2")
    jobs = cluster.enqueue("litter", 30)
    sent = 0
    while cluster.db.execute("SELECT count(*) > 0 FROM pgworkers.job").fetchone() == (True,):
        for number in (signal.SIGUSR1, signal.SIGPIPE, signal.SIGCHLD, signal.SIGHUP, signal.SIGWINCH):
            master.signal(number)
            sent += 1
        for pid in master.supervisor_pids():
            try:
                os.kill(pid, signal.SIGCHLD)
                os.kill(pid, signal.SIGPIPE)
            except ProcessLookupError:
                pass
        time.sleep(0.05)
    assert sent > 10, "nothing was tested"
    assert cluster.counts() == {"succeeded": 30}
    wait_for(lambda: not _zombies(master.pid), timeout=R + BUSY, what="no zombie is left")
    assert audit(cluster.db, cluster.ledger, jobs) == []
