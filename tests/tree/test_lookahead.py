"""Orders that wait in front of a worker are reclaimed when they should, and go back to their queue when it dies."""

from __future__ import annotations

import contextlib
import os
import random
import signal

from support.cluster import Cluster, wait_for
from support.ledger import audit, read


def warm(cluster: Cluster) -> list[int]:
    """The master learns that `work` is short: from now on it waits in front of workers."""
    jobs = cluster.enqueue("work", 200)
    cluster.until_all_ended()
    return jobs


def starts(cluster: Cluster) -> dict[int, int]:
    """job -> pid of the worker that began it."""
    return {entry.job: entry.pid for entry in read(cluster.ledger) if entry.kind == "START"}


def test_nothing_waits_behind_a_job_that_runs_long(cluster: Cluster) -> None:
    """One job ends only when all others have: a job that had to wait behind it would wait for ever."""
    cluster.start()
    jobs = warm(cluster)
    for _ in range(3):
        long = cluster.enqueue("work", args={"gated": True})
        short = cluster.enqueue("work", 60)
        wait_for(lambda short=short: all(cluster.state(job) == "succeeded" for job in short))
        assert cluster.state(long[0]) == "running"
        cluster.open_gate()
        cluster.until(long[0], "succeeded")
        os.unlink(f"{cluster.ledger}.open")
        jobs += long + short
    assert audit(cluster.db, cluster.ledger, jobs) == []


def test_what_waits_in_front_of_a_stopped_worker_moves_on(cluster: Cluster) -> None:
    master = cluster.start()
    jobs = warm(cluster)
    jobs += (busy := cluster.enqueue("work", 400, args={"seconds": 0.001}))
    wait_for(lambda: set(busy) & set(starts(cluster)))
    stopped = master.worker_pids()[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        # it may hold the one that it had begun, and that alone
        wait_for(lambda: sum(cluster.state(job) != "succeeded" for job in busy) <= 1)
    finally:
        os.kill(stopped, signal.SIGCONT)
    cluster.until_all_ended()
    again = cluster.enqueue("work", 100)
    wait_for(lambda: all(cluster.state(job) == "succeeded" for job in again))
    assert audit(cluster.db, cluster.ledger, jobs + again) == []
    assert not cluster.db.execute(
        "SELECT id FROM pgworkers.history WHERE attempt > 1 OR crashes > 0"
    ).fetchall()


def test_a_job_that_waits_is_cancelled_without_being_begun(cluster: Cluster) -> None:
    cluster.start(queues="default:1")
    jobs = warm(cluster)
    long = cluster.enqueue("work", args={"gated": True})
    short = cluster.enqueue("work", 10)
    wait_for(lambda: long[0] in starts(cluster))
    unwanted = short[::2]
    cluster.db.execute("SELECT pgworkers.cancel(id) FROM unnest(%s::bigint[]) AS id", (unwanted,))
    for job in unwanted:
        cluster.until(job, "cancelled")
    cluster.open_gate()
    cluster.until_all_ended()
    assert not set(unwanted) & set(starts(cluster))
    assert all(cluster.state(job) == "succeeded" for job in short if job not in unwanted)
    assert cluster.state(long[0]) == "succeeded", "its neighbours' cancels are not its own"
    assert audit(cluster.db, cluster.ledger, jobs + long + short) == []


def test_kills_at_full_depth_charge_only_what_had_begun(cluster: Cluster) -> None:
    master = cluster.start()
    jobs = warm(cluster)
    rand = random.Random(7)

    def charged() -> list[tuple[int, int]]:
        found = cluster.db.execute(
            "SELECT job_id, lease FROM pgworkers.attempt WHERE verdict = 'crash'"
        ).fetchall()
        return [(job, lease) for job, lease in found]

    def begun() -> set[tuple[int, int]]:
        return {(entry.job, entry.lease) for entry in read(cluster.ledger) if entry.kind == "START"}

    kills = 0
    # a kill may find that all is done already, or come between the beginning and the handler's first line
    while kills < 8 or (not set(charged()) & begun() and kills < 60):
        kills += 1
        jobs += (more := cluster.enqueue("work", 300, args={"seconds": 0.0005}))
        wait_for(lambda more=more: set(more) & set(starts(cluster)))
        workers = wait_for(master.worker_pids)
        with contextlib.suppress(ProcessLookupError):  # the last one that was killed is just being reaped
            os.kill(rand.choice(workers), signal.SIGKILL)
    cluster.until_all_ended()
    assert audit(cluster.db, cluster.ledger, jobs) == []
    assert charged(), "no kill met a running job"
    assert len(charged()) <= kills, "a kill costs one job"
    assert len(set(charged()) - begun()) < len(charged()), "jobs were charged that had not begun"


def test_batch_false_commits_each_end_before_the_next_start(cluster: Cluster) -> None:
    cluster.app.write_text(cluster.app.read_text() + "\napp.queue('careful', workers=1, lookahead=False)\n")
    cluster.start(queues="default:1")
    wait_for(lambda: "queue careful" in str(cluster.masters[0].titles("pgworkers: queue careful")))
    jobs = cluster.enqueue("work", 30, queue="careful")
    cluster.until_all_ended()
    began = {e.job: e.at for e in read(cluster.ledger) if e.kind == "START"}
    rows = cluster.db.execute(
        "SELECT id, row_number() OVER (ORDER BY finished_at, id) FROM pgworkers.history WHERE id = ANY(%s)",
        (jobs,),
    ).fetchall()
    finishes = cluster.db.execute(
        "SELECT count(DISTINCT finished_at) FROM pgworkers.history WHERE id = ANY(%s)", (jobs,)
    ).fetchone()
    assert finishes == (30,), "each in a transaction of its own"
    assert [job for job, _ in sorted(rows, key=lambda row: row[1])] == sorted(
        jobs, key=lambda job: began[job]
    )


def test_jobs_that_no_worker_here_can_begin_are_left_alone(cluster: Cluster) -> None:
    """Parents that wait for children of their own queue hold every worker. The host must not take the children again
    and again: each time costs two writes and a lease, and they show as claimed although nothing runs."""
    cluster.start(queues="default:1")
    jobs = warm(cluster)
    [parent] = cluster.enqueue("gate")
    wait_for(lambda: parent in starts(cluster))
    children = cluster.enqueue("work", 5)

    def renewed() -> object:
        return cluster.db.execute("SELECT renewed_at FROM pgworkers.host").fetchone()

    before = renewed()
    for _ in range(10):  # each is half a second of the host's life, on its own clock
        wait_for(lambda before=before: renewed() != before)
        before = renewed()
    rows = cluster.db.execute(
        "SELECT state::text, lease FROM pgworkers.job WHERE id = ANY (%s)", [children]
    ).fetchall()
    assert {state for state, _ in rows} == {"ready"}
    assert max(lease for _, lease in rows) <= 1, "they are claimed and given back again and again"
    cluster.open_gate()
    cluster.until_all_ended()
    assert audit(cluster.db, cluster.ledger, [*jobs, parent, *children]) == []


def test_a_job_that_runs_is_soon_shown_with_its_worker(cluster: Cluster) -> None:
    """Also where renewals are rare: until then it would pass for one that waits in its host's buffer."""
    cluster.start(queues="default:1", PGWORKERS_RENEW_INTERVAL="10m", PGWORKERS_LEASE_DURATION="1h")

    def worker_rows() -> object:
        return cluster.db.execute("SELECT state, job_id FROM pgworkers.worker").fetchall()

    wait_for(lambda: worker_rows() == [("idle", None)], what="the renewal of a host whose workers are all up")
    [job] = cluster.enqueue("gate")
    wait_for(lambda: worker_rows() == [("busy", job)])
    cluster.open_gate()
    cluster.until_all_ended()
