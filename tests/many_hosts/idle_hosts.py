"""What idle hosts cost the server: statements per second of one, four and ten hosts at an equal load of small jobs."""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime
from typing import Any, NamedTuple

import psycopg
from support.cluster import wait_for

from many_hosts.environment import Finding, ProofCluster, ProofServer

HOSTS = (1, 4, 10)
JOBS_PER_SECOND = 20
#: How many times as many statements ten hosts may send as one.
MAX_GROWTH = 1.2
SETTLE_SECONDS = 3.0
ENQUEUE = "SELECT pgworkers.enqueue_plain('work', '{}', 'default', 0, 10, 3, true)"
#: Counts one for each notification and each session that listens, too.
TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
PICKUPS = "SELECT extract(epoch FROM started_at - created_at) * 1000 FROM pgworkers.history WHERE id > %s"


class Cost(NamedTuple):
    statements: float  # per second
    transactions: float  # per second
    pickup: float  # from enqueue to claim, the median in milliseconds

    def __str__(self) -> str:
        return (
            f"{self.statements:.0f} statements/s, {self.transactions:.0f} transactions/s,"
            f" pickup p50 {self.pickup:.2f} ms"
        )


def wakes(server: ProofServer, *, quick: bool) -> list[Finding]:
    """A new job wakes one host: more hosts do not mean more statements."""
    costs = {hosts: measure(server, hosts, 10.0 if quick else 30.0) for hosts in HOSTS}
    growth = costs[HOSTS[-1]].statements / costs[HOSTS[0]].statements
    return [
        Finding(
            f"statements/s of {HOSTS[-1]} hosts against those of one, at {JOBS_PER_SECOND} jobs/s",
            f"{MAX_GROWTH:g} times",
            f"{growth:.2f} times",
            growth < MAX_GROWTH,
            "; ".join(f"{hosts}: {cost}" for hosts, cost in costs.items()),
        )
    ]


def measure(server: ProofServer, hosts: int, seconds: float) -> Cost:
    with server.cluster() as cluster:
        cluster.log_statements()
        for _ in range(hosts):
            cluster.host("default:2", wait=False)
        asleep = "SELECT count(*) FROM pgworkers.idle_host WHERE queue = 'default'"
        wait_for(lambda: cluster.one(asleep) >= hosts, what="all hosts sleep")
        wait_for(lambda: cluster.leader() is not None, what="a leader")
        with psycopg.connect(cluster.dsn, autocommit=True) as client:
            load(client, 2.0)  # so that plans are made and durations known
            time.sleep(SETTLE_SECONDS)
            last = cluster.one("SELECT max(id) FROM pgworkers.history") or 0
            transactions, began = cluster.one(TRANSACTIONS), cluster.one("SELECT clock_timestamp()")
            load(client, seconds)
            ended = cluster.one("SELECT clock_timestamp()")
            time.sleep(SETTLE_SECONDS)  # sessions report their transactions when they have rested for a while
        sent = [at for at in statements(cluster) if began <= at.replace(tzinfo=UTC) <= ended]
        return Cost(
            len(sent) / seconds,
            (cluster.one(TRANSACTIONS) - transactions) / seconds,
            statistics.median(float(row[0]) for row in cluster.db.execute(PICKUPS, [last])),
        )


def statements(cluster: ProofCluster) -> list[datetime]:
    """When each statement was sent so far, from the server's log."""
    return [*cluster.logged("execute "), *cluster.logged("statement: ")]


def load(client: psycopg.Connection[Any], seconds: float) -> None:
    """One job after the other, each in a transaction of its own."""
    began = time.monotonic()
    for number in range(round(seconds * JOBS_PER_SECOND)):
        time.sleep(max(0.0, began + number / JOBS_PER_SECOND - time.monotonic()))
        client.execute(ENQUEUE)
