"""A new job wakes one of the sleeping hosts; if that one is full, killed or stopped, another host runs the job."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from support import metrics_check
from support.cluster import Forest, Master, wait_for
from support.time_bounds import BUSY, P

HOSTS = 4
JOBS = 30
FOREVER = "300s"


@pytest.fixture
def ear(forest: Forest) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(forest.dsn, autocommit=True) as conn:
        yield conn


def listen(ear: psycopg.Connection[Any], hosts: Iterable[UUID]) -> None:
    """Listen on the channels of these hosts."""
    for channel in ("pgworkers", *hosts):
        ear.execute(f'LISTEN "{channel}"')


def sleeping(forest: Forest, count: int, **environ: str) -> dict[UUID, Master]:
    """Start `count` hosts with one worker each and wait until they sleep and have seen each other. Returns them by id."""
    for _ in range(count):
        forest.start(queues="default:1", wait=False, **environ)
    wait_for(lambda: len(asleep(forest)) == count, what="all hosts sleep")
    for master in forest.masters:
        wait_for(lambda m=master: m.titles("idle"), what="its worker")
    began = forest.db.execute("SELECT now()").fetchone()
    renewed = "SELECT count(*) FROM pgworkers.host WHERE renewed_at > %s"
    wait_for(lambda: forest.db.execute(renewed, began).fetchone() == (count,), what="all have renewed")
    by_pid = {master.pid: master for master in forest.masters}
    return {row[0]: by_pid[row[1]] for row in forest.db.execute("SELECT id, pid FROM pgworkers.host")}


def asleep(forest: Forest) -> set[UUID]:
    rows = forest.db.execute("SELECT host FROM pgworkers.idle_host WHERE queue = 'default'").fetchall()
    return {row[0] for row in rows}


def claims(master: Master) -> float:
    """How many claims it has sent."""
    [address] = [line.split()[1] for line in master.log().splitlines() if line.startswith("metrics ")]
    samples = metrics_check.scrape(address)
    ways = ("claim", "claim_ranges", "claim_oldest")
    return sum(metrics_check.total(samples, "db_operation_seconds_count", op=way) for way in ways)


def notified_of(forest: Forest, ear: psycopg.Connection[Any], task: str = "work") -> tuple[int, str]:
    """A new job, and the notification of it."""
    [job] = forest.enqueue(task)
    for notice in ear.notifies(timeout=BUSY):
        if notice.payload.startswith(("ready:", "one:")):
            return job, notice.payload
    raise AssertionError(f"no host was notified of job {job}")


def chosen(forest: Forest, ear: psycopg.Connection[Any], host: UUID) -> int:
    """A job of which this host is notified, and no other."""
    while True:
        job, payload = notified_of(forest, ear)
        assert payload.startswith("one:default:"), "all hosts were notified of one job"
        if payload == f"one:default:{host}":
            return job
        forest.until(job, "succeeded")


def test_a_job_is_claimed_by_one_host_and_the_others_do_not_look(forest: Forest) -> None:
    masters = sleeping(
        forest,
        HOSTS,
        PGWORKERS_METRICS_ADDRESS="127.0.0.1:0",
        PGWORKERS_POLL_INTERVAL=FOREVER,
        PGWORKERS_AGEING_DELAY="0",
    ).values()
    before = sum(claims(master) for master in masters)
    for _ in range(JOBS):
        [job] = forest.enqueue("work")
        forest.until(job, "succeeded")
    sent = sum(claims(master) for master in masters) - before
    assert JOBS <= sent <= 2 * JOBS, f"{sent} claims of {HOSTS} hosts for {JOBS} jobs"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_if_the_chosen_host_does_not_come_another_polls_and_then_all_are_notified(
    forest: Forest, ear: psycopg.Connection[Any], how: signal.Signals
) -> None:
    masters = sleeping(forest, 2)
    forest.db.execute("UPDATE pgworkers.host SET lease = '10 minutes'")  # it looks alive all the while
    listen(ear, masters)
    lost, other = masters
    masters[lost].signal(how)
    missed, payload = 0, ""
    while payload != "ready:default":  # a poll that is due at the same moment does not show a lost host
        assert missed < 12, "the lost host is chosen again and again"
        job, payload = notified_of(forest, ear)
        missed += payload == f"one:default:{lost}"
        forest.until(job, "succeeded", timeout=P + 1 + BUSY)
        assert forest.row(job)["host"] == other
    assert missed, "the lost host was never chosen: nothing was tested"


def test_if_the_chosen_host_is_full_it_passes_the_notification_on(
    forest: Forest, ear: psycopg.Connection[Any]
) -> None:
    masters = sleeping(forest, 2, PGWORKERS_POLL_INTERVAL=FOREVER)
    listen(ear, masters)
    gate, _ = notified_of(forest, ear, "gate")
    forest.until(gate, "running")
    full = forest.row(gate)["host"]
    [other] = masters.keys() - {full}
    job = chosen(forest, ear, full)
    forest.until(job, "succeeded")
    assert forest.row(job)["host"] == other
    assert asleep(forest) == {other}, "a full host is not chosen again"
    forest.open_gate()
    forest.until(gate, "succeeded")
    wait_for(lambda: asleep(forest) == {full, other}, what="it has room again")
