"""Limits, budgets and stop requests on a whole host: each stop works, and its reason is recorded."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from support.cgroups import NoCgroup, memory_cgroup
from support.cluster import Cluster, Master, wait_for
from support.ledger import audit, read
from support.server import OwnServer

from pgworkers import App

TASKS = """

def guilty_eater() -> None:
    food = []
    while True:
        food.append(bytearray(b"x" * (4 << 20)))
        time.sleep(0.01)


@app.task(retries=0)
def eat(ctx: Ctx, after: str = "") -> None:
    note(ctx, "START")
    while after and not os.path.exists(after):
        time.sleep(0.01)
    print("hungry")
    ctx.progress(1, 3, "soup")
    guilty_eater()


async def guilty_swallower() -> None:
    while True:
        try:
            await asyncio.sleep(999)
        except BaseException:
            pass


@app.task
async def swallow(ctx: Ctx) -> None:
    note(ctx, "START")
    await guilty_swallower()


@app.task(retries=0, stall_timeout="0.1s")
def freeze(ctx: Ctx) -> None:
    note(ctx, "START")
    while True:
        os.kill(os.getpid(), signal.SIGSTOP)


@app.task(retries=9, retry_verdicts={"timeout": False, "exit": "10m"})
def fussy(ctx: Ctx, how: str) -> None:
    note(ctx, "START")
    if how == "exit":
        os._exit(3)
    time.sleep(60)
"""


@pytest.fixture
def stage(cluster: Cluster) -> Cluster:
    cluster.app.write_text(cluster.app.read_text() + TASKS)
    return cluster


@contextlib.contextmanager
def standing(master: Master) -> Iterator[None]:
    """The clock of deadlines is the supervisor's: while it stands, none can pass before the test is ready for it."""
    [supervisor] = master.supervisor_pids()
    os.kill(supervisor, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(supervisor, signal.SIGCONT)


def started(cluster: Cluster, job: int) -> int:
    """The pid of the worker in which the job runs."""
    found = wait_for(lambda: [entry for entry in read(cluster.ledger) if entry.job == job])
    return found[-1].pid


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def with_queue(cluster: Cluster, options: str) -> None:
    text = cluster.app.read_text()
    declared = "app.queue(_name, workers=int(_workers))"
    assert declared in text
    cluster.app.write_text(text.replace(declared, f"app.queue(_name, workers=int(_workers), {options})"))


def test_a_job_that_allocates_without_end_costs_its_own_attempt_only(stage: Cluster) -> None:
    # Freeing its memory happens under the ladder; a kill in that moment would replace the traceback by a stack without it.
    stage.start(queues="default:3", PGWORKERS_RAISE_GRACE="30s")
    [eater] = stage.enqueue("eat", memory=160 << 20)
    neighbours = stage.enqueue("work", 20, args={"seconds": 0.1})
    assert stage.until(eater, "dead")["verdict"] == "memory_limit"
    [attempt] = stage.attempts(eater)
    assert "guilty_eater" in (attempt["traceback"] or "") + (attempt["stack"] or "")
    assert attempt["peak_rss"] > 160 << 20
    assert "hungry" in attempt["output"]
    stage.until_all_ended()
    for job in neighbours:
        row = stage.row(job)
        assert (row["state"], row["attempt"], row["crashes"]) == ("succeeded", 1, 0)
    assert audit(stage.db, stage.ledger, [eater, *neighbours]) == []


def test_a_job_killed_by_a_memory_cgroup_says_oom(stage: Cluster) -> None:
    try:
        with memory_cgroup(300 << 20) as cgroup:
            master = stage.start(queues="default:2", cgroup=cgroup)
            [eater] = stage.enqueue("eat")
            neighbours = stage.enqueue("work", 5, args={"seconds": 0.1})
            row = stage.until(eater, "dead")
            assert (row["verdict"], row["crashes"]) == ("oom", 1)
            assert "out of memory" in row["error"]
            [attempt] = stage.attempts(eater)
            assert attempt["exit_status"] == "SIGKILL"
            for job in neighbours:
                assert stage.until(job, "succeeded")["crashes"] == 0
            assert master.process.poll() is None, "the kernel took the master"
            assert master.terminate() == 0
            wait_for(lambda: not master.processes())
    except NoCgroup as reason:
        pytest.skip(str(reason))


def test_a_job_that_always_kills_its_worker_is_dead_with_reason_and_signal(stage: Cluster) -> None:
    stage.start(queues="default:1")
    [poison] = stage.enqueue("die", args={"how": "segv"}, max_crashes=2, max_attempts=100)
    behind = stage.enqueue("work", 10)
    row = stage.until(poison, "dead")
    assert (row["verdict"], row["crashes"]) == ("crash", 2)
    assert "SIGSEGV" in row["error"]
    for attempt in stage.attempts(poison):
        assert attempt["exit_status"] == "SIGSEGV"
        assert "in die" in attempt["stack"]
    for job in behind:
        stage.until(job, "succeeded")
    assert audit(stage.db, stage.ledger, [poison, *behind]) == []


def test_200_cancels_at_random_moments_hit_no_neighbour_and_cost_no_worker(stage: Cluster) -> None:
    """Without a first grace, each cancel of a running job is a signal that may arrive when the next one has begun."""
    master = stage.start(queues="default:2", PGWORKERS_ASK_GRACE="0s", PGWORKERS_RAISE_GRACE="60s")
    workers = master.worker_pids()
    rand = random.Random(3)
    victims: list[int] = []
    neighbours: list[int] = []
    answers: list[str] = []
    for turn in range(
        2000
    ):  # on a busy machine a cancel often comes before its job has begun: until enough have met one
        if turn >= 200 and answers.count("cancelling") > 10:
            break
        while (
            stage.db.execute("SELECT FROM pgworkers.job WHERE state <> 'running' LIMIT 1").fetchone()
            is not None
        ):
            time.sleep(0.001)  # behind a backlog none would begin in time
        [victim, *others] = stage.enqueue("work", 3, args={"seconds": 0.005})
        time.sleep(rand.random() * 0.012)
        answers += stage.db.execute("SELECT pgworkers.cancel(%s)", (victim,)).fetchone()
        victims.append(victim)
        neighbours += others
    stage.until_all_ended()
    for job in neighbours:
        row = stage.row(job)
        # a lease of 2 is a job that waited for a worker too long and was given back unstarted
        assert (row["state"], row["attempt"]) == ("succeeded", 1), "a neighbour was hit"
    entries = [entry for entry in read(stage.ledger) if entry.job in set(neighbours)]
    assert sorted(e.job for e in entries if e.kind == "START") == sorted(neighbours), "a neighbour ran twice"
    assert {entry.job for entry in entries if entry.kind == "END"} == set(neighbours)
    assert {stage.state(job) for job in victims} <= {"cancelled", "succeeded"}
    assert answers.count("cancelling") > 10, f"no cancel met a running job: {answers}"
    assert master.worker_pids() == workers, "a worker was lost without need"
    assert audit(stage.db, stage.ledger, victims + neighbours) == []


def test_a_deadline_holds_while_the_master_is_stopped_and_is_recorded_when_it_goes_on(stage: Cluster) -> None:
    master = stage.start(
        queues="default:1", PGWORKERS_LEASE_DURATION="60s", PGWORKERS_SUPERVISOR_TIMEOUT="60s"
    )
    with standing(master):
        [job] = stage.enqueue("hang", timeout="1 second", max_attempts=1)
        pid = started(stage, job)
        master.signal(signal.SIGSTOP)
    wait_for(lambda: is_gone(pid), what="the supervisor ends it alone")
    assert stage.state(job) == "running", "nobody could have written it"
    master.signal(signal.SIGCONT)
    row = stage.until(job, "dead")
    assert (row["verdict"], row["lease"]) == ("timeout", 1)
    [attempt] = stage.attempts(job)
    assert "in hang" in attempt["stack"]
    assert [rung["rung"] for rung in attempt["rungs"]] == ["ask", "raise", "dump", "kill"]
    assert attempt["duration"] < 60, "it ended at its deadline, not when it was recorded"


def test_deadline_and_memory_hold_while_postgres_is_down(own_cluster: Cluster, own_server: OwnServer) -> None:
    own_cluster.app.write_text(own_cluster.app.read_text() + TASKS)
    own_cluster.start(queues="default:2", PGWORKERS_LEASE_DURATION="60s")
    [late] = own_cluster.enqueue("hang", timeout="2 seconds", max_attempts=1)
    started(own_cluster, late)
    down = own_cluster.directory / "down"
    [eater] = own_cluster.enqueue("eat", args={"after": str(down)}, memory=160 << 20)
    pids = [started(own_cluster, late), started(own_cluster, eater)]
    own_cluster.db.close()
    own_server.crash()
    down.touch()
    wait_for(lambda: is_gone(pids[0]), what="the deadline")
    own_server.start()
    own_cluster.reconnect()
    assert own_cluster.until(late, "dead")["verdict"] == "timeout"
    assert own_cluster.until(eater, "dead")["verdict"] == "memory_limit"


def test_an_async_handler_that_swallows_its_cancellation_is_killed_and_named(stage: Cluster) -> None:
    stage.start(queues="default:1")
    [job] = stage.enqueue("swallow")
    pid = started(stage, job)
    stage.db.execute("SELECT pgworkers.cancel(%s)", (job,))
    stage.until(job, "cancelled")
    assert is_gone(pid)
    [attempt] = stage.attempts(job)
    assert "guilty_swallower" in attempt["stack"]


def test_a_cancel_after_success_changes_nothing_and_says_so(stage: Cluster) -> None:
    stage.start(queues="default:1")
    [job] = stage.enqueue("work", args={"value": 5})
    stage.until(job, "succeeded")
    assert stage.db.execute("SELECT pgworkers.cancel(%s)", (job,)).fetchone() == ("succeeded",)
    app = App(dsn=stage.dsn)
    try:
        assert app.job(job).cancel() == "succeeded"
        assert app.job(job).result(timeout=60) == 5
    finally:
        app.close()


def test_a_cancel_whose_notification_is_lost_comes_with_the_next_renewal(stage: Cluster) -> None:
    stage.start(queues="default:1")
    [job] = stage.enqueue("hang")
    started(stage, job)
    stage.db.execute("UPDATE pgworkers.job SET cancel_at = now() WHERE id = %s", (job,))
    assert stage.until(job, "cancelled")["verdict"] == "cancelled"


def test_the_deadline_of_the_whole_job_ends_it_whatever_its_attempts(stage: Cluster) -> None:
    stage.start(queues="default:1")
    for seconds in (1, 3, 9, 27):  # until one begins in time: before that it ends unstarted
        [job] = stage.enqueue("hang", timeout="10 minutes", deadline=f"{seconds} s", max_attempts=100)
        row = stage.until(job, "dead")
        if row["attempt"]:
            break
    assert (row["verdict"], row["attempt"]) == ("timeout", 1)
    assert row["error"] == "stopped at its deadline for the whole job"


def test_a_worker_without_a_sign_of_life_is_stopped_by_stall_timeout(stage: Cluster) -> None:
    stage.start(queues="default:1")
    [job] = stage.enqueue("freeze")
    row = stage.until(job, "dead")
    assert (row["verdict"], "no sign of life" in row["error"]) == ("timeout", True)
    [attempt] = stage.attempts(job)
    assert "in freeze" in (attempt["stack"] or attempt["traceback"])


def test_the_task_says_what_follows_a_verdict(stage: Cluster) -> None:
    stage.start(queues="default:1")
    [late] = stage.enqueue("fussy", args={"how": "sleep"}, timeout="0.3 seconds")
    row = stage.until(late, "dead")
    assert (row["verdict"], row["attempt"], row["max_attempts"]) == ("timeout", 1, 10)
    [left] = stage.enqueue("fussy", args={"how": "exit"})
    row = stage.until(left, "scheduled")
    waits = stage.db.execute("SELECT run_at - now() > '9 minutes' FROM pgworkers.job WHERE id = %s", (left,))
    assert waits.fetchone() == (True,)


def test_max_jobs_1_is_a_fresh_process_for_every_job(stage: Cluster) -> None:
    with_queue(stage, "max_jobs=1")
    master = stage.start(queues="default:2")
    jobs = stage.enqueue("work", 40)
    stage.until_all_ended()
    starts = [entry for entry in read(stage.ledger) if entry.kind == "START"]
    assert len({entry.pid for entry in starts}) == len(starts) == 40
    assert stage.counts() == {"succeeded": 40}
    assert audit(stage.db, stage.ledger, jobs) == []
    wait_for(lambda: len(master.worker_pids()) == 2)


def test_max_jobs_and_max_rss_replace_workers_between_jobs(stage: Cluster) -> None:
    with_queue(stage, "max_jobs=10, max_rss='1GB'")
    stage.start(queues="default:2")
    jobs = stage.enqueue("work", 60)
    stage.until_all_ended()
    per_worker: dict[int, int] = {}
    for entry in read(stage.ledger):
        per_worker[entry.pid] = per_worker.get(entry.pid, 0) + (entry.kind == "START")
    assert max(per_worker.values()) <= 11, "with a tenth of jitter"
    assert audit(stage.db, stage.ledger, jobs) == []


def test_a_stop_of_many_at_once_leaves_only_the_tree(stage: Cluster) -> None:
    """Every worker hangs in another way; one cancel for all of them."""
    master: Master = stage.start(queues="default:4")
    jobs: list[int] = [
        *stage.enqueue("hang"),
        *stage.enqueue("litter", args={"seconds": 600}),
        *stage.enqueue("swallow"),
        *stage.enqueue("hold_gil", args={"turns": 10**12}),
    ]
    for job in jobs:
        started(stage, job)
    stage.db.execute("SELECT pgworkers.cancel(id) FROM pgworkers.job")
    for job in jobs:
        stage.until(job, "cancelled")
    wait_for(lambda: len(master.worker_pids()) == 4)
    wait_for(lambda: len(master.processes()) == 6, what="master, supervisor and four workers only")


def rungs(attempt: dict[str, Any]) -> list[str]:
    return [rung["rung"] for rung in attempt["rungs"]]


def test_a_stopped_worker_is_continued_for_its_stack_and_killed(stage: Cluster) -> None:
    master = stage.start(queues="default:1", PGWORKERS_SUPERVISOR_TIMEOUT="60s")
    with standing(master):
        [job] = stage.enqueue("hang", timeout="1 second", max_attempts=1)
        pid = started(stage, job)
        os.kill(pid, signal.SIGSTOP)  # not by `jobs suspend`: its deadline does not wait
    stage.until(job, "dead")
    [attempt] = stage.attempts(job)
    assert (attempt["verdict"], rungs(attempt)) == ("timeout", ["ask", "raise", "dump", "kill"])
    assert "in hang" in attempt["stack"], "continued for the dump"
