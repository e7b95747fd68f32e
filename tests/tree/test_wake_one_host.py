"""A new job wakes one of the sleeping hosts; if that one is full, killed or stopped, another host runs the job."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from support import metrics_check
from support.cluster import Cluster, Master, wait_for
from support.time_bounds import BUSY, P

HOSTS = 4
JOBS = 30
FOREVER = "300s"


@pytest.fixture
def ear(cluster: Cluster) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(cluster.dsn, autocommit=True) as conn:
        yield conn


def listen(ear: psycopg.Connection[Any], hosts: Iterable[UUID]) -> None:
    """Listen on the channels of these hosts."""
    for channel in ("pgworkers", *hosts):
        ear.execute(f'LISTEN "{channel}"')


def sleeping(cluster: Cluster, count: int, **environ: str) -> dict[UUID, Master]:
    """Start `count` hosts with one worker each and wait until they sleep and have seen each other. Returns them by id."""
    for _ in range(count):
        cluster.start(queues="default:1", wait=False, **environ)
    wait_for(lambda: len(asleep(cluster)) == count, what="all hosts sleep")
    for master in cluster.masters:
        wait_for(lambda m=master: m.titles("idle"), what="its worker")
    began = cluster.db.execute("SELECT now()").fetchone()
    renewed = "SELECT count(*) FROM pgworkers.host WHERE renewed_at > %s"
    wait_for(lambda: cluster.db.execute(renewed, began).fetchone() == (count,), what="all have renewed")
    by_pid = {master.pid: master for master in cluster.masters}
    return {row[0]: by_pid[row[1]] for row in cluster.db.execute("SELECT id, pid FROM pgworkers.host")}


def asleep(cluster: Cluster) -> set[UUID]:
    rows = cluster.db.execute("SELECT host FROM pgworkers.idle_host WHERE queue = 'default'").fetchall()
    return {row[0] for row in rows}


def claims(master: Master) -> float:
    """How many claims it has sent."""
    [address] = [line.split()[1] for line in master.log().splitlines() if line.startswith("metrics ")]
    samples = metrics_check.scrape(address)
    ways = ("claim", "claim_ranges", "claim_oldest")
    return sum(metrics_check.total(samples, "db_operation_seconds_count", op=way) for way in ways)


def notified_of(cluster: Cluster, ear: psycopg.Connection[Any], task: str = "work") -> tuple[int, str]:
    """A new job, and the notification of it."""
    [job] = cluster.enqueue(task)
    for notice in ear.notifies(timeout=BUSY):
        if notice.payload.startswith(("ready:", "one:")):
            return job, notice.payload
    raise AssertionError(f"no host was notified of job {job}")


def chosen(cluster: Cluster, ear: psycopg.Connection[Any], host: UUID) -> int:
    """A job of which this host is notified, and no other."""
    while True:
        job, payload = notified_of(cluster, ear)
        assert payload.startswith("one:default:"), "all hosts were notified of one job"
        if payload == f"one:default:{host}":
            return job
        cluster.until(job, "succeeded")


def test_a_job_is_claimed_by_one_host_and_the_others_do_not_look(cluster: Cluster) -> None:
    masters = sleeping(
        cluster,
        HOSTS,
        PGWORKERS_METRICS_ADDRESS="127.0.0.1:0",
        PGWORKERS_POLL_INTERVAL=FOREVER,
        PGWORKERS_AGEING_DELAY="0",
    ).values()
    before = sum(claims(master) for master in masters)
    for _ in range(JOBS):
        [job] = cluster.enqueue("work")
        cluster.until(job, "succeeded")
    sent = sum(claims(master) for master in masters) - before
    assert JOBS <= sent <= 2 * JOBS, f"{sent} claims of {HOSTS} hosts for {JOBS} jobs"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_if_the_chosen_host_does_not_come_another_polls_and_then_all_are_notified(
    cluster: Cluster, ear: psycopg.Connection[Any], how: signal.Signals
) -> None:
    masters = sleeping(cluster, 2)
    cluster.db.execute("UPDATE pgworkers.host SET lease = '10 minutes'")  # it looks alive all the while
    listen(ear, masters)
    lost, other = masters
    masters[lost].signal(how)
    missed, payload = 0, ""
    while payload != "ready:default":  # a poll that is due at the same moment does not show a lost host
        assert missed < 12, "the lost host is chosen again and again"
        job, payload = notified_of(cluster, ear)
        missed += payload == f"one:default:{lost}"
        cluster.until(job, "succeeded", timeout=P + 1 + BUSY)
        assert cluster.row(job)["host"] == other
    assert missed, "the lost host was never chosen: nothing was tested"


def test_if_the_chosen_host_is_full_it_passes_the_notification_on(
    cluster: Cluster, ear: psycopg.Connection[Any]
) -> None:
    masters = sleeping(cluster, 2, PGWORKERS_POLL_INTERVAL=FOREVER)
    listen(ear, masters)
    gate, _ = notified_of(cluster, ear, "gate")
    cluster.until(gate, "running")
    full = cluster.row(gate)["host"]
    [other] = masters.keys() - {full}
    job = chosen(cluster, ear, full)
    cluster.until(job, "succeeded")
    assert cluster.row(job)["host"] == other
    assert asleep(cluster) == {other}, "a full host is not chosen again"
    cluster.open_gate()
    cluster.until(gate, "succeeded")
    wait_for(lambda: asleep(cluster) == {full, other}, what="it has room again")
