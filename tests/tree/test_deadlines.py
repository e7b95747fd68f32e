"""Deadlines that are moved while a job runs: its host is notified, and its supervisor keeps the new one."""

from __future__ import annotations

import subprocess
import sys

from support.cluster import Forest, wait_for
from support.ledger import read


def running(forest: Forest, **options: str) -> int:
    """A job that waits for the gate, and has begun."""
    begun = len(read(forest.ledger)) if forest.ledger.exists() else 0
    [job] = forest.enqueue("gate", **options)
    wait_for(lambda: forest.ledger.exists() and len(read(forest.ledger)) > begun)
    return job


def has_run_for(forest: Forest, job: int, seconds: float) -> bool:
    row = forest.db.execute(
        "SELECT claimed_at < now() - make_interval(secs => %s) FROM pgworkers.job WHERE id = %s",
        (seconds, job),
    ).fetchone()
    assert row is not None, f"the job has ended: {forest.row(job)}"
    return bool(row[0])


def test_a_job_that_gets_more_time_outlives_its_timeout(forest: Forest) -> None:
    master = forest.start(queues="default:1")
    job = running(forest, timeout="3 seconds")
    assert forest.db.execute("SELECT pgworkers.set_deadline(%s, '1 hour')", (job,)).fetchone() == ("running",)
    wait_for(lambda: "deadline moved" in master.log())
    wait_for(lambda: has_run_for(forest, job, 6.0), what="it has run for six seconds")
    assert forest.state(job) == "running"
    forest.open_gate()
    forest.until(job, "succeeded")


def test_a_deadline_of_now_stops_it_without_waiting_for_a_renewal(forest: Forest) -> None:
    forest.start(queues="default:1", PGWORKERS_RENEW_INTERVAL="600s", PGWORKERS_LEASE_DURATION="3600s")
    job = running(forest, deadline="1 hour")
    command = [sys.executable, "-m", "pgworkers", "--dsn", forest.dsn, "jobs", "deadline", str(job), "now"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    row = forest.until(job, "dead")
    assert (row["verdict"], row["error"]) == ("timeout", "stopped at its deadline for the whole job")


def test_a_plain_update_is_found_by_the_next_renewal(forest: Forest) -> None:
    forest.start(queues="default:1")
    job = running(forest)
    forest.db.execute("UPDATE pgworkers.job SET deadline_at = now() + interval '0.5 s' WHERE id = %s", (job,))
    assert forest.until(job, "dead")["verdict"] == "timeout"


def test_a_deadline_that_nobody_moved_is_left_alone(forest: Forest) -> None:
    master = forest.start(queues="default:1")
    job = running(forest, deadline="1 hour")
    wait_for(lambda: has_run_for(forest, job, 2.0), what="it was renewed a few times")
    forest.open_gate()
    forest.until(job, "succeeded")
    assert "deadline moved" not in master.log()
