"""Rows of part B that need a network: cut silently by a router, or by a proxy that still acknowledges; slow; resetting."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from many_hosts.network import Network, NoNetwork
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.cluster import Cluster, Master, wait_for
from support.cluster_fixtures import audited_cluster
from support.ledger import audit, read
from support.process_watch import ProcessWatch
from support.proxy import Proxy
from support.server import OwnServer, migrated
from support.time_bounds import BACKOFF, BUSY, T_DB, T_HOST, T_LEAD, T_PROC, F, K, L, S

pytestmark = pytest.mark.timeout(300)

#: Long under the first lease, at once under any other; alone and fenced, or not. The one that is alone swallows what is
#: raised in it: it ends by its death, which can be seen from outside, and as late as the fence allows.
TASKS = """
def _first(ctx: Ctx) -> None:
    note(ctx, "START")
    time.sleep(60.0 if ctx.lease == 1 else 0.0)
    note(ctx, "END")


@app.task(exclusive=True, retry_verdicts={"host_lost": 0.5})
def solo(ctx: Ctx) -> None:
    note(ctx, "START")
    until = time.monotonic() + (60.0 if ctx.lease == 1 else 0.0)
    while time.monotonic() < until:
        try:
            time.sleep(60)
        except BaseException:
            pass
    note(ctx, "END")


@app.task
def plain(ctx: Ctx) -> None:
    _first(ctx)
"""


def partition(
    cluster: Cluster, far: Callable[[], Master], cut: Callable[[], object], heal: Callable[[], object]
) -> None:
    """A host that leads and runs jobs is cut off, silently, for longer than its lease. Another waits for what it holds."""
    cluster.declare(TASKS)
    away = far()
    wait_for(lambda: cluster.leader() is away, what="the far host leads")
    jobs = [*cluster.enqueue("solo", queue="far"), *cluster.enqueue("plain", queue="far")]
    solo, plain = jobs
    wait_for(lambda: {e.job for e in read(cluster.ledger)} == set(jobs))
    watch = {e.job: ProcessWatch(e.pid) for e in read(cluster.ledger)}
    near = cluster.start(queues="far:2")  # it would begin both at once, if it had them
    cut()
    wait_for(lambda: cluster.leader() is near, timeout=T_LEAD + BUSY, what="another host leads")
    for job in jobs:
        cluster.until(job, "succeeded", timeout=T_HOST + BACKOFF + BUSY)
    again = {e.job: e.at for e in read(cluster.ledger) if (e.kind, e.lease) == ("START", 2)}
    assert away.titles(f"#{plain} "), "without exclusive=True the handler goes on"
    assert watch[plain].was_alive_after(again[plain]), "nobody would have seen an overlap"
    assert not watch[solo].was_alive_after(again[solo]), "two executions of an exclusive job overlapped"
    heal()
    wait_for(lambda: "lease lost" in away.log(), timeout=T_DB + BUSY, what="it learns what it lost")
    wait_for(lambda: not away.titles(f"#{plain} "), timeout=K + BUSY, what="the stale handler is stopped")
    [late] = cluster.enqueue("plain")  # a queue of its own
    wait_for(lambda: [e for e in read(cluster.ledger) if e.job == late], what="the healed host works again")
    cluster.db.execute("SELECT pgworkers.cancel(%s)", (late,))
    cluster.until(late, "cancelled")
    assert [cluster.row(job)["lease"] for job in jobs] == [2, 2]
    assert audit(cluster.db, cluster.ledger, [*jobs, late]) == []


@pytest.mark.long
def test_row_38_a_proxy_that_acknowledges_and_delivers_nothing(proxy: Proxy, cluster: Cluster) -> None:
    partition(cluster, lambda: cluster.start(queues="far:2,default:1", dsn=proxy.dsn), proxy.hole, proxy.heal)
    assert proxy.counts["hole"] == 1


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        made = Network()
    except NoNetwork as why:
        pytest.skip(f"NOT TESTED: {why}")
    yield made
    made.close()


@pytest.fixture
def reachable(
    request: pytest.FixtureRequest, network: Network, tmp_path: Path, bindir: Path | None, schema: str
) -> Iterator[Cluster]:
    """Masters on a server that the far side of the network reaches."""
    own = OwnServer(tmp_path / "own", bindir, listen_addresses=network.address)
    try:
        migrated(own.dsn, schema)
        hba = own.embedded.status().data / "pg_hba.conf"
        hba.write_text(f"{hba.read_text()}host all all {network.network} trust\n")
        with audited_cluster(request, own.dsn, tmp_path) as cluster:
            cluster.db.execute("SELECT pg_reload_conf()")
            try:
                yield cluster
            finally:
                network.heal()
    finally:
        own.close()


@pytest.mark.long
def test_rows_37_62_a_router_that_forgets_packets(reachable: Cluster, network: Network) -> None:
    parts = conninfo_to_dict(reachable.dsn)
    port = parts.get("port") or 5432
    dsn = make_conninfo(host=network.address, port=port, user=parts["user"], dbname=parts["dbname"])
    partition(
        reachable,
        lambda: reachable.start(
            queues="far:2,default:1", dsn=dsn, prefix=network.enter, PGWORKERS_TCP_TIMEOUT="3s"
        ),
        network.cut,
        network.heal,
    )


@pytest.mark.long
def test_row_40_answers_that_come_too_late(proxy: Proxy, cluster: Cluster) -> None:
    """Slower than every deadline: nothing piles up, running jobs go on, exclusive ones are fenced; then all is well."""
    cluster.declare(TASKS)
    master = cluster.start(queues="default:3", dsn=proxy.dsn)
    [solo] = cluster.enqueue("solo", max_crashes=10)
    running = cluster.enqueue("work", 2, args={"seconds": 6.0})
    wait_for(lambda: len(read(cluster.ledger)) == 3)
    proxy.delay = 3 * S
    most = 0
    slow = time.monotonic()

    def fenced() -> bool:
        nonlocal most
        most = max(most, proxy.connections())
        return not master.titles(f"#{solo} ")

    wait_for(fenced, timeout=F + T_PROC + 3 * S + BUSY, what="the exclusive job is fenced")
    wait_for(lambda: fenced() and time.monotonic() - slow > L + 2)
    assert proxy.counts["delay"] > 3, "nothing was delayed"
    assert most <= 12, "connections piled up"
    proxy.heal()
    cluster.until_all_ended()
    assert {cluster.row(job)["attempt"] for job in running} == {1}, "what ran was not lost"
    assert cluster.counts() == {"succeeded": 3}
    assert audit(cluster.db, cluster.ledger, [solo, *running]) == []


@pytest.mark.long
def test_row_41_connections_reset_five_times_a_second(proxy: Proxy, cluster: Cluster) -> None:
    cluster.start(queues="default:3", dsn=proxy.dsn)
    jobs = cluster.enqueue("work", 300, args={"seconds": 0.02}, max_crashes=100)
    until, most = time.monotonic() + 30, 0
    while time.monotonic() < until:
        most = max(most, proxy.connections())
        proxy.cut()
        proxy.cut_after(500)  # and one of them in the middle of a message
        time.sleep(0.2)
    assert proxy.counts["cut"] > 10, "nothing was cut"
    assert proxy.counts["cut_after"] > 0
    assert most <= 8
    proxy.pass_bytes(1000)  # the last order to cut is forgotten
    cluster.until_all_ended(timeout=L + 60)
    assert cluster.counts() == {"succeeded": 300}
    again = [job for job, runs in _starts(cluster).items() if runs > 1]
    assert again == [], "what had begun was repeated"
    assert audit(cluster.db, cluster.ledger, jobs) == []


def _starts(cluster: Cluster) -> dict[int, int]:
    starts = sorted(e.job for e in read(cluster.ledger) if e.kind == "START")
    return {job: len(list(runs)) for job, runs in itertools.groupby(starts)}


@pytest.mark.long
def test_row_42_a_server_that_refuses_is_asked_less_and_less(proxy: Proxy, cluster: Cluster) -> None:
    master = cluster.start(queues="default:1", dsn=proxy.dsn, PGWORKERS_RECONNECT_MAX_DELAY="2s")
    proxy.refuse = True
    proxy.cut()
    wait_for(lambda: proxy.counts["refused"] >= 4, what="every connection was refused once")
    time.sleep(1.0)  # the first tries come quickly
    before, began = proxy.counts["refused"], time.monotonic()
    wait_for(lambda: time.monotonic() - began > 6.0)
    rate = (proxy.counts["refused"] - before) / (time.monotonic() - began)
    assert 0 < rate < 5, f"{rate:.1f} connects a second"
    proxy.heal()
    [job] = cluster.enqueue("work")
    cluster.until(job, "succeeded", timeout=T_DB + 2 + BUSY)
    assert master.process.poll() is None
