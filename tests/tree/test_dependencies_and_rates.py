"""Flow control through real masters and workers: order, batches, rates, programs, statistics."""

from __future__ import annotations

import os
import random
import signal
import sys
import textwrap

import psutil
import pytest
from support.cluster import UNHURRIED, Cluster, wait_for
from support.ledger import read

from pgworkers import App

MORE = textwrap.dedent(
    """
    app.include("exec", "echo")

    @app.task(retries=0)
    def limited(ctx: Ctx) -> bool:
        return ctx.rate("service", rate=1, per="1h", burst=5).try_acquire()

    @app.task(retries=0)
    def patient(ctx: Ctx) -> None:
        rate = ctx.rate("slow", rate=1, per="1h", burst=1)
        rate.acquire()
        rate.acquire()

    @app.task
    def last(ctx: Ctx) -> dict[str, int]:
        note(ctx, "LAST")
        counts = app.get_batch(ctx.meta["batch"]).counts()
        return {"succeeded": counts.succeeded, "failed": counts.failed, "live": counts.live}
    """
)


@pytest.fixture
def extended_cluster(cluster: Cluster) -> Cluster:
    cluster.app.write_text(cluster.app.read_text() + MORE)
    return cluster


def kill_a_worker(cluster: Cluster, draw: random.Random) -> bool:
    pids = [pid for master in cluster.masters for pid, _ in master.titles(" #")]
    if not pids:
        return False
    try:
        os.kill(draw.choice(pids), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def test_a_graph_runs_in_order_on_two_hosts_while_workers_are_killed(extended_cluster: Cluster) -> None:
    extended_cluster.start(queues="default:3")
    extended_cluster.start(queues="default:3")
    parents: dict[int, list[int]] = {}
    layer: list[int] = []
    draw = random.Random(5)
    for depth in range(10):
        args = {"seconds": 0.05, "gated": depth == 9}  # the last ones wait until every kill has hit a worker
        made = []
        for _ in range(6):
            after = draw.sample(layer, min(3, len(layer)))
            (job,) = extended_cluster.enqueue("work", args=args, after=after, max_crashes=50, max_attempts=50)
            parents[job] = after
            made.append(job)
        layer = made
    kills = 0
    while kills < 4:
        wait_for(lambda: kill_a_worker(extended_cluster, draw), what="a busy worker")
        kills += 1
    extended_cluster.open_gate()
    assert extended_cluster.until_all_ended(timeout=90) == {"succeeded": 60}
    first: dict[int, int] = {}
    end: dict[int, int] = {}
    for line in read(extended_cluster.ledger):
        if line.kind == "START":
            first.setdefault(line.job, line.at)
        elif line.kind == "END":
            end[line.job] = line.at
    early = [(job, p) for job, after in parents.items() for p in after if first[job] < end[p]]
    assert early == []


@pytest.mark.excused("I2", "its last job writes no ledger")
def test_a_batch_on_two_hosts_is_followed_once(extended_cluster: Cluster, dsn: str) -> None:
    extended_cluster.start(queues="default:3")
    extended_cluster.start(queues="default:3")
    app = App(dsn=dsn)
    app.queue("default")

    @app.task
    def work(seconds: float = 0.0) -> None: ...

    @app.task(retries=0)
    def fail() -> None: ...

    @app.task
    def last() -> dict[str, int]: ...

    jobs = [work.prepare() for _ in range(300)] + [fail.prepare() for _ in range(5)]
    batch = app.batch(jobs, then=last.prepare())
    assert batch.then is not None
    assert batch.then.result(timeout=60) == {"succeeded": 300, "failed": 5, "live": 0}
    assert batch.wait(timeout=60).live == 0
    cancelled = app.batch([work.prepare(30.0) for _ in range(50)], then=last.prepare())
    wait_for(lambda: extended_cluster.counts().get("running", 0) > 0)
    assert cancelled.cancel() == 50
    assert cancelled.wait(timeout=60).failed == 50
    app.close()
    assert [line.kind for line in read(extended_cluster.ledger)].count("LAST") == 1


def test_a_program_dies_with_its_job_and_so_does_what_it_started(extended_cluster: Cluster) -> None:
    extended_cluster.start()
    pids = extended_cluster.directory / "pids"
    program_text = """
        import os, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print("began", flush=True)
        with open(sys.argv[1] + ".new", "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        time.sleep(600)
    """
    code = textwrap.dedent(program_text)
    (job,) = extended_cluster.enqueue("exec", args={"argv": [sys.executable, "-c", code, str(pids)]})
    wait_for(pids.exists, what="the program runs")
    program, child = (int(pid) for pid in pids.read_text().split())
    extended_cluster.db.execute("SELECT pgworkers.cancel(%s)", (job,))
    extended_cluster.until(job, "cancelled")
    wait_for(lambda: not (alive(program) or alive(child)), what="both are gone")
    assert "began" in extended_cluster.attempts(job)[-1]["output"]


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_programs_and_echo_by_the_real_worker(extended_cluster: Cluster) -> None:
    extended_cluster.start()
    (said,) = extended_cluster.enqueue("echo", args={"value": {"a": 1}})
    (ran,) = extended_cluster.enqueue("exec", args={"argv": ["/bin/sh", "-c", "env; echo done"]})
    (failed,) = extended_cluster.enqueue(
        "exec", args={"argv": ["/bin/sh", "-c", "echo why; exit 3"]}, max_attempts=1
    )
    assert extended_cluster.until(said, "succeeded")["result"] == {"a": 1}
    output = extended_cluster.until(ran, "succeeded")["result"]["output"]
    assert output.endswith("done\n")
    assert "PGWORKERS_DSN" not in output
    assert "exit status 3" in extended_cluster.until(failed, "dead")["error"]
    assert "why" in extended_cluster.attempts(failed)[0]["error"]


def test_handlers_on_two_hosts_share_a_rate(extended_cluster: Cluster) -> None:
    extended_cluster.start(queues="default:2")
    extended_cluster.start(queues="default:2")
    jobs = extended_cluster.enqueue("limited", 8)
    extended_cluster.until_all_ended()
    assert sorted(extended_cluster.row(job)["result"] for job in jobs) == [False] * 3 + [True] * 5


def test_waiting_for_a_token_ends_when_the_job_should(extended_cluster: Cluster) -> None:
    extended_cluster.start(PGWORKERS_ASK_GRACE="60s")
    (job,) = extended_cluster.enqueue("patient")
    wait_for(
        lambda: (
            extended_cluster.db.execute("SELECT tokens < 0 FROM pgworkers.rate_bucket").fetchone() == (True,)
        )
    )
    extended_cluster.db.execute("SELECT pgworkers.cancel(%s)", (job,))
    assert extended_cluster.until(job, "cancelled")["verdict"] == "cancelled"
    assert [rung["rung"] for rung in extended_cluster.attempts(job)[-1]["rungs"]] == ["ask"], (
        "no signal was needed"
    )


def test_statistics_are_written_when_the_host_leaves_and_equal_what_happened(
    extended_cluster: Cluster,
) -> None:
    master = extended_cluster.start(**UNHURRIED)
    extended_cluster.enqueue("work", 20)
    extended_cluster.enqueue("fail", 3, max_attempts=1)
    extended_cluster.until_all_ended()
    assert extended_cluster.db.execute("SELECT count(*) FROM pgworkers.minute_statistics").fetchone() == (
        0,
    ), "nothing per job"
    assert master.terminate() == 0
    rows = extended_cluster.db.execute(
        "SELECT task, sum(started), sum(succeeded), sum(unsuccessful), min(duration_p50) > 0, min(wait_p99) > 0"
        " FROM pgworkers.statistics GROUP BY task ORDER BY task"
    ).fetchall()
    assert rows == [("fail", 3, 0, 3, True, True), ("work", 20, 20, 0, True, True)]
    # a row for each minute: there are two of it when one ended in between
    found = extended_cluster.db.execute(
        "SELECT verdicts FROM pgworkers.statistics WHERE task = 'fail'"
    ).fetchall()
    verdicts = [row[0] or {} for row in found]
    assert {name for one in verdicts for name in one} == {"error"}
    assert sum(one.get("error", 0) for one in verdicts) == 3
