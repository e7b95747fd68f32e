"""Deadlines that are moved while a job runs: its host is notified, and its supervisor keeps the new one."""

from __future__ import annotations

import subprocess
import sys

from support.cluster import Cluster, wait_for
from support.ledger import read


def running(cluster: Cluster, **options: str) -> int:
    """A job that waits for the gate, and has begun."""
    begun = len(read(cluster.ledger)) if cluster.ledger.exists() else 0
    [job] = cluster.enqueue("gate", **options)
    wait_for(lambda: cluster.ledger.exists() and len(read(cluster.ledger)) > begun)
    return job


def has_run_for(cluster: Cluster, job: int, seconds: float) -> bool:
    row = cluster.db.execute(
        "SELECT claimed_at < now() - make_interval(secs => %s) FROM pgworkers.job WHERE id = %s",
        (seconds, job),
    ).fetchone()
    assert row is not None, f"the job has ended: {cluster.row(job)}"
    return bool(row[0])


def test_a_job_that_gets_more_time_outlives_its_timeout(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1")
    job = running(cluster, timeout="3 seconds")
    assert cluster.db.execute("SELECT pgworkers.set_deadline(%s, '1 hour')", (job,)).fetchone() == (
        "running",
    )
    wait_for(lambda: "deadline moved" in master.log())
    wait_for(lambda: has_run_for(cluster, job, 6.0), what="it has run for six seconds")
    assert cluster.state(job) == "running"
    cluster.open_gate()
    cluster.until(job, "succeeded")


def test_a_deadline_of_now_stops_it_without_waiting_for_a_renewal(cluster: Cluster) -> None:
    cluster.start(queues="default:1", PGWORKERS_RENEW_INTERVAL="600s", PGWORKERS_LEASE_DURATION="3600s")
    job = running(cluster, deadline="1 hour")
    command = [sys.executable, "-m", "pgworkers", "--dsn", cluster.dsn, "jobs", "deadline", str(job), "now"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    row = cluster.until(job, "dead")
    assert (row["verdict"], row["error"]) == ("timeout", "stopped at its deadline for the whole job")


def test_a_plain_update_is_found_by_the_next_renewal(cluster: Cluster) -> None:
    cluster.start(queues="default:1")
    job = running(cluster)
    cluster.db.execute(
        "UPDATE pgworkers.job SET deadline_at = now() + interval '0.5 s' WHERE id = %s", (job,)
    )
    assert cluster.until(job, "dead")["verdict"] == "timeout"


def test_a_deadline_that_was_not_moved_is_kept(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1")
    job = running(cluster, deadline="1 hour")
    wait_for(lambda: has_run_for(cluster, job, 2.0), what="it was renewed a few times")
    cluster.open_gate()
    cluster.until(job, "succeeded")
    assert "deadline moved" not in master.log()
