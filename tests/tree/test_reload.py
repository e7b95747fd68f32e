"""Newer code under load: SIGHUP, a broken version, a queue that comes and one that goes."""

from __future__ import annotations

import os
import signal
import time

from support.cluster import Cluster, wait_for
from support.ledger import audit, most_at_once, read

from pgworkers.job.gauges import unknown_tasks
from pgworkers.postgres.statements import run

ADDED = """

@app.task
def newcomer(ctx: Ctx) -> str:
    note(ctx, "START")
    note(ctx, "END")
    return "new code"
"""


def change(cluster: Cluster, text: str) -> None:
    cluster.app.write_text(text)


def test_sighup_replaces_the_code_and_running_jobs_finish_on_the_old(cluster: Cluster) -> None:
    master = cluster.start(queues="default:2")
    [slow] = cluster.enqueue("gate", args={"value": "old"})
    wait_for(lambda: read(cluster.ledger))
    old = read(cluster.ledger)[0].pid
    change(cluster, cluster.app.read_text() + ADDED)
    [job] = cluster.enqueue("newcomer")
    before = {title.rpartition("(")[2] for _, title in master.titles("pgworkers: queue")}
    master.signal(signal.SIGHUP)
    assert cluster.until(job, "succeeded")["result"] == "new code"
    versions = {title.rpartition("(")[2] for _, title in master.titles("pgworkers: queue")}
    assert before < versions, "titles say which code runs: the old one still does, and the new one"
    assert cluster.state(slow) == "running", "the old job was disturbed"
    cluster.open_gate()
    row = cluster.until(slow, "succeeded")
    assert (row["attempt"], row["result"]) == (1, "old")
    wait_for(lambda: old not in master.worker_pids() and len(master.worker_pids()) == 2)
    wait_for(lambda: len(master.supervisor_pids()) == 1)
    assert audit(cluster.db, cluster.ledger, [slow, job]) == []


def test_two_versions_together_run_no_more_jobs_than_the_queue_has_workers(cluster: Cluster) -> None:
    """A queue with one worker is what people use for jobs that must not run at once."""
    master = cluster.start(queues="default:1,other:1")
    [old] = cluster.enqueue("gate", args={"value": "old"})
    wait_for(lambda: read(cluster.ledger))
    jobs = cluster.enqueue("work", 5)
    for number in (1, 2):
        change(cluster, cluster.app.read_text() + f"\nVERSION = {number}\n")
        master.signal(signal.SIGHUP)
        wait_for(lambda n=number: master.log().count("reloaded: version") == n)
        wait_for(lambda: len(master.titles("worker default/0 idle")) == 1)
    others: list[int] = []
    for _ in range(3):  # each is a reason to look, and its end says that the host has looked
        jobs += cluster.enqueue("work")
        others += cluster.enqueue("work", queue="other")
        cluster.until(others[-1], "succeeded")
    assert [cluster.state(job) for job in jobs] == ["ready"] * 8
    cluster.open_gate()
    cluster.until_all_ended()
    assert most_at_once(cluster.ledger, {}, [old, *jobs]) == 1
    assert audit(cluster.db, cluster.ledger, [old, *jobs, *others]) == []


def test_the_end_of_an_old_job_by_a_kill_lets_the_new_version_begin(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1")
    [old] = cluster.enqueue("gate", args={"value": "old"})
    wait_for(lambda: read(cluster.ledger))
    change(cluster, cluster.app.read_text() + ADDED)
    master.signal(signal.SIGHUP)
    wait_for(lambda: "reloaded: version" in master.log())
    [job] = cluster.enqueue("newcomer")
    os.kill(read(cluster.ledger)[0].pid, signal.SIGKILL)
    cluster.until(job, "succeeded")
    cluster.open_gate()
    cluster.until(old, "succeeded")


def test_a_queue_may_allow_both_versions_to_run_side_by_side(cluster: Cluster) -> None:
    text = cluster.app.read_text()
    change(cluster, text + "\napp.queue('side', workers=1, reload_overlap=True)\n")
    master = cluster.start(queues="default:1")
    [old] = cluster.enqueue("gate", args={"value": "old"}, queue="side")
    wait_for(lambda: read(cluster.ledger))
    change(cluster, cluster.app.read_text() + ADDED)
    master.signal(signal.SIGHUP)
    [job] = cluster.enqueue("newcomer", queue="side")
    cluster.until(job, "succeeded")
    assert cluster.state(old) == "running"
    cluster.open_gate()
    cluster.until(old, "succeeded")


def test_a_broken_version_is_refused_and_the_old_one_goes_on(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1")
    workers = master.worker_pids()
    good = cluster.app.read_text()
    change(cluster, good + "\nraise RuntimeError('half a deploy')\n")
    master.signal(signal.SIGHUP)
    wait_for(lambda: "reload refused" in master.log() and "half a deploy" in master.log())
    [job] = cluster.enqueue("work")
    cluster.until(job, "succeeded")
    assert master.worker_pids() == workers
    change(cluster, good + ADDED)
    master.signal(signal.SIGHUP)
    [new] = cluster.enqueue("newcomer")
    cluster.until(new, "succeeded")


def test_a_queue_comes_and_another_goes(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1,images:1")
    text = cluster.app.read_text()
    change(cluster, text.replace('os.environ.get("APP_QUEUES", "default:2")', '"default:1,extra:2"'))
    master.signal(signal.SIGHUP)
    wait_for(lambda: len(master.worker_pids("extra/")) == 2 and not master.worker_pids("images/"))
    [job] = cluster.enqueue("work", queue="extra")
    cluster.until(job, "succeeded")


def test_reloads_under_load_lose_and_repeat_nothing(cluster: Cluster) -> None:
    master = cluster.start(queues="default:3")
    jobs = cluster.enqueue("work", 300, args={"seconds": 0.02})
    for _ in range(4):
        seen = master.log().count("reloaded: version")
        master.signal(signal.SIGHUP)
        wait_for(lambda n=seen: master.log().count("reloaded: version") > n)
    cluster.until_all_ended()
    assert len([e for e in read(cluster.ledger) if e.kind == "START"]) == 300, "a reload repeated a job"
    assert audit(cluster.db, cluster.ledger, jobs) == []
    wait_for(lambda: len(master.worker_pids()) == 3 and len(master.supervisor_pids()) == 1)


def test_a_version_without_a_task_leaves_its_jobs_to_others_and_goes_on(cluster: Cluster) -> None:
    """Claims of the task are on their way, in the buffer and in front of workers when the code that knows it goes."""
    old = cluster.app.read_text()
    change(cluster, old + ADDED)
    master = cluster.start(queues="default:2")
    doomed = cluster.enqueue("newcomer", 2000)
    wait_for(lambda: len(read(cluster.ledger)) > 100)
    change(cluster, old)
    master.signal(signal.SIGHUP)
    wait_for(lambda: "reloaded: version" in master.log())
    [job] = cluster.enqueue("work")
    cluster.until(job, "succeeded")
    doomed += cluster.enqueue("newcomer")
    left = run(cluster.db, "pgworkers", unknown_tasks(["default"]))
    assert [one.task for one in left] == ["newcomer"], "a task that was declared once is not known for ever"
    change(cluster, old + ADDED)
    master.signal(signal.SIGHUP)
    cluster.until_all_ended()
    assert audit(cluster.db, cluster.ledger, [*doomed, job]) == []
    assert len([e for e in read(cluster.ledger) if e.kind == "START"]) == 2002, "none was tried in vain"
    tried = cluster.db.execute("SELECT count(*) FROM pgworkers.history WHERE attempt <> 1").fetchone()
    assert tried == (0,)


def test_a_supervisor_that_dies_while_it_is_being_replaced_is_gone_for_good(cluster: Cluster) -> None:
    """It dies, and its successor begins, before the newer one has booted: neither may stay, nor be waited for."""
    master = cluster.start(queues="default:2")
    [old] = master.supervisor_pids()
    booting = cluster.directory / "booting"
    slow = f"\nimport os, time\nopen({str(booting)!r}, 'a').write(f'{{os.getpid()}}\\n')\ntime.sleep(1.5)\n"
    change(cluster, cluster.app.read_text() + slow)
    master.signal(signal.SIGHUP)
    wait_for(
        lambda: booting.exists() and len(booting.read_text().split()) == 2, what="described, then booting"
    )
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: len(booting.read_text().split()) == 3, what="the successor of the one that died")
    wait_for(lambda: "reloaded: version" in master.log())
    wait_for(lambda: len(master.supervisor_pids()) == 1 and len(master.worker_pids()) == 2)
    [job] = cluster.enqueue("work")
    cluster.until(job, "succeeded")
    master.signal(signal.SIGTERM)
    assert master.wait() == 0


def test_run_reload_watches_the_files(cluster: Cluster) -> None:
    cluster.start("--reload", queues="default:1")
    [job] = cluster.enqueue("newcomer")
    time.sleep(0.1)
    assert cluster.state(job) == "ready"
    change(cluster, cluster.app.read_text() + ADDED)
    cluster.until(job, "succeeded")


def test_signals_that_come_while_it_boots_do_not_end_it(cluster: Cluster) -> None:
    importing = cluster.directory / "importing"
    slow = f"\nimport pathlib, time\npathlib.Path({str(importing)!r}).touch()\ntime.sleep(0.3)\n"
    change(cluster, cluster.app.read_text() + slow)
    master = cluster.start(queues="default:1", wait=False)
    wait_for(importing.exists)
    for signum in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU):
        master.signal(signum)
    [job] = cluster.enqueue("work")
    cluster.until(job, "succeeded")
