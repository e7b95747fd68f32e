"""Looking into running jobs, suspending, resuming and killing them, from anywhere."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import psutil
import pytest
from support.cluster import Cluster, wait_for
from support.ledger import audit, read
from support.process_watch import ProcessWatch
from support.time_bounds import BUSY, T_PROC, F


def pgworkers(cluster: Cluster, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pgworkers", "--dsn", cluster.dsn, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd="/")


def running(cluster: Cluster, task: str, **args: object) -> int:
    options = {"timeout": args.pop("timeout")} if "timeout" in args else {}
    [job] = cluster.enqueue(task, args=args, **options)
    wait_for(lambda: [e for e in read(cluster.ledger) if e.job == job])
    return job


def state_of(pid: int) -> str:
    return psutil.Process(pid).status()


def _logs(cluster: Cluster) -> str:
    return "".join(master.log() for master in cluster.masters)


def test_the_stack_of_a_running_job_names_its_function_even_in_c_code(cluster: Cluster) -> None:
    cluster.start(queues="default:1")
    cluster.start(queues="default:1")
    job = running(cluster, "hold_gil", turns=10_000_000_000)
    done = pgworkers(cluster, "jobs", "stack", str(job))
    assert done.returncode == 0, done.stderr
    assert "in hold_gil" in done.stdout
    assert cluster.state(job) == "running"
    all_of_them = pgworkers(cluster, "workers", "stack")
    assert "in hold_gil" in all_of_them.stdout
    for master in cluster.masters:
        master.signal(signal.SIGUSR2)
        wait_for(lambda log=master.log: "is here:" in log(), what="every stack in the log, by signal")
    assert re.search(
        rf"#{job} hold_gil worker default/0 \(pid \d+\) is here:.*\n(  \| .*\n)+", _logs(cluster)
    )
    assert re.search(r"\n  \| .*in hold_gil", _logs(cluster))
    cluster.db.execute("SELECT pgworkers.cancel(%s)", (job,))
    cluster.until(job, "cancelled")


@pytest.mark.long
def test_workers_that_give_no_answer_are_a_failure(cluster: Cluster) -> None:
    """Their master is stopped, so no process receives the request."""
    master = cluster.start(queues="default:1")
    wait_for(lambda: "default/0" in pgworkers(cluster, "workers").stdout, what="a worker that is known")
    assert pgworkers(cluster, "workers", "stack", "default").returncode == 0
    master.signal(signal.SIGSTOP)
    try:
        done = pgworkers(cluster, "workers", "stack", "default")
    finally:
        master.signal(signal.SIGCONT)
    assert (done.returncode, "no answer" in done.stdout) == (1, True), done


def test_a_job_that_does_not_run_has_no_stack(cluster: Cluster) -> None:
    [job] = cluster.enqueue("work")
    done = pgworkers(cluster, "jobs", "stack", str(job))
    assert (done.returncode, "not running" in done.stderr) == (1, True)
    assert pgworkers(cluster, "jobs", "stack", "999").returncode == 3


def test_a_suspended_job_is_stopped_and_its_deadline_waits(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1")
    job = running(cluster, "gate", timeout="9 seconds")
    pid = read(cluster.ledger)[0].pid
    done = pgworkers(cluster, "jobs", "suspend", str(job))
    assert done.returncode == 0, done.stderr
    wait_for(
        lambda: state_of(pid) == psutil.STATUS_STOPPED, what="the signal takes effect when it is scheduled"
    )
    wait_for(lambda: master.titles("1 suspended"))
    wait_for(
        lambda: "suspended" in pgworkers(cluster, "jobs", "list").stdout, what="its host says so at once"
    )
    assert f"pgworkers jobs resume {job}" in pgworkers(cluster, "jobs", "show", str(job)).stdout
    assert "view written" in pgworkers(cluster, "top", "--once").stdout.splitlines()[-1]
    began = cluster.db.execute("SELECT now()").fetchone()
    wait_for(lambda: cluster.db.execute("SELECT now() - %s > '10 seconds'", began).fetchone() == (True,))
    assert cluster.state(job) == "running", "its deadline did not wait"
    cluster.open_gate()
    assert pgworkers(cluster, "jobs", "resume", str(job)).returncode == 0
    row = cluster.until(job, "succeeded")
    assert (row["attempt"], row["lease"]) == (1, 1)
    assert audit(cluster.db, cluster.ledger, [job]) == []


def test_a_suspended_job_can_be_cancelled(cluster: Cluster) -> None:
    cluster.start(queues="default:1")
    job = running(cluster, "work", seconds=60)
    pgworkers(cluster, "jobs", "suspend", str(job))
    cluster.db.execute("SELECT pgworkers.cancel(%s)", (job,))
    cluster.until(job, "cancelled")


def test_a_drain_does_not_wait_for_a_suspended_job_for_ever(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1", PGWORKERS_DRAIN_TIMEOUT="1s")
    job = running(cluster, "work", seconds=60)
    pgworkers(cluster, "jobs", "suspend", str(job))
    assert master.terminate() == 0, master.log()
    assert (cluster.row(job)["state"], cluster.row(job)["attempt"]) == ("ready", 0)


def test_kill_hands_the_job_back_and_it_runs_again(cluster: Cluster) -> None:
    cluster.start(queues="default:1")
    job = running(cluster, "gate")
    done = pgworkers(cluster, "jobs", "kill", str(job))
    assert done.returncode == 0, done.stderr
    wait_for(lambda: cluster.row(job)["lease"] == 2, what="killed and claimed again: told is not yet done")
    cluster.open_gate()
    row = cluster.until(job, "succeeded")
    assert (row["attempt"], row["crashes"], row["lease"]) == (1, 0, 2)
    assert audit(cluster.db, cluster.ledger, [job]) == []


def test_a_kill_is_sigkill_even_for_a_handler_that_would_have_listened(cluster: Cluster) -> None:
    """Its process is gone, its stack is on record, its job kept: the next attempt has another process."""
    master = cluster.start(queues="default:1")
    job = running(cluster, "gate")
    [old] = master.worker_pids()
    done = pgworkers(cluster, "jobs", "kill", str(job))
    assert done.returncode == 0, done.stderr
    wait_for(lambda: cluster.row(job)["lease"] == 2, what="killed and claimed again")
    cluster.open_gate()
    cluster.until(job, "succeeded")
    [attempt] = cluster.attempts(job)
    assert (attempt["verdict"], attempt["exit_status"]) == ("interrupted", "SIGKILL")
    assert [rung["rung"] for rung in attempt["rungs"]] == ["dump", "kill"]
    assert "in gate" in attempt["stack"]
    assert old not in {event.pid for event in read(cluster.ledger) if event.kind == "END"}
    assert not psutil.pid_exists(old)


def test_an_exclusive_job_is_dead_before_its_lease_can_be_anothers(cluster: Cluster) -> None:
    """The master is stopped, so nothing renews: its supervisor ends the handler by itself, though it swallows all signs."""
    first = cluster.start(queues="default:1")
    cluster.declare(
        '@app.task(exclusive=True, retry_verdicts={"host_lost": 0.5})\ndef solo(ctx: Ctx) -> None:\n'
        '    note(ctx, "START")\n'
        "    until = time.monotonic() + (60 if ctx.lease == 1 else 0)\n"
        "    while time.monotonic() < until:\n"
        "        try:\n            time.sleep(60)\n        except BaseException:\n            pass\n"
        '    note(ctx, "END")'
    )
    first.signal(signal.SIGHUP)
    wait_for(lambda: "reloaded" in first.log())
    job = running(cluster, "solo")
    watch = ProcessWatch(read(cluster.ledger)[0].pid)
    cluster.start(queues="default:1")  # it begins the job as soon as it can have it
    first.signal(signal.SIGSTOP)
    cluster.until(job, "succeeded")
    [again] = [e for e in read(cluster.ledger) if (e.kind, e.lease) == ("START", 2)]
    assert not watch.was_alive_after(again.at), "it was_alive_after its lease"
    first.signal(signal.SIGCONT)
    assert audit(cluster.db, cluster.ledger, [job]) == []


def test_an_exclusive_job_that_has_long_to_stop_is_dead_before_its_lease_can_be_anothers(
    cluster: Cluster,
) -> None:
    """A stop request with long graces is under way when its host is cut off: the fence does not wait for them."""
    cluster.declare(
        '@app.task(exclusive=True)\ndef stubborn(ctx: Ctx) -> None:\n    note(ctx, "START")\n'
        '    while not ctx.cancelled:\n        time.sleep(0.02)\n    note(ctx, "ASKED")\n    time.sleep(60.0)'
    )
    first = cluster.start(queues="default:1", PGWORKERS_ASK_GRACE="60s")
    job = running(cluster, "stubborn")
    wait_for(lambda: first.titles(f"#{job}"))
    cluster.db.execute("SELECT pgworkers.cancel(%s)", (job,))
    wait_for(lambda: [e for e in read(cluster.ledger) if e.kind == "ASKED"], what="it was asked to stop")
    first.signal(signal.SIGSTOP)
    wait_for(lambda: not first.titles(f"#{job}"), timeout=F + T_PROC + BUSY, what="the supervisor fenced it")
    row = cluster.row(job)
    assert (row["state"], row["lease"]) == ("running", 1), "it was_alive_after its lease"
    first.signal(signal.SIGCONT)
    cluster.until(job, "cancelled")


def test_a_worker_with_a_stop_request_finishes_its_job_and_is_replaced(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1")
    job = running(cluster, "gate")
    [old] = master.worker_pids()
    wait_for(
        lambda: "default/0" in pgworkers(cluster, "workers", "list").stdout, what="its host has named it"
    )
    assert pgworkers(cluster, "workers", "stop", "nobody").returncode == 3
    done = pgworkers(cluster, "workers", "stop", "default/0")
    assert (done.returncode, "leaves after its job" in done.stdout) == (0, True), done
    cluster.open_gate()
    cluster.until(job, "succeeded")
    assert cluster.attempts(job) == [], "it was not disturbed"
    [new] = wait_for(lambda: [pid for pid in master.worker_pids() if pid != old], what="a fresh one")
    wait_for(lambda: "idle" in pgworkers(cluster, "workers", "list").stdout, what="it is told of")
    done = pgworkers(cluster, "workers", "stop", "default")
    assert "leaves now" in done.stdout, done
    wait_for(lambda: [pid for pid in master.worker_pids() if pid not in (old, new)], what="another")
