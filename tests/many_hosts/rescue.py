"""A host is lost with a thousand jobs in its hands; and what a unique key means for rescue and for an operator's retry."""

from __future__ import annotations

import time
import uuid

import psycopg
from support.cluster import wait_for

from many_hosts.environment import Finding, ProofCluster, ProofServer, beginning, within
from pgworkers.job import hosts
from pgworkers.job.claim import QueueCapacity, claim
from pgworkers.postgres.statements import run
from pgworkers.settings import Settings

COUNT = 1000
KEY = "once"


def rescue(server: ProofServer, *, quick: bool) -> list[Finding]:
    """The lost host registers and claims by the statements that a master uses, and never renews."""
    lease = 20.0 if quick else Settings().lease_duration
    with server.cluster() as cluster:
        cluster.log_statements()
        cluster.host("default:1")
        cluster.command("queues", "pause", "default")
        frail = cluster.enqueue("work", 1, max_attempts=1)
        keyed = cluster.enqueue("work", 1, unique_key=KEY)
        cluster.enqueue("work", COUNT - 2)
        cluster.db.execute("UPDATE pgworkers.queue SET workers = 0")  # the master leaves them to the lost one
        wait_for(lambda: not cluster.living()[0].worker_pids(), what="no worker here")
        cluster.command("queues", "resume", "default")
        lost = str(uuid.uuid4())
        run(
            cluster.db,
            "pgworkers",
            hosts.register_host(lost, "lost", 1, "", "app.py", "", ["default"], [], lease),
        )
        began = time.monotonic()
        held = sum(
            len(run(cluster.db, "pgworkers", claim(lost, [QueueCapacity("default", 100)], ["work"])))
            for _ in range(10)
        )
        assert held == COUNT, held
        again, refused = _duplicates(cluster)
        wait_for(lambda: _held(cluster, lost) < COUNT, timeout=lease + 60, what="the rescue")
        after = time.monotonic() - began - lease
        wait_for(lambda: _held(cluster, lost) == 0, timeout=60, what="all are rescued")
        swept = time.monotonic() - began - lease - after
        cluster.db.execute("UPDATE pgworkers.queue SET workers = 2")
        sweeps = _sweeps(cluster)
        reasons = cluster.db.execute(
            "SELECT verdict, regexp_replace(error, '[0-9]+ s', 'N s'), count(*) FROM pgworkers.attempt GROUP BY 1, 2"
        ).fetchall()
        dead = cluster.row(frail[0])
        cluster.until_all_ended(timeout=120)
        counts = cluster.counts()
        found = [
            Finding(
                "a lost host held 1,000 jobs, one at the end of its crash budget: taken back in one sweep",
                "999 + 1 dead with its reason, 1 sweep",
                f"{counts.get('succeeded')} + {counts.get('dead')} dead, {sweeps} sweep, {swept:.2f} s",
                counts == {"succeeded": COUNT - 1, "dead": 1}
                and sweeps == 1
                and dead["verdict"] == "host_lost",
                f"{after:.1f} s after the lease; reasons: {reasons}; the dead one: {dead['error']}",
            ),
            Finding(
                "a running job keeps its unique key, so no newer job can stand in the way of its rescue",
                "refused",
                f"an enqueue answers the same job: {again == keyed[0]}; a second row: {refused}",
                again == keyed[0] and refused == "UniqueViolation" and cluster.state(keyed[0]) == "succeeded",
            ),
        ]
    with server.cluster() as cluster:
        found += _requeue(cluster)
    return found


def _held(cluster: ProofCluster, lost: str) -> int:
    return int(cluster.one("SELECT count(*) FROM pgworkers.job WHERE host = %s::uuid", lost))


def _sweeps(cluster: ProofCluster) -> int:
    """How many performances of the duty took jobs: statements less than a second apart are one."""
    mark = beginning("job/handler_session_end")  # sent after each statement that took jobs
    times = cluster.logged(mark)
    return sum(1 for n, at in enumerate(times) if n == 0 or (at - times[n - 1]).total_seconds() > 1.0)


def _duplicates(cluster: ProofCluster) -> tuple[int, str]:
    [again] = cluster.enqueue("work", 1, unique_key=KEY)
    try:
        cluster.db.execute(
            "INSERT INTO pgworkers.job (state, queue, task, args, max_attempts, max_crashes, unique_key)"
            " VALUES ('ready', 'default', 'work', '{}', 1, 1, %s)",
            [KEY],
        )
    except psycopg.Error as error:
        return again, type(error).__name__
    return again, "accepted"


def _requeue(cluster: ProofCluster) -> list[Finding]:
    """There a conflict can exist: a dead job's key may have been taken since."""
    dead = cluster.enqueue("work", 1, unique_key=KEY) + cluster.enqueue("work", COUNT - 1)
    cluster.db.execute("SELECT pgworkers.discard(id) FROM pgworkers.job")
    assert cluster.counts() == {"dead": COUNT}, cluster.counts()
    [newer] = cluster.enqueue("work", 1, unique_key=KEY, delay="1 hour")
    began = time.monotonic()
    said = cluster.command("-o", "json", "jobs", "retry", "--state", "dead", "-y", code=None)
    took = time.monotonic() - began
    states = cluster.counts()
    ok = states == {"ready": COUNT - 1, "dead": 1, "scheduled": 1} and cluster.state(dead[0]) == "dead"
    return [
        within("an operator retries 1,000 dead jobs", 30.0, [took]),
        Finding(
            "one of their unique keys belongs to a newer job: 999 are back, the other says why",
            "999 + 1",
            f"{states.get('ready')} + {states.get('dead')}",
            ok and newer > dead[0],
            f"`jobs retry` says: {' '.join(said.split())[-60:]}",
        ),
    ]
