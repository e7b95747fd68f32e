"""Faults that a newcomer found, each as the report that it was."""

from __future__ import annotations

import os
import signal
import urllib.request
from urllib.error import HTTPError

import psutil
import pytest
from psycopg.types.json import Jsonb
from support.ledger import audit, read
from support.tree import Forest, wait_for

ODD = """

@app.task(retries=0)
def stops(ctx: Ctx) -> int:
    return next(iter([]))


@app.task(retries=0)
def leaks(ctx: Ctx) -> None:
    hoard = bytearray(200_000_000)
    hoard[::4096] = b"x" * len(hoard[::4096])
    raise ValueError("with full hands")
"""


def test_a_handler_that_raises_stop_iteration_has_failed(forest: Forest) -> None:
    forest.app.write_text(forest.app.read_text() + ODD)
    forest.start(queues="default:1")
    [job] = forest.enqueue("stops", max_attempts=1)
    row = forest.until(job, "dead")
    assert "StopIteration" in row["error"]


def test_what_a_failed_handler_held_is_given_back(forest: Forest) -> None:
    forest.app.write_text(forest.app.read_text() + ODD)
    master = forest.start(queues="default:1")
    [job] = forest.enqueue("leaks", max_attempts=1)
    forest.until(job, "dead")
    [pid] = master.worker_pids()
    wait_for(lambda: psutil.Process(pid).memory_info().rss < 150_000_000, what="given back after the report")


@pytest.mark.excused("I5", "its handler cannot be called")
def test_a_job_that_cannot_be_read_is_dead_and_the_queue_goes_on(forest: Forest) -> None:
    """Rows that somebody inserted by hand, past every check of the API."""
    master = forest.start(queues="default:1")
    forest.db.execute("ALTER DOMAIN pgworkers.arguments DROP CONSTRAINT job_args_are_flat")
    deep = "[" * 5000 + "]" * 5000
    columns = "queue, task, args, timeout, meta"
    insert = f"INSERT INTO pgworkers.job ({columns}) VALUES ('default', 'work', %s, %s, %s) RETURNING id"
    poison = [
        forest.db.execute(insert, values).fetchone()[0]
        for values in (
            (f'{{"value": {deep}}}', None, None),
            ("{}", None, f'{{"x": {deep}}}'),
            ("{}", "100000 years", None),
        )
    ]
    [good] = forest.enqueue("work")
    forest.until(good, "succeeded")
    forest.until_all_ended()
    for job, why in zip(poison, ("nested too deeply", "cannot be read"), strict=False):
        state, error = forest.db.execute(
            "SELECT state::text, error FROM pgworkers.jobs WHERE id = %s", (job,)
        ).fetchone()
        assert (state, why in error) == ("dead", True)
    assert len(master.worker_pids()) == 1


def test_a_frozen_supervisor_is_replaced_and_its_jobs_cost_nothing(forest: Forest) -> None:
    master = forest.start(queues="default:1", PGWORKERS_PATIENCE="2s")
    [job] = forest.enqueue("work", args={"seconds": 1.0})
    wait_for(lambda: read(forest.ledger))
    [supervisor] = master.supervisor_pids()
    os.kill(supervisor, signal.SIGSTOP)
    wait_for(lambda: "stopped or starved" in master.log())
    wait_for(lambda: supervisor not in master.supervisor_pids() and master.supervisor_pids())
    row = forest.until(job, "succeeded")
    assert row["crashes"] == 0
    assert audit(forest.db, forest.ledger, [job]) == []


def test_a_burst_takes_what_is_due_and_leaves_what_it_does_not_know(forest: Forest) -> None:
    [due] = forest.enqueue("work", delay="0.01 seconds")
    [unknown] = forest.enqueue("of_another_app")
    master = forest.start("--burst", wait=False, queues="default:1")
    assert master.wait() == 0, master.log()
    assert (forest.state(due), forest.state(unknown)) == ("succeeded", "ready")


def test_an_app_that_starts_threads_is_refused_at_the_start(forest: Forest) -> None:
    threads = (
        "\nimport threading, time\nthreading.Thread(target=time.sleep, args=(600,), name='mine').start()\n"
    )
    forest.app.write_text(forest.app.read_text() + threads)
    master = forest.start(wait=False)
    assert master.wait() == 6, master.log()
    assert "mine" in master.log()
    assert "on_worker_start" in master.log()


@pytest.mark.excused("audit", "the test drops the schema")
def test_check_changes_nothing(forest: Forest) -> None:
    forest.db.execute("DROP SCHEMA pgworkers CASCADE")
    master = forest.start("--check", wait=False)
    assert master.wait() == 0, master.log()
    assert "would migrate" in master.log()
    assert forest.db.execute("SELECT to_regnamespace('pgworkers')").fetchone() == (None,)


def test_health_and_metrics_answer_and_say_why_not(forest: Forest) -> None:
    master = forest.start(queues="default:1", PGWORKERS_METRICS="127.0.0.1:0", PGWORKERS_DRAIN="60s")
    address = wait_for(
        lambda: [line.split()[1] for line in master.log().splitlines() if line.startswith("metrics")]
    )[0]
    base = address.removesuffix("/metrics")
    [job] = forest.enqueue("work", meta=Jsonb({}))
    forest.until(job, "succeeded")

    def scraped() -> str:
        text: str = urllib.request.urlopen(address, timeout=60).read().decode()
        return text

    # the row is there before the master has heard that it is
    one = 'pgworkers_jobs_finished_total{queue="default",task="work",verdict="succeeded"} 1.0'
    wait_for(lambda: one in scraped())
    text = scraped()
    assert 'pgworkers_jobs_finished_total{queue="default",task="fail",verdict="error"} 0.0' in text
    duty = 'pgworkers_duty_seconds_count{duty="look"}'
    wait_for(lambda: duty in scraped())
    assert urllib.request.urlopen(f"{base}/livez", timeout=60).status == 200
    assert urllib.request.urlopen(f"{base}/readyz?verbose", timeout=60).read().startswith(b"ok")
    [slow] = forest.enqueue("gate")
    wait_for(lambda: any(e.job == slow for e in read(forest.ledger)))
    master.signal(signal.SIGTERM)
    wait_for(lambda: "draining" in master.log())
    with pytest.raises(HTTPError) as refused:
        urllib.request.urlopen(f"{base}/readyz?verbose", timeout=60)
    assert refused.value.code == 503
    assert b"draining" in refused.value.read()
