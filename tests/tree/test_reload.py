"""Newer code under load: SIGHUP, a broken version, a queue that comes and one that goes."""

from __future__ import annotations

import os
import signal
import time

from support.cluster import Forest, wait_for
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


def change(forest: Forest, text: str) -> None:
    forest.app.write_text(text)


def test_sighup_replaces_the_code_and_running_jobs_finish_on_the_old(forest: Forest) -> None:
    master = forest.start(queues="default:2")
    [slow] = forest.enqueue("gate", args={"value": "old"})
    wait_for(lambda: read(forest.ledger))
    old = read(forest.ledger)[0].pid
    change(forest, forest.app.read_text() + ADDED)
    [job] = forest.enqueue("newcomer")
    before = {title.rpartition("(")[2] for _, title in master.titles("pgworkers: queue")}
    master.signal(signal.SIGHUP)
    assert forest.until(job, "succeeded")["result"] == "new code"
    versions = {title.rpartition("(")[2] for _, title in master.titles("pgworkers: queue")}
    assert before < versions, "titles say which code runs: the old one still does, and the new one"
    assert forest.state(slow) == "running", "the old job was disturbed"
    forest.open_gate()
    row = forest.until(slow, "succeeded")
    assert (row["attempt"], row["result"]) == (1, "old")
    wait_for(lambda: old not in master.worker_pids() and len(master.worker_pids()) == 2)
    wait_for(lambda: len(master.supervisor_pids()) == 1)
    assert audit(forest.db, forest.ledger, [slow, job]) == []


def test_two_versions_together_run_no_more_jobs_than_the_queue_has_workers(forest: Forest) -> None:
    """A queue with one worker is what people use for jobs that must not run at once."""
    master = forest.start(queues="default:1,other:1")
    [old] = forest.enqueue("gate", args={"value": "old"})
    wait_for(lambda: read(forest.ledger))
    jobs = forest.enqueue("work", 5)
    for number in (1, 2):
        change(forest, forest.app.read_text() + f"\nVERSION = {number}\n")
        master.signal(signal.SIGHUP)
        wait_for(lambda n=number: master.log().count("reloaded: version") == n)
        wait_for(lambda: len(master.titles("worker default/0 idle")) == 1)
    others: list[int] = []
    for _ in range(3):  # each is a reason to look, and its end says that the host has looked
        jobs += forest.enqueue("work")
        others += forest.enqueue("work", queue="other")
        forest.until(others[-1], "succeeded")
    assert [forest.state(job) for job in jobs] == ["ready"] * 8
    forest.open_gate()
    forest.until_all_ended()
    assert most_at_once(forest.ledger, {}, [old, *jobs]) == 1
    assert audit(forest.db, forest.ledger, [old, *jobs, *others]) == []


def test_the_end_of_an_old_job_by_a_kill_lets_the_new_version_begin(forest: Forest) -> None:
    master = forest.start(queues="default:1")
    [old] = forest.enqueue("gate", args={"value": "old"})
    wait_for(lambda: read(forest.ledger))
    change(forest, forest.app.read_text() + ADDED)
    master.signal(signal.SIGHUP)
    wait_for(lambda: "reloaded: version" in master.log())
    [job] = forest.enqueue("newcomer")
    os.kill(read(forest.ledger)[0].pid, signal.SIGKILL)
    forest.until(job, "succeeded")
    forest.open_gate()
    forest.until(old, "succeeded")


def test_a_queue_may_allow_both_versions_to_run_side_by_side(forest: Forest) -> None:
    text = forest.app.read_text()
    change(forest, text + "\napp.queue('side', workers=1, reload_overlap=True)\n")
    master = forest.start(queues="default:1")
    [old] = forest.enqueue("gate", args={"value": "old"}, queue="side")
    wait_for(lambda: read(forest.ledger))
    change(forest, forest.app.read_text() + ADDED)
    master.signal(signal.SIGHUP)
    [job] = forest.enqueue("newcomer", queue="side")
    forest.until(job, "succeeded")
    assert forest.state(old) == "running"
    forest.open_gate()
    forest.until(old, "succeeded")


def test_a_broken_version_is_refused_and_the_old_one_goes_on(forest: Forest) -> None:
    master = forest.start(queues="default:1")
    workers = master.worker_pids()
    good = forest.app.read_text()
    change(forest, good + "\nraise RuntimeError('half a deploy')\n")
    master.signal(signal.SIGHUP)
    wait_for(lambda: "reload refused" in master.log() and "half a deploy" in master.log())
    [job] = forest.enqueue("work")
    forest.until(job, "succeeded")
    assert master.worker_pids() == workers
    change(forest, good + ADDED)
    master.signal(signal.SIGHUP)
    [new] = forest.enqueue("newcomer")
    forest.until(new, "succeeded")


def test_a_queue_comes_and_another_goes(forest: Forest) -> None:
    master = forest.start(queues="default:1,images:1")
    text = forest.app.read_text()
    change(forest, text.replace('os.environ.get("ZOO_QUEUES", "default:2")', '"default:1,extra:2"'))
    master.signal(signal.SIGHUP)
    wait_for(lambda: len(master.worker_pids("extra/")) == 2 and not master.worker_pids("images/"))
    [job] = forest.enqueue("work", queue="extra")
    forest.until(job, "succeeded")


def test_reloads_under_load_lose_and_repeat_nothing(forest: Forest) -> None:
    master = forest.start(queues="default:3")
    jobs = forest.enqueue("work", 300, args={"seconds": 0.02})
    for _ in range(4):
        seen = master.log().count("reloaded: version")
        master.signal(signal.SIGHUP)
        wait_for(lambda n=seen: master.log().count("reloaded: version") > n)
    forest.until_all_ended()
    assert len([e for e in read(forest.ledger) if e.kind == "START"]) == 300, "a reload repeated a job"
    assert audit(forest.db, forest.ledger, jobs) == []
    wait_for(lambda: len(master.worker_pids()) == 3 and len(master.supervisor_pids()) == 1)


def test_a_version_without_a_task_leaves_its_jobs_to_others_and_goes_on(forest: Forest) -> None:
    """Claims of the task are on their way, in the buffer and in front of workers when the code that knows it goes."""
    old = forest.app.read_text()
    change(forest, old + ADDED)
    master = forest.start(queues="default:2")
    doomed = forest.enqueue("newcomer", 2000)
    wait_for(lambda: len(read(forest.ledger)) > 100)
    change(forest, old)
    master.signal(signal.SIGHUP)
    wait_for(lambda: "reloaded: version" in master.log())
    [job] = forest.enqueue("work")
    forest.until(job, "succeeded")
    doomed += forest.enqueue("newcomer")
    left = run(forest.db, "pgworkers", unknown_tasks(["default"]))
    assert [one.task for one in left] == ["newcomer"], "a task that was declared once is not known for ever"
    change(forest, old + ADDED)
    master.signal(signal.SIGHUP)
    forest.until_all_ended()
    assert audit(forest.db, forest.ledger, [*doomed, job]) == []
    assert len([e for e in read(forest.ledger) if e.kind == "START"]) == 2002, "none was tried in vain"
    tried = forest.db.execute("SELECT count(*) FROM pgworkers.history WHERE attempt <> 1").fetchone()
    assert tried == (0,)


def test_a_supervisor_that_dies_while_it_is_being_replaced_is_gone_for_good(forest: Forest) -> None:
    """It dies, and its successor begins, before the newer one has booted: neither may stay, nor be waited for."""
    master = forest.start(queues="default:2")
    [old] = master.supervisor_pids()
    booting = forest.directory / "booting"
    slow = f"\nimport os, time\nopen({str(booting)!r}, 'a').write(f'{{os.getpid()}}\\n')\ntime.sleep(1.5)\n"
    change(forest, forest.app.read_text() + slow)
    master.signal(signal.SIGHUP)
    wait_for(
        lambda: booting.exists() and len(booting.read_text().split()) == 2, what="described, then booting"
    )
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: len(booting.read_text().split()) == 3, what="the successor of the one that died")
    wait_for(lambda: "reloaded: version" in master.log())
    wait_for(lambda: len(master.supervisor_pids()) == 1 and len(master.worker_pids()) == 2)
    [job] = forest.enqueue("work")
    forest.until(job, "succeeded")
    master.signal(signal.SIGTERM)
    assert master.wait() == 0


def test_run_reload_watches_the_files(forest: Forest) -> None:
    forest.start("--reload", queues="default:1")
    [job] = forest.enqueue("newcomer")
    time.sleep(0.1)
    assert forest.state(job) == "ready"
    change(forest, forest.app.read_text() + ADDED)
    forest.until(job, "succeeded")


def test_signals_that_come_while_it_boots_do_not_end_it(forest: Forest) -> None:
    importing = forest.directory / "importing"
    slow = f"\nimport pathlib, time\npathlib.Path({str(importing)!r}).touch()\ntime.sleep(0.3)\n"
    change(forest, forest.app.read_text() + slow)
    master = forest.start(queues="default:1", wait=False)
    wait_for(importing.exists)
    for signum in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU):
        master.signal(signum)
    [job] = forest.enqueue("work")
    forest.until(job, "succeeded")
