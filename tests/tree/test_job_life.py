"""The life of a job through the real command line, real processes and a real Postgres."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import psutil
from psycopg.types.json import Jsonb
from support.cluster import UNHURRIED, Cluster, wait_for
from support.ledger import audit, read

STEPS = """
@app.task
def steps(ctx: Ctx) -> None:
    note(ctx, "START")
    for step in range(ctx.checkpoint.get("step", 0), 100):
        ctx.checkpoint["step"] = step
        while ctx.lease == 1 and step == 20:
            time.sleep(0.01)
    note(ctx, "END")
"""

FORGETFUL = """
@app.task(keep_args=False)
def forgetful(ctx: Ctx, secret: str, progress: bool = False) -> None:
    if progress:
        ctx.progress(1)
    assert secret
"""


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_job_is_enqueued_run_and_finished_with_its_result(cluster: Cluster) -> None:
    cluster.start()
    [job] = cluster.enqueue("work", args={"value": {"a": [1, 2, "ü"]}})
    row = cluster.until(job, "succeeded")
    assert row["result"] == {"a": [1, 2, "ü"]}
    assert row["attempt"] == 1
    assert row["verdict"] == "succeeded"
    assert row["peak_rss"] > 1_000_000
    assert row["cpu_seconds"] >= 0
    assert audit(cluster.db, cluster.ledger, [job]) == []


def test_a_task_may_keep_no_arguments_of_its_successes(cluster: Cluster) -> None:
    """Both ways in which a worker reports an end: the short one of a plain success, and the long one."""
    cluster.declare(FORGETFUL)
    cluster.start()
    [plain] = cluster.enqueue("forgetful", args={"secret": "abc"})
    [talkative] = cluster.enqueue("forgetful", args={"secret": "abc", "progress": True})
    [failed] = cluster.enqueue("forgetful", args={"secret": ""}, max_attempts=1)
    assert cluster.until(plain, "succeeded")["args"] == {}
    assert cluster.until(talkative, "succeeded")["args"] == {}
    assert cluster.until(failed, "dead")["args"] == {"secret": ""}


def test_a_failing_job_is_retried_until_its_attempts_are_spent(cluster: Cluster) -> None:
    cluster.start()
    [job] = cluster.enqueue("fail", args={"text": "no such file"}, max_attempts=2)
    row = cluster.until(job, "dead")
    attempts = cluster.attempts(job)
    assert [a["verdict"] for a in attempts] == ["error", "error"]
    assert "ValueError: no such file" in attempts[0]["error"]
    assert "in fail" in attempts[0]["traceback"]
    assert "no such file" in row["error"]
    assert audit(cluster.db, cluster.ledger, [job]) == []


def test_a_job_that_fails_once_succeeds_on_the_second_attempt(cluster: Cluster) -> None:
    cluster.start()
    [job] = cluster.enqueue("fail", args={"times": 1}, max_attempts=5)
    assert cluster.until(job, "succeeded")["result"] == "attempt 2"


def test_retry_snooze_and_discard_steer_the_job(cluster: Cluster) -> None:
    cluster.start()
    [retried] = cluster.enqueue("steer", args={"how": "retry", "after": 0.1})
    [snoozed] = cluster.enqueue("steer", args={"how": "snooze", "after": 0.1})
    [discarded] = cluster.enqueue("steer", args={"how": "discard"})
    assert cluster.until(retried, "succeeded")["attempt"] == 2
    assert cluster.until(snoozed, "succeeded")["attempt"] == 1, "a snooze costs no attempt"
    row = cluster.until(discarded, "dead")
    assert row["verdict"] == "discarded"
    assert "useless" in row["error"]


def test_async_handlers_run(cluster: Cluster) -> None:
    cluster.start()
    jobs = cluster.enqueue("breathe", 5)
    cluster.until_all_ended()
    assert [cluster.row(job)["result"] for job in jobs] == ["breathed"] * 5


def test_progress_and_checkpoint_reach_the_row_while_the_job_runs(cluster: Cluster) -> None:
    cluster.start()
    [job] = cluster.enqueue("progress", args={"steps": 1000, "pause": 0.02})
    seen = wait_for(lambda: cluster.row(job)["progress"])
    assert seen["total"] == 1000
    assert wait_for(lambda: (cluster.row(job)["checkpoint"] or {}).get("step", 0) > 2)


def test_a_checkpoint_survives_the_death_of_the_worker(cluster: Cluster) -> None:
    cluster.declare(STEPS)
    master = cluster.start(queues="default:1")
    [job] = cluster.enqueue("steps")
    wait_for(lambda: (cluster.row(job)["checkpoint"] or {}).get("step", 0) > 10)
    [worker] = master.worker_pids()
    os.kill(worker, signal.SIGKILL)
    row = cluster.until(job, "succeeded")
    assert row["crashes"] == 1
    starts = [entry for entry in read(cluster.ledger) if entry.kind == "START"]
    assert len(starts) == 2
    assert row["checkpoint"]["step"] == 99


def test_higher_priority_goes_first_then_the_order_of_enqueue(cluster: Cluster) -> None:
    low = cluster.enqueue("work", 3, priority=0)
    high = cluster.enqueue("work", 3, priority=5)
    cluster.start(queues="default:1")
    cluster.until_all_ended()
    order = [entry.job for entry in read(cluster.ledger) if entry.kind == "START"]
    assert order == high + low


def test_an_unknown_task_stays_in_the_queue_for_a_newer_deploy(cluster: Cluster) -> None:
    [unknown] = cluster.enqueue("from_the_future")
    [known] = cluster.enqueue("work")
    cluster.start()
    cluster.until(known, "succeeded")
    assert cluster.state(unknown) == "ready"


def test_a_paused_queue_is_left_alone_until_it_is_resumed(cluster: Cluster) -> None:
    cluster.start()
    cluster.db.execute("UPDATE pgworkers.queue SET paused = true WHERE name = 'default'")
    [job] = cluster.enqueue("work")
    [other] = cluster.enqueue("work")
    time.sleep(0.5)
    assert cluster.state(job) == "ready"
    cluster.db.execute("UPDATE pgworkers.queue SET paused = false WHERE name = 'default'")
    cluster.until(job, "succeeded")
    cluster.until(other, "succeeded")


def test_a_scheduled_job_runs_when_it_is_due_and_not_before(cluster: Cluster) -> None:
    cluster.start()
    with cluster.db.transaction():  # no host can promote it before the commit, however long this takes
        [job] = cluster.enqueue("work", delay="1 second")
        assert cluster.state(job) == "scheduled"
    row = cluster.until(job, "succeeded")
    assert row["finished_at"] >= row["run_at"]


def test_a_job_past_its_timeout_is_stopped_and_retried_with_the_reason(cluster: Cluster) -> None:
    cluster.start()
    [job] = cluster.enqueue("work", args={"seconds": 60}, timeout="0.5 seconds", max_attempts=1)
    row = cluster.until(job, "dead")
    assert row["verdict"] == "timeout"
    [attempt] = cluster.attempts(job)
    assert attempt["rungs"][0]["rung"] == "ask"


def test_cancel_of_a_running_job_becomes_cancelled_only_when_it_is_dead(cluster: Cluster) -> None:
    cluster.start()
    [job] = cluster.enqueue("hang")
    wait_for(lambda: [e for e in read(cluster.ledger) if e.job == job])
    assert cluster.db.execute("SELECT pgworkers.cancel(%s)", (job,)).fetchone() == ("cancelling",)
    pid = read(cluster.ledger)[-1].pid
    cluster.until(job, "cancelled")
    assert not alive(pid)
    [attempt] = cluster.attempts(job)
    assert attempt["verdict"] == "cancelled"
    assert "hang" in attempt["stack"]


def test_a_cooperative_handler_that_returns_after_a_cancel_has_succeeded(cluster: Cluster) -> None:
    cluster.start(PGWORKERS_ASK_GRACE="60s")
    [job] = cluster.enqueue("polite")
    wait_for(lambda: [e for e in read(cluster.ledger) if e.job == job])
    cluster.db.execute("SELECT pgworkers.cancel(%s)", (job,))
    assert cluster.until(job, "succeeded")["result"] == "asked"


def test_cancel_of_a_waiting_job_is_at_once_and_it_never_starts(cluster: Cluster) -> None:
    cluster.start(queues="default:1")
    [busy] = cluster.enqueue("work", args={"gated": True})
    wait_for(lambda: read(cluster.ledger))
    [job] = cluster.enqueue("work")
    assert cluster.db.execute("SELECT pgworkers.cancel(%s)", (job,)).fetchone() == ("cancelled",)
    cluster.open_gate()
    cluster.until(busy, "succeeded")
    assert cluster.state(job) == "cancelled"
    assert not [entry for entry in read(cluster.ledger) if entry.job == job]


def test_unstarted_jobs_are_not_held_while_another_host_has_an_idle_worker(cluster: Cluster) -> None:
    cluster.start(queues="default:1")
    quick = cluster.enqueue("work", 200)
    wait_for(lambda: len(read(cluster.ledger)) > 100)
    cluster.until_all_ended()
    cluster.start(queues="default:1")
    slow = cluster.enqueue("work", 2, args={"gated": True})
    wait_for(lambda: len({e.pid for e in read(cluster.ledger) if e.job in slow and e.kind == "START"}) == 2)
    cluster.open_gate()
    cluster.until_all_ended()
    assert audit(cluster.db, cluster.ledger, quick + slow) == []


def test_two_hosts_start_at_once_on_a_database_without_a_schema(cluster: Cluster) -> None:
    """Twenty migrations at once are a test of the database room."""
    cluster.db.execute("DROP SCHEMA pgworkers CASCADE")
    first = cluster.start(wait=False, queues="default:1")
    second = cluster.start(wait=False, queues="default:1")
    for master in (first, second):
        wait_for(lambda m=master: m.worker_pids())
    [job] = cluster.enqueue("work")
    cluster.until(job, "succeeded")


def test_burst_ends_with_zero_when_the_queue_is_empty(cluster: Cluster) -> None:
    jobs = cluster.enqueue("work", 20) + cluster.enqueue("fail", args={"times": 1}, max_attempts=3)
    master = cluster.start("--burst", wait=False, **UNHURRIED)
    assert master.wait() == 0, master.log()
    assert cluster.counts() == {"succeeded": 21}
    assert audit(cluster.db, cluster.ledger, jobs) == []
    assert cluster.db.execute("SELECT count(*) FROM pgworkers.host").fetchone() == (0,)


def test_a_burst_that_waits_for_a_lost_host_says_so_and_takes_its_job(cluster: Cluster) -> None:
    first = cluster.start(queues="default:1")
    [job] = cluster.enqueue("gate")
    wait_for(lambda: read(cluster.ledger))
    first.signal(signal.SIGKILL)
    first.wait()
    cluster.open_gate()
    second = cluster.start("--burst", wait=False, queues="default:1")
    assert second.wait() == 0, second.log()
    [line] = [line for line in second.log().splitlines() if "waits for" in line]
    assert re.search(
        rf"waits for 1 job of host [0-9a-f]{{8}} \(.*, pid {first.pid}\), which renewed .* ago; if it is gone",
        line,
    )
    assert cluster.state(job) == "succeeded"


def test_a_job_of_an_unknown_task_is_logged_once(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1", PGWORKERS_QUEUE_DEPTH_INTERVAL="0.5s")
    cluster.enqueue("of_another_app", 2)
    told = "2 jobs of a task that no host of the queue has wait in default: of_another_app"
    wait_for(lambda: told in master.log(), what="an idle worker beside a job that waits too long")
    looks = cluster.db.execute("SELECT now()").fetchone()
    wait_for(lambda: cluster.db.execute("SELECT now() - %s > '4 seconds'", looks).fetchone() == (True,))
    assert master.log().count("no host of the queue has") == 1


def test_a_job_is_not_reported_as_recovered_because_the_one_before_it_stalled(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1")
    [frozen] = cluster.enqueue("polite")
    worker = wait_for(lambda: read(cluster.ledger))[0].pid
    os.kill(worker, signal.SIGSTOP)
    wait_for(lambda: f"#{frozen} polite stalled" in master.log())
    wait_for(lambda: any("stalled" in title for _, title in master.titles("pgworkers: queue")))
    [after] = cluster.enqueue("gate")
    cluster.db.execute("SELECT pgworkers.cancel(%s)", (frozen,))
    cluster.until(frozen, "cancelled")
    wait_for(lambda: master.titles(f"#{after}"))
    wait_for(lambda: not any("stalled" in title for _, title in master.titles("pgworkers: queue")))
    cluster.open_gate()
    cluster.until(after, "succeeded")
    assert f"#{after} gate goes on" not in master.log()


def test_hooks_titles_and_four_connections_for_eight_workers(cluster: Cluster) -> None:
    master = cluster.start(queues="default:5,images:3")
    [job] = cluster.enqueue("work", args={"gated": True}, queue="images")
    titles = wait_for(lambda: master.titles(f"#{job}"))
    assert titles[0][1].startswith("pgworkers: worker images/")
    assert "work" in titles[0][1]
    assert len(master.worker_pids("default/")) == 5
    assert len(master.worker_pids("images/")) == 3
    assert len(master.supervisor_pids()) == 2
    wait_for(lambda: "1/3 busy" in str(master.titles("pgworkers: queue images")))
    wait_for(lambda: "1/8 busy" in str(master.titles("pgworkers: master")))
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'pgworkers%'"
    wait_for(
        lambda: cluster.db.execute(query).fetchone()[0] <= 4, what="no more, but for a session that just ends"
    )


def test_meta_and_errors_reach_the_next_attempt(cluster: Cluster) -> None:
    cluster.start()
    [job] = cluster.enqueue(
        "fail", args={"times": 1, "text": "first try"}, meta=Jsonb({"why": "nightly"}), max_attempts=3
    )
    row = cluster.until(job, "succeeded")
    assert row["meta"] == {"why": "nightly"}


def test_a_result_that_cannot_be_kept_is_dead_at_once_and_says_so(cluster: Cluster) -> None:
    cluster.declare("""
@app.task(retries=9)
def returns(ctx: Ctx, what: str) -> Any:
    note(ctx, "START")
    note(ctx, "END")
    return "x" * 100_000 if what == "large" else {"handle": object()}
""")
    cluster.start(queues="default:1")
    for what, said in (("large", "more than 16KB"), ("alien", "objects of type object have no JSON form")):
        [job] = cluster.enqueue("returns", args={"what": what}, max_attempts=10)
        row = cluster.until(job, "dead")
        assert (row["verdict"], row["attempt"]) == ("bad_result", 1)
        command = [sys.executable, "-m", "pgworkers", "--dsn", cluster.dsn, "jobs", "show", str(job)]
        shown = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, cwd="/"
        ).stdout
        assert (
            "dead: bad_result (the handler returned, but its result cannot be kept; it is not tried again)"
            in shown
        )
        assert said in shown
