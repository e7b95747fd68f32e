"""Rows of part B about what the server itself has only so much of: room for notifications, transaction ids."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.cluster import Cluster, wait_for
from support.cluster_fixtures import audited_cluster
from support.command import Command
from support.ledger import audit, read
from support.metrics_check import scrape, total
from support.server import OwnServer, migrated
from support.time_bounds import BUSY, T_DB, T_HOST, L, P, S

from pgworkers.doctor.server import MAX_TRANSACTION_IDS
from pgworkers.master.gauges import STORAGE_INTERVAL_SECONDS

pytestmark = pytest.mark.timeout(300)


def _finding(cluster: Cluster, check: str) -> dict[str, Any]:
    said = Command(cluster.directory, PGWORKERS_DSN=cluster.dsn)("doctor", "-o", "json", code=None).json()
    found: dict[str, Any] = next(row for row in said if row["check"] == check)
    return found


@pytest.fixture
def little_room(
    request: pytest.FixtureRequest, tmp_path: Path, bindir: Path | None, schema: str
) -> Iterator[Cluster]:
    """A server whose queue of notifications holds 512 kB instead of 8 GB."""
    try:
        own = OwnServer(tmp_path / "own", bindir, max_notify_queue_pages="64")
    except Exception as why:
        pytest.skip(f"NOT TESTED: a queue of notifications that can be filled needs Postgres 17 ({why})")
    try:
        migrated(own.dsn, schema)
        with audited_cluster(request, own.dsn, tmp_path) as cluster:
            yield cluster
    finally:
        own.close()


@pytest.mark.long
def test_row_51_a_full_notification_queue_fails_no_job(little_room: Cluster) -> None:
    """A session listens in a transaction that does not end. NOTIFY fails; jobs are enqueued, run and end by the poll."""
    cluster = little_room
    cluster.start(queues="default:2")
    [held] = cluster.enqueue("gate")
    wait_for(lambda: read(cluster.ledger), what="a job that runs")
    _wait_for_idle_host(cluster)
    with psycopg.connect(cluster.dsn) as stuck:
        stuck.execute("LISTEN pgworkers")
        stuck.execute("LISTEN pgworkers_done")
        stuck.commit()
        stuck.execute("SELECT 1")  # and never ends
        fill = "SELECT pg_notify('foreign', lpad(n::text, 7900, 'x')) FROM generate_series(1, %s) n"
        for _ in range(64):
            with contextlib.suppress(psycopg.errors.ProgramLimitExceeded):
                cluster.db.execute(fill, [1])
        jobs = [held, *cluster.enqueue("work")]
        with cluster.db.transaction():
            jobs += cluster.enqueue(
                "work", 2
            )  # always notifies: it cannot know which hosts sleep when it commits
        jobs += cluster.enqueue("work", delay="0.2 s")
        for job in jobs[1:]:
            cluster.until(job, "succeeded", timeout=3 * (P + S) + BUSY)
        [failing] = cluster.enqueue("fail", max_attempts=1)
        cluster.until(failing, "dead", timeout=P + S + BUSY)
        [never] = cluster.enqueue("work", delay="1 h")
        for job, end in ((never, "cancelled"), (held, "cancelled")):
            assert cluster.db.execute("SELECT pgworkers.cancel(%s)", [job]).fetchone() is not None
            cluster.until(job, end, timeout=2 * (P + S) + BUSY)
        full = _finding(cluster, "notify")
        assert (full["level"], full["facts"]["used"] >= 0.9) == ("fail", True), full
        assert "no session is notified" in full["why"]
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):  # it was full all the time
            cluster.db.execute(fill, [1])
    wait_for(
        lambda: _finding(cluster, "notify")["level"] == "ok", what="room again, and a notification that comes"
    )
    with psycopg.connect(cluster.dsn, autocommit=True) as ear:
        _wait_for_idle_host(cluster)
        [(host,)] = cluster.db.execute(
            "SELECT host FROM pgworkers.idle_host WHERE queue = 'default'"
        ).fetchall()
        ear.execute(f'LISTEN "{host}"')
        jobs += cluster.enqueue("work")
        assert next(ear.notifies(timeout=BUSY)).payload == f"one:default:{host}"
    cluster.until(jobs[-1], "succeeded")
    assert audit(cluster.db, cluster.ledger, [*jobs, failing, never]) == []


def _wait_for_idle_host(cluster: Cluster) -> None:
    look = "SELECT count(*) FROM pgworkers.idle_host WHERE queue = 'default'"
    wait_for(lambda: cluster.db.execute(look).fetchone() == (1,), what="a sleeping host")


@pytest.mark.long
def test_row_59_a_server_without_transaction_ids_is_waited_for(
    own_server: OwnServer, own_cluster: Cluster
) -> None:
    """It refuses every write. The doctor warned before; hosts retry at growing intervals, and lose and repeat nothing."""
    cluster = own_cluster
    master = cluster.start(queues="default:2")
    assert _finding(cluster, "wraparound")["level"] == "ok"
    jobs = cluster.enqueue("work", 2)
    for job in jobs:
        cluster.until(job, "succeeded")
    cluster.db.execute("UPDATE pg_database SET datallowconn = true")  # template0, too, must be vacuumed
    _near_the_end(own_server, cluster, left=2_000)
    before = _finding(cluster, "wraparound")
    assert (before["level"], before["facts"]["age"] > 2_000_000_000) == ("fail", True), before
    jobs += cluster.enqueue("work", 4)
    for job in jobs:
        cluster.until(job, "succeeded")
    jobs += cluster.enqueue("gate", 2)  # they run when it stops, and end meanwhile
    wait_for(lambda: len([e for e in read(cluster.ledger) if e.kind == "START"]) == len(jobs))
    jobs += cluster.enqueue("work", 2)

    spend = "DO $$ BEGIN FOR n IN 1 .. 3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
    with pytest.raises(psycopg.errors.ProgramLimitExceeded):
        cluster.db.execute(spend)
    cluster.open_gate()
    wait_for(lambda: len([e for e in read(cluster.ledger) if e.kind == "END"]) >= 8, what="handlers go on")
    with pytest.raises(psycopg.errors.ProgramLimitExceeded):
        cluster.enqueue("work")
    stopped, before_it = time.monotonic(), _sessions(cluster)
    wait_for(lambda: time.monotonic() > stopped + L + S, what="longer than a lease")
    assert master.process.poll() is None
    assert cluster.counts()["succeeded"] == 6, "nothing more could be written"
    connects = _sessions(cluster) - before_it
    assert connects < 5 * (L + S), f"{connects} connects are a busy loop"

    for (name,) in cluster.db.execute("SELECT datname FROM pg_database").fetchall():
        with psycopg.connect(make_conninfo(cluster.dsn, dbname=name), autocommit=True) as conn:
            conn.execute("VACUUM (FREEZE)")
    for job in jobs:
        cluster.until(job, "succeeded", timeout=T_DB + T_HOST + BUSY)
    wait_for(lambda: _finding(cluster, "wraparound")["level"] == "ok")
    starts = [entry.job for entry in read(cluster.ledger) if entry.kind == "START"]
    assert sorted(starts) == sorted(jobs), "what had run while nothing could be written did not run again"
    assert audit(cluster.db, cluster.ledger, jobs) == []


def _sessions(cluster: Cluster) -> int:
    """How many there have been in this database."""
    row = cluster.db.execute(
        "SELECT sessions FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    return int(row[0]) if row else 0


def _near_the_end(own: OwnServer, cluster: Cluster, *, left: int) -> None:
    """Move the server's counter to where it refuses to write after `left` more transactions."""
    status = own.embedded.status()
    oldest = min(int(row[0]) for row in cluster.db.execute("SELECT datfrozenxid::text FROM pg_database"))
    following = oldest + MAX_TRANSACTION_IDS - left
    programs = Path(f"/proc/{status.pid}/exe").readlink().parent
    cluster.db.close()
    own.stop()
    owner = status.data.stat()
    words = [programs / "pg_resetwal", "-x", str(following), status.data]
    as_owner = {"user": owner.st_uid, "group": owner.st_gid} if os.getuid() == 0 else {}
    subprocess.run(words, check=True, capture_output=True, cwd="/", **as_owner)  # type: ignore[call-overload]
    # what became of the transactions before it lies in a file that the counter, and not the server, has reached
    fate = status.data / "pg_xact" / f"{following // (8192 * 4 * 32):04X}"
    fate.write_bytes(bytes(8192 * 32))
    os.chown(fate, owner.st_uid, owner.st_gid)
    own.start()
    cluster.reconnect()


@pytest.mark.long
def test_row_52_a_snapshot_that_holds_vacuum_back_is_measured(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1", PGWORKERS_METRICS_ADDRESS="127.0.0.1:0")
    [address] = [line.split()[1] for line in master.log().splitlines() if line.startswith("metrics ")]

    def age() -> float:
        return total(scrape(address), "oldest_transaction_seconds")

    assert age() < 5
    with psycopg.connect(cluster.dsn) as idler:
        idler.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        idler.execute("SELECT 1")
        jobs = cluster.enqueue("work", 50)
        wait_for(
            lambda: age() >= 5,
            timeout=60,
            what=f"the alarm's metric, looked at every {STORAGE_INTERVAL_SECONDS} s",
        )
        cluster.until_all_ended()
        assert cluster.counts() == {"succeeded": 50}
    assert audit(cluster.db, cluster.ledger, jobs) == []
