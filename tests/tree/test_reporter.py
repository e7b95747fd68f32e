"""`on_job_end` hooks: they get every end, also of killed workers and lost hosts, and delay no job whatever they do."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import psutil
import pytest
from support.cluster import Cluster, Master, wait_for

HOOKS = """
import json as _json
from pgworkers import JobEnd

def _append(**fields):
    fd = os.open(os.environ["PGWORKERS_LEDGER"] + ".ends", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(fd, (_json.dumps(fields) + "\\n").encode())
    os.close(fd)

@app.on_reporter_start
def prepare():
    _append(started=os.getpid())

@app.on_job_end(verdicts=os.environ.get("VERDICTS", "failed").split(","))
async def ended(end: JobEnd):
    mode = (end.meta or {}).get("mode")
    if mode == "hang":
        time.sleep(600)
    if mode == "die":
        os.kill(os.getpid(), 9)
    if mode == "raise":
        raise ValueError("the hook is broken")
    _append(
        job=end.job, verdict=end.verdict, task=end.task, state=end.state, attempt=end.attempt, error=end.error,
        traceback=end.traceback, stack=end.stack, args=end.args, pid=os.getpid(), final=end.is_final, exit=end.exit_status,
        most=end.max_attempts, worker=end.worker, mode=mode, retry_in=end.retry_in,
    )

@app.task(retries=0)
def broken(word: str = ""):
    raise ValueError(word)

@app.task(retries=0, secret=["token"])
def private(token: str):
    raise ValueError("no")

@app.task(retries=0)
def fine(ctx: Ctx):
    note(ctx, "START")
    note(ctx, "END")

@app.task(timeout=0.3, retries=0)
def stuck():
    sum(__import__("itertools").repeat(1))

@app.task(retries=0)
def suicide():
    os.kill(os.getpid(), 9)

@app.task(retries=0)
def leave():
    os._exit(3)
"""
QUICK = {"PGWORKERS_REPORT_TIMEOUT": "1s", "PGWORKERS_RESTART_PERIOD": "1s"}


def ends(cluster: Cluster) -> list[dict[str, Any]]:
    path = cluster.directory / "ledger.ends"
    complete = path.read_text().rpartition("\n")[0] if path.exists() else ""
    lines = complete.splitlines()
    return [end for end in map(json.loads, lines) if "job" in end]


def end_of(cluster: Cluster, job: int) -> dict[str, Any]:
    return wait_for(
        lambda: next((end for end in ends(cluster) if end["job"] == job), None), what=f"the end of job {job}"
    )


def reporter(master: Master) -> int:
    def ready() -> int | None:
        return next(
            (pid for pid, title in master.titles("pgworkers: reporter") if "booting" not in title), None
        )

    return wait_for(ready, what="the reporter is ready")


def start(cluster: Cluster, **environ: str) -> Master:
    if "def ended" not in cluster.app.read_text():
        cluster.declare(HOOKS)
    master = cluster.start(**QUICK, **environ)
    reporter(master)
    return master


@pytest.mark.excused("audit", "jobs of this test kill their own worker")
def test_every_way_to_fail_is_reported(cluster: Cluster) -> None:
    master = start(cluster)
    (error,) = cluster.enqueue("broken", args={"word": "no such file"}, meta='{"why": "nightly"}')
    (timeout,) = cluster.enqueue("stuck")
    (crash,) = cluster.enqueue("suicide")
    (left,) = cluster.enqueue("leave")
    (private,) = cluster.enqueue("private", args={"token": "s3cret-value"})
    (good,) = cluster.enqueue("fine")
    found = end_of(cluster, error)
    assert (found["verdict"], found["state"], found["final"]) == ("error", "dead", True)
    assert found["error"] == "ValueError: no such file"
    assert "raise ValueError(word)" in found["traceback"]
    assert found["args"] == {"word": "no such file"}
    assert found["worker"].startswith("default/")
    assert found["pid"] == reporter(master), "it ran in the reporter"
    found = end_of(cluster, timeout)
    assert (found["verdict"], found["exit"]) == ("timeout", "SIGKILL")
    assert "in stuck" in found["stack"], "the dump of the kill"
    assert end_of(cluster, crash)["verdict"] == "crash"
    assert (end_of(cluster, left)["verdict"], end_of(cluster, left)["exit"]) == ("exit", "exit 3")
    assert end_of(cluster, private)["args"] == {"token": "[secret]"}
    cluster.until(good, "succeeded")
    assert good not in {end["job"] for end in ends(cluster)}, "a verdict that nobody asked for"
    assert len(ends(cluster)) == 5, "each end once"
    assert master.terminate() == 0
    assert not master.processes(), "the reporter ends with the tree"


def test_the_ends_of_lost_hosts_are_reported_by_the_host_that_rescues_them(cluster: Cluster) -> None:
    first = start(cluster, PGWORKERS_LEASE_DURATION="5s")
    (job,) = cluster.enqueue("gate", max_attempts=1)
    wait_for(lambda: cluster.ledger.exists() and cluster.ledger.read_text(), what="the job runs")
    second = start(cluster, PGWORKERS_LEASE_DURATION="5s")
    first.process.kill()
    first.wait()
    found = end_of(cluster, job)
    assert (found["verdict"], found["state"], found["most"]) == ("host_lost", "dead", 1)
    assert found["error"].startswith("host lost: no heartbeat for")
    assert found["pid"] == reporter(second)


@pytest.mark.parametrize("mode", ["hang", "die", "raise"])
def test_a_hook_that_misbehaves_costs_its_own_report(cluster: Cluster, mode: str) -> None:
    master = start(cluster)
    first = reporter(master)
    (bad,) = cluster.enqueue("broken", meta=json.dumps({"mode": mode}))
    cluster.until(bad, "dead")
    later = cluster.enqueue("broken", 5)
    for job in later:
        assert cluster.until(job, "dead")
        assert end_of(cluster, job)["attempt"] == 1
    assert bad not in {end["job"] for end in ends(cluster)}
    assert len(ends(cluster)) == len(later)
    if mode == "raise":
        assert reporter(master) == first
        assert "the hook ended failed for job" in master.log()
        return
    assert reporter(master) != first
    assert "which runs on_job_end hooks, ended: SIGKILL" in master.log()
    assert "1 end of attempts not reported" in master.log()
    if mode == "hang":
        assert "a hook took too long (report_timeout)" in master.log()


def test_a_stopped_reporter_delays_no_job_and_is_replaced(cluster: Cluster) -> None:
    master = start(cluster, VERDICTS="succeeded")
    first = reporter(master)
    psutil.Process(first).suspend()
    jobs = cluster.enqueue("fine", 3000)
    assert cluster.until_all_ended() == {"succeeded": 3000}
    assert reporter(master) == first or not psutil.pid_exists(first)
    wait_for(lambda: "not reported to on_job_end hooks" in master.log(), what="what did not fit is counted")
    wait_for(lambda: reporter(master) != first, what="a new reporter")
    wait_for(lambda: len(ends(cluster)) > 1500, what="what did fit is reported")
    found = [end["job"] for end in ends(cluster)]
    assert len(set(found)) == len(found) < len(jobs), "each at most once"


def test_a_killed_reporter_comes_back_and_a_drain_waits_for_it_only_a_while(cluster: Cluster) -> None:
    master = start(cluster)
    os.kill(reporter(master), signal.SIGKILL)
    (job,) = cluster.enqueue("broken")
    assert end_of(cluster, job)["verdict"] == "error"
    (job,) = cluster.enqueue("broken", meta='{"mode": "hang"}')
    cluster.until(job, "dead")
    assert master.terminate() == 0
    assert not master.processes()


def test_the_death_of_a_supervisor_spares_the_reporter(cluster: Cluster) -> None:
    master = start(cluster)
    first = reporter(master)
    (supervisor,) = master.supervisor_pids("default")
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: master.supervisor_pids("default") not in ([], [supervisor]), what="the next supervisor")
    (job,) = cluster.enqueue("broken")
    assert end_of(cluster, job)["pid"] == first


def test_an_app_without_hooks_has_no_reporter_and_a_reload_brings_one(cluster: Cluster) -> None:
    master = cluster.start(**QUICK)
    (job,) = cluster.enqueue("fail", max_attempts=1)
    cluster.until(job, "dead")
    assert not master.titles("pgworkers: reporter")
    cluster.declare(HOOKS)
    master.signal(signal.SIGHUP)
    reporter(master)
    wait_for(lambda: "reloaded: version" in master.log(), what="the reload")
    (job,) = cluster.enqueue("broken")
    assert end_of(cluster, job)["verdict"] == "error"
    first = reporter(master)
    cluster.declare("CHANGED = True")
    master.signal(signal.SIGHUP)
    wait_for(
        lambda: master.titles("pgworkers: reporter") and reporter(master) != first, what="a new reporter"
    )
    wait_for(lambda: not psutil.pid_exists(first), what="the old one is gone")


def test_hostile_texts_reach_the_hook(cluster: Cluster) -> None:
    start(cluster)
    (job,) = cluster.enqueue("broken", args={"word": "\ud83d\ude00 \u2028 \\u0000 " + "x" * 100_000})
    assert end_of(cluster, job)["error"].startswith("ValueError: ")


def test_a_reporter_that_cannot_start_is_named_and_costs_no_job(cluster: Cluster) -> None:
    cluster.declare(
        HOOKS
        + """
@app.on_reporter_start
def connect():
    raise ConnectionRefusedError("the chat is away")
"""
    )
    master = cluster.start(**QUICK)
    wait_for(
        lambda: "ended: exit 6: ConnectionRefusedError: the chat is away" in master.log(),
        what="the log names it",
    )
    (job,) = cluster.enqueue("broken")
    cluster.until(job, "dead")
    assert master.terminate() == 0
    assert "1 end of attempts not reported" in master.log()
