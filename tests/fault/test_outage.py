"""Postgres crashes, restarts, drops sessions: running jobs go on, results wait, nothing that finished runs again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.cluster import UNHURRIED, Cluster, wait_for
from support.ledger import audit, read
from support.proxy import Proxy
from support.server import OwnServer
from support.time_bounds import BUSY, T_DB, P, S

from pgworkers.postgres.migrate import known_migrations


def _repeated(cluster: Cluster) -> list[int]:
    """Jobs that started again after they had finished."""
    ended: set[int] = set()
    again = []
    for entry in read(cluster.ledger):
        if entry.kind == "END":
            ended.add(entry.job)
        elif entry.job in ended:
            again.append(entry.job)
    return again


def test_row_29_a_crash_of_postgres_loses_and_repeats_nothing(
    own_cluster: Cluster, own_server: OwnServer
) -> None:
    cluster = own_cluster
    master = cluster.start(queues="default:4")
    jobs = []
    for seconds in (1, 2, 4, 8):
        jobs += cluster.enqueue("work", args={"seconds": seconds})
    jobs += cluster.enqueue("work", 30, args={"seconds": 0.2})
    wait_for(lambda: len(read(cluster.ledger)) >= 4)
    workers = master.worker_pids()
    cluster.db.close()
    own_server.crash()
    wait_for(lambda: "lost the" in master.log())
    down = time.monotonic()
    wait_for(
        lambda: time.monotonic() - down > 5 and len([e for e in read(cluster.ledger) if e.kind == "END"]) >= 2
    )
    own_server.start()
    cluster.reconnect()
    counts = cluster.until_all_ended()
    assert counts == {"succeeded": len(jobs)}
    assert _repeated(cluster) == []
    assert audit(cluster.db, cluster.ledger, jobs) == []
    assert master.worker_pids() == workers, "an outage is no reason to replace workers"


@pytest.mark.long
def test_row_29_twenty_crashes_under_load(own_cluster: Cluster, own_server: OwnServer) -> None:
    cluster = own_cluster
    cluster.start(queues="default:3")
    jobs = cluster.enqueue("work", 600, args={"seconds": 0.02}, max_crashes=100)
    for _ in range(20):
        seen = len(read(cluster.ledger))
        wait_for(lambda n=seen: len(read(cluster.ledger)) > n + 20 or len(read(cluster.ledger)) >= 1200)
        cluster.db.close()
        own_server.crash()
        own_server.start()
        cluster.reconnect()
    cluster.until_all_ended(timeout=90)
    assert cluster.counts() == {"succeeded": 600}
    assert _repeated(cluster) == []
    assert audit(cluster.db, cluster.ledger, jobs) == []


@pytest.mark.long
def test_row_32_every_backend_terminated_again_and_again(cluster: Cluster) -> None:
    cluster.start(queues="default:3")
    jobs = cluster.enqueue("work", 400, args={"seconds": 0.01}, max_crashes=100)
    hits = 0
    for _ in range(15):
        row = cluster.db.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'pgworkers%'"
        ).fetchone()
        hits += row[0] if row else 0
        time.sleep(0.1)
    assert hits > 10, "too few sessions were terminated: nothing was tested"
    before = cluster.counts().get("succeeded", 0)
    wait_for(
        lambda: cluster.counts().get("succeeded", 0) > before, timeout=T_DB + BUSY, what="it goes on at once"
    )
    cluster.until_all_ended()
    assert _repeated(cluster) == []
    assert audit(cluster.db, cluster.ledger, jobs) == []


@pytest.mark.parametrize("how", ["the listener is gone", "dropped on the way"])
def test_row_50_a_lost_notification_is_bounded_by_the_poll(proxy: Proxy, cluster: Cluster, how: str) -> None:
    """No host is notified of the job, and the sleeping host finds it by its poll."""
    master = cluster.start(queues="default:1", dsn=proxy.dsn)
    [first] = cluster.enqueue("work")
    cluster.until(first, "succeeded")
    listener = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"
    [(pid,)] = cluster.db.execute(listener, ["pgworkers listen"]).fetchall()
    _asleep(cluster)
    lost = proxy.lose_notice(":default")
    if how == "the listener is gone":
        proxy.refuse = True  # so that it cannot come back before the job is there
        cluster.db.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    [job] = cluster.enqueue("work")
    cluster.until(job, "succeeded", timeout=P + S + BUSY)
    listening = [row[0] for row in cluster.db.execute(listener, ["pgworkers listen"])]
    if how == "the listener is gone":
        assert (listening, lost.hits) == ([], 0), "somebody listened: nothing was tested"
        proxy.heal()
        wait_for(lambda: cluster.db.execute(listener, ["pgworkers listen"]).fetchall(), timeout=T_DB + BUSY)
    else:
        assert listening == [pid]
        assert lost.hits >= 1, "no notification was lost: nothing was tested"
    assert master.process.poll() is None
    assert audit(cluster.db, cluster.ledger, [first, job]) == []


def _asleep(cluster: Cluster) -> None:
    """The host has registered as sleeping: without that it is not notified, and no notification could be lost."""
    wait_for(lambda: cluster.db.execute("SELECT FROM pgworkers.idle_host WHERE queue = 'default'").fetchall())


def test_row_42_a_master_that_starts_before_its_database_waits_for_it(
    own_cluster: Cluster, own_server: OwnServer
) -> None:
    own_cluster.db.close()
    own_server.stop()
    master = own_cluster.start(queues="default:1", wait=False)
    wait_for(lambda: "trying for" in master.log(), what="it says that it waits")
    assert master.process.poll() is None
    own_server.start()
    own_cluster.reconnect()
    [job] = own_cluster.enqueue("work")
    own_cluster.until(job, "succeeded", timeout=T_DB + BUSY)
    assert audit(own_cluster.db, own_cluster.ledger, [job]) == []


@pytest.mark.long
def test_row_42_a_master_that_starts_while_a_table_is_locked_waits_for_it(cluster: Cluster) -> None:
    """Longer than its statements may take: as long as an operator changes the table, or another version migrates."""
    with cluster.db.transaction():
        cluster.db.execute("LOCK TABLE pgworkers.task IN ACCESS EXCLUSIVE MODE")
        master = cluster.start(wait=False)
        wait_for(
            lambda: "did not take what this host announces" in master.log(), what="it says that it waits"
        )
        assert master.process.poll() is None
    wait_for(lambda: len(master.titles("idle")) == 2, what="its workers")
    [job] = cluster.enqueue("work")
    cluster.until(job, "succeeded", timeout=P + S + BUSY)
    assert audit(cluster.db, cluster.ledger, [job]) == []


@pytest.mark.long
def test_row_86_masters_that_start_together_on_an_empty_database(empty_dsn: str, tmp_path: Path) -> None:
    """One of them migrates, the others wait for it; none is refused and the schema is made once."""
    cluster = Cluster(empty_dsn, tmp_path)
    try:
        masters = [cluster.start(queues="default:1", wait=False, **UNHURRIED) for _ in range(20)]
        for master in masters:
            wait_for(lambda m=master: "running:" in m.log() or m.process.poll() is not None, timeout=200)
        assert [master.process.poll() for master in masters] == [None] * 20
        whole = [m for m in masters if ", migrated (" in m.log()]
        assert len(whole) >= 1, "nobody migrated: nothing was tested"
        names = [
            row[0] for row in cluster.db.execute("SELECT name FROM pgworkers.migration ORDER BY version")
        ]
        assert names == [migration.name for migration in known_migrations()]
        said = "".join(m.log() for m in whole)
        assert [said.count(name) for name in names] == [1] * len(names), "each was applied once"
        jobs = cluster.enqueue("work", 40)
        cluster.until_all_ended()
        assert audit(cluster.db, cluster.ledger, jobs) == []
    finally:
        cluster.close()
