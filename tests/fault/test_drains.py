"""Rows 82, 83, 84 and 40: what a host that leaves still owes, and from when the fence counts."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest
from support.cluster import UNHURRIED, Cluster, wait_for
from support.ledger import audit, read
from support.process_watch import ProcessWatch
from support.proxy import Proxy, mark
from support.time_bounds import BUSY, K, S

from pgworkers.clock import boottime
from pgworkers.events import EventBus
from pgworkers.job.hosts import register_host
from pgworkers.job.model import Fence
from pgworkers.master.assignment import ClusterView
from pgworkers.master.connection import ReconnectingConnection
from pgworkers.master.lease_keeper import LeaseKeeper
from pgworkers.master.notifications import NotificationListener
from pgworkers.master.status import HostSnapshot
from pgworkers.settings import Settings

DRAIN = 8.0  # longer than the lease
pytestmark = pytest.mark.timeout(300)


@pytest.mark.long
def test_row_83_a_job_longer_than_the_drain_is_handed_back_when_it_is_dead(cluster: Cluster) -> None:
    """Its lease is renewed to the end of the drain, which is longer than a lease; it begins elsewhere only then."""
    cluster.declare(
        "@app.task\ndef slow_first(ctx: Ctx) -> None:\n"
        '    note(ctx, "START")\n'
        "    until = time.monotonic() + (120 if ctx.lease == 1 else 0)\n"
        "    while time.monotonic() < until:\n"
        "        try:\n            time.sleep(60)\n        except BaseException:\n            pass\n"
        '    note(ctx, "END")'
    )
    first = cluster.start(queues="default:1", PGWORKERS_DRAIN_TIMEOUT=f"{DRAIN:g}s")
    [job] = cluster.enqueue("slow_first")
    [begun] = wait_for(lambda: read(cluster.ledger))
    cluster.start(queues="default:1")
    watch = ProcessWatch(begun.pid)
    began = time.monotonic()
    assert first.terminate(timeout=DRAIN + K + S + 4 + BUSY) == 0, first.log()
    assert time.monotonic() - began >= DRAIN, "it was not given its time"
    cluster.until(job, "succeeded")
    [again] = [e for e in read(cluster.ledger) if e.kind == "START" and e.lease > 1]
    assert not watch.was_alive_after(again.at), "it began elsewhere while the first handler was alive"
    verdicts = [attempt["verdict"] for attempt in cluster.attempts(job)]
    assert verdicts == ["interrupted"], "handed back, not rescued"
    assert audit(cluster.db, cluster.ledger, [job]) == []


def test_row_82_a_host_that_has_gone_is_not_made_known_again_by_its_own_renewal(
    cluster: Cluster, proxy: Proxy
) -> None:
    """Its row is gone, and it has not received the answer yet. A renewal now finds no row, and must not insert one."""
    master = cluster.start(
        queues="default:1", dsn=proxy.dsn, **(UNHURRIED | {"PGWORKERS_RENEW_INTERVAL": "200ms"})
    )
    removed = proxy.hold_reply(mark("job/host_remove"))
    master.signal(signal.SIGTERM)
    wait_for(removed.done.is_set, what="the row is removed")
    again = False
    for _ in range(20):  # five renewals
        again = again or bool(cluster.db.execute("SELECT FROM pgworkers.host").fetchall())
        time.sleep(0.05)
    removed.go.set()
    assert master.wait() == 0, master.log()
    assert not again, "I11 it was made anew"
    assert cluster.db.execute("SELECT FROM pgworkers.host").fetchall() == [], "I11"


def test_row_84_a_host_that_never_registered_leaves_on_a_signal(cluster: Cluster, proxy: Proxy) -> None:
    """The database went away between the look at the schema and the host's first row."""
    refused = proxy.lose_query(mark("job/host_register"), times=1_000_000)
    master = cluster.start(queues="default:1", wait=False, dsn=proxy.dsn)
    wait_for(lambda: refused.hits > 1, what="it tries to become known, again and again")
    master.signal(signal.SIGTERM)
    assert master.wait() == 0, master.log()
    assert "gone" in master.log()


class NoJobs:
    """What the renewer asks a dispatcher that holds nothing."""

    def __init__(self) -> None:
        self.cluster = ClusterView()

    def held_fences(self) -> list[Fence]:
        return []

    def held_deadlines(self) -> list[float | None]:
        return []


def test_row_40_the_fence_counts_from_the_sending(proxy: Proxy, dsn: str, tmp_path: Path) -> None:
    host = "00000000-0000-0000-0000-000000000001"
    told: list[float] = []

    async def story() -> tuple[float, float]:
        settings, facts = Settings(), EventBus()
        line = ReconnectingConnection("listen", proxy.dsn, settings, facts)
        registration = register_host(host, "box", 1, "", "app.py", "1", ["a"], ["nap"], 30.0)
        await line.execute(registration)
        renewal = LeaseKeeper(
            host_id=host,
            connection=line,
            listener=NotificationListener(host_id=host, schema=settings.schema, events=facts),
            dispatcher=NoJobs(),  # type: ignore[arg-type]
            settings=settings,
            snapshot=lambda is_watched: HostSnapshot("running", "[]", 0.0, 1, "[]"),
            registration=lambda: registration,
            on_renewed=told.append,
            are_workers_up=lambda: False,
        )
        held = proxy.hold_reply(mark("job/host_renew"))
        before = boottime()
        answer = asyncio.ensure_future(renewal.renew())
        while not held.done.is_set():
            await asyncio.sleep(0.01)
        committed = boottime()
        await asyncio.sleep(0.5)
        held.go.set()
        await answer
        await line.close()
        return before, committed

    before, committed = asyncio.run(story())
    [since] = told
    assert before <= since <= committed, "the answer came later than that"
