"""Rows of part B about the server itself: it dies in the middle of a duty, an operator holds a row, the disk is full."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from support.cluster import UNHURRIED, Cluster, wait_for
from support.cluster_fixtures import audited_cluster
from support.later_version import later_migrations, later_version
from support.ledger import audit, read
from support.proxy import Proxy, mark
from support.server import OwnServer, migrated
from support.time_bounds import BACKOFF, BUSY, T_DB, T_HOST, D, K, P, S

from pgworkers.postgres.migrate import known_migrations, up

pytestmark = pytest.mark.timeout(300)


@pytest.mark.long
@pytest.mark.parametrize("duty", ["job/rescue", "schedule/fire"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_row_30_postgres_dies_in_the_middle_of_a_duty(
    own_server: OwnServer, own_cluster: Cluster, duty: str, moment: str
) -> None:
    """Before the statement arrived, or when it had committed and was not yet answered: the next round repairs all."""
    cluster = own_cluster
    if duty == "schedule/fire":
        cluster.declare('app.schedule("* * * * * *", name="beat", missed="all")(work)')
    lost = cluster.start(queues="default:2")
    jobs = cluster.enqueue("work", 4, args={"seconds": 0.5}, max_crashes=20)
    wait_for(lambda: len(read(cluster.ledger)) >= 2)
    lost.signal(signal.SIGKILL)
    lost.wait()
    with Proxy(own_server.dsn) as proxy:
        cluster.start(queues="default:2", dsn=proxy.dsn)
        rule = proxy.lose_query(mark(duty)) if moment == "before" else proxy.hold_reply(mark(duty))
        wait_for(rule.done.is_set, timeout=T_HOST + 30, what="the duty is in the middle")
        cluster.db.close()
        own_server.crash()
        own_server.start()
        rule.go.set()
        cluster.reconnect()
        for job in jobs:
            cluster.until(job, "succeeded", timeout=T_DB + T_HOST + BUSY)
        if duty == "schedule/fire":
            wait_for(lambda: len(_ticks(cluster)) >= 3)
            cluster.db.execute("UPDATE pgworkers.schedule SET paused = true, revision = revision + 1")
        cluster.until_all_ended()
        for master in cluster.masters[1:]:
            assert master.terminate() == 0
    if duty == "schedule/fire":
        ticks = _ticks(cluster)
        made = cluster.db.execute(
            "SELECT count(*), count(DISTINCT meta ->> 'tick') FROM pgworkers.jobs WHERE meta ? 'tick'"
        ).fetchone()
        assert made == (len(ticks), len(ticks))
    ids = [row[0] for row in cluster.db.execute("SELECT id FROM pgworkers.jobs")]
    assert audit(cluster.db, cluster.ledger, ids) == []


#: What keeps the statement of a duty inside when it has locked and changed rows: the partitions that attempts are sorted
#: into, or the ticks of the next minute, not committed. And words from its beginning: the server shows no more of it.
INSIDE = {
    "rescue": (
        "DO $$ DECLARE part text; BEGIN FOR part IN SELECT relid FROM pg_partition_tree('pgworkers.attempt') WHERE isleaf"
        " LOOP EXECUTE format('LOCK TABLE %s IN SHARE MODE', part); END LOOP; END $$",
        ".lost_host_ranges(",
    ),
    "fire": (
        "INSERT INTO pgworkers.tick (schedule, scope, at)"
        " SELECT s.name, s.scope, date_trunc('second', now()) + n * interval '1 s'"
        " FROM pgworkers.schedule s, generate_series(0, 60) n ON CONFLICT DO NOTHING",
        "JOIN asked a ON s.name = a.name",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("duty", INSIDE)
def test_row_30_postgres_dies_inside_the_statement_of_a_duty(
    own_server: OwnServer, own_cluster: Cluster, duty: str
) -> None:
    """Half of it is done and nothing of it is committed; a lock keeps it there until the server is gone."""
    cluster = own_cluster
    keep, words = INSIDE[duty]
    if duty == "fire":
        cluster.declare('app.schedule("* * * * * *", name="beat", missed="all")(work)')
    lost = cluster.start(queues="default:2")
    jobs = cluster.enqueue("work", 4, args={"seconds": 0.5}, max_crashes=20)
    wait_for(lambda: len(read(cluster.ledger)) >= 2)
    lost.signal(signal.SIGKILL)
    lost.wait()
    with closing(psycopg.connect(own_server.dsn)) as operator:
        operator.execute(keep)
        survivor = cluster.start(queues="default:2")
        wait_for(lambda: _waits(cluster, words), timeout=T_HOST + BUSY, what="the duty is inside")
        cluster.db.close()
        own_server.crash()
    own_server.start()
    cluster.reconnect()
    for job in jobs:
        cluster.until(job, "succeeded", timeout=T_DB + T_HOST + BACKOFF + BUSY)
    if duty == "fire":
        wait_for(lambda: len(_ticks(cluster)) >= 3)
        cluster.db.execute("UPDATE pgworkers.schedule SET paused = true, revision = revision + 1")
    cluster.until_all_ended()
    assert survivor.terminate() == 0, survivor.log()
    made = cluster.db.execute(
        "SELECT count(*), count(DISTINCT meta ->> 'tick') FROM pgworkers.jobs WHERE meta ? 'tick'"
    ).fetchone()
    assert made == (len(_ticks(cluster)),) * 2
    ids = [row[0] for row in cluster.db.execute("SELECT id FROM pgworkers.jobs")]
    assert audit(cluster.db, cluster.ledger, ids) == []


def _waits(cluster: Cluster, text: str) -> bool:
    """True if a session waits for a lock inside this statement."""
    rows = cluster.db.execute("SELECT query FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchall()
    return any(text in query for (query,) in rows)


@pytest.mark.long
def test_row_30_postgres_dies_inside_a_migration(tmp_path: Path, bindir: Path | None, schema: str) -> None:
    """A master that starts on an older schema brings it up to date; the server dies under it. It tries again."""
    own = OwnServer(tmp_path / "own", bindir)
    try:
        with psycopg.connect(own.dsn, autocommit=True) as conn:
            old = [migration.name for migration in known_migrations()]
            assert up(conn, schema) == old
        new = later_migrations(
            colour="ALTER TABLE pgworkers.job ADD COLUMN colour text;",
            shade="ALTER TABLE pgworkers.job ADD COLUMN shade text;",
        )
        newer = later_version(tmp_path / "newer", colour=new[0].text, shade=new[1].text)
        cluster = Cluster(own.dsn, tmp_path)
        try:
            with closing(psycopg.connect(own.dsn)) as operator:
                operator.execute("LOCK TABLE pgworkers.job IN ROW EXCLUSIVE MODE")
                master = cluster.start(queues="default:1", wait=False, PYTHONPATH=newer, **UNHURRIED)
                wait_for(lambda: _waits(cluster, ""), what="the migration is inside")
                cluster.db.close()
                own.crash()
            own.start()
            cluster.reconnect()
            names = {row[0] for row in cluster.db.execute("SELECT name FROM pgworkers.migration")}
            assert set(old) <= names <= {*old, *(migration.name for migration in new)}
            wait_for(lambda: master.titles("idle") or master.process.poll() is not None)
            if (
                master.process.poll() is not None
            ):  # it may say so and leave; who starts it again finds a whole schema
                assert "Traceback" not in master.log(), master.log()
                cluster.start(queues="default:1", PYTHONPATH=newer)
            [job] = cluster.enqueue("work")
            cluster.until(job, "succeeded", timeout=T_DB + P + S + BUSY)
            assert audit(cluster.db, cluster.ledger, [job]) == []
        finally:
            cluster.close()
    finally:
        own.close()


@pytest.mark.long
def test_row_43_a_server_that_turns_read_only_under_a_host_is_waited_for(
    own_server: OwnServer, own_cluster: Cluster
) -> None:
    """As when a primary is demoted: open sessions get error 25006, new ones find a server that is not a primary."""
    cluster = own_cluster
    master = cluster.start(queues="default:2")
    jobs = cluster.enqueue("gate") + cluster.enqueue("work", 3, args={"gated": True})
    wait_for(lambda: len(read(cluster.ledger)) == 2)
    cluster.db.execute("SET default_transaction_read_only = off")  # the operator's own session
    cluster.db.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    cluster.db.execute("SELECT pg_reload_conf()")
    wait_for(lambda: "read-only transaction" in master.log(), what="a session met 25006")
    wait_for(
        lambda: "read-only" in master.log().replace("read-only transaction", ""),
        what="nor is a new one taken",
    )
    cluster.open_gate()
    wait_for(lambda: len([e for e in read(cluster.ledger) if e.kind == "END"]) >= 2, what="handlers go on")
    assert cluster.counts().get("succeeded", 0) == 0, "something was written: nothing was tested"
    cluster.db.execute("ALTER SYSTEM RESET default_transaction_read_only")
    cluster.db.execute("SELECT pg_reload_conf()")
    cluster.until_all_ended(timeout=T_DB + P + S + BUSY)
    assert cluster.counts() == {"succeeded": 4}
    assert {cluster.row(job)["lease"] for job in jobs} == {1}, "what ran was not repeated"
    assert audit(cluster.db, cluster.ledger, jobs) == []
    assert master.terminate() == 0, master.log()


def test_row_56_a_database_that_is_serializable_by_default(cluster: Cluster) -> None:
    """Every session says read committed itself: nothing of a life is refused for a serialization failure."""
    name = cluster.db.execute("SELECT current_database()").fetchone()
    assert name
    cluster.db.execute(f"ALTER DATABASE {name[0]} SET default_transaction_isolation = 'serializable'")
    cluster.reconnect()
    assert cluster.db.execute("SHOW transaction_isolation").fetchone() == ("serializable",)
    with psycopg.connect(
        cluster.dsn
    ) as watcher:  # while its snapshot lives, the server forgets no other's reading
        watcher.execute("SELECT FROM pgworkers.job LIMIT 1")
        _lives_and_drains(cluster)
        readers = watcher.execute(
            "SELECT DISTINCT pid FROM pg_locks WHERE mode = 'SIReadLock' AND pid <> ALL (%s)",
            [[watcher.info.backend_pid, cluster.db.info.backend_pid]],
        ).fetchall()
        assert readers == [], "a session of ours was serializable"


def _lives_and_drains(cluster: Cluster) -> None:
    hosts = [cluster.start(queues="default:2") for _ in range(2)]
    good = cluster.enqueue("work", 30, args={"seconds": 0.02})
    [failing] = cluster.enqueue("fail", args={"times": 1})
    [cancelled] = cluster.enqueue("work", args={"seconds": 60.0})
    wait_for(lambda: [e for e in read(cluster.ledger) if e.job == cancelled])
    cluster.db.execute("SELECT pgworkers.cancel(%s)", [cancelled])
    cluster.until_all_ended()
    assert cluster.counts() == {"succeeded": 31, "cancelled": 1}
    assert cluster.row(failing)["attempt"] == 2
    [long] = cluster.enqueue("gate")
    wait_for(lambda: [e for e in read(cluster.ledger) if e.job == long])
    hosts[0].signal(signal.SIGTERM)
    hosts[1].signal(signal.SIGTERM)
    assert [host.wait(D + K + S + BUSY) for host in hosts] == [0, 0], "they drain"
    row = cluster.row(long)
    assert (row["state"], row["host"]) == ("ready", None)
    for host in hosts:
        assert "serialize" not in host.log()
    assert audit(cluster.db, cluster.ledger, [*good, failing, cancelled, long]) == []


@pytest.mark.long
def test_row_42_a_server_without_a_free_connection_is_asked_seldom_and_waited_for(
    tmp_path: Path, bindir: Path | None, schema: str
) -> None:
    """A host that runs loses its sessions and gets no others; one that starts gets none at all."""
    own = OwnServer(tmp_path / "own", bindir, max_connections="30")
    taken: list[psycopg.Connection[object]] = []
    try:
        migrated(own.dsn, schema)
        with Proxy(own.dsn) as running, Proxy(own.dsn) as starting:
            cluster = Cluster(own.dsn, tmp_path)
            try:
                first = cluster.start(queues="default:1", dsn=running.dsn, PGWORKERS_RECONNECT_MAX_DELAY="2s")
                [job] = cluster.enqueue("gate")
                wait_for(lambda: read(cluster.ledger))
                wait_for(lambda: _fill_up(cluster, own.dsn, taken), what="every connection is taken")
                second = cluster.start(
                    queues="default:1", dsn=starting.dsn, wait=False, PGWORKERS_RECONNECT_MAX_DELAY="2s"
                )
                wait_for(lambda: "trying for" in second.log(), what="it says that it waits")
                assert "too many clients" in second.log(), "it was let in: nothing was tested"
                before, began = [one.counts["connections"] for one in (running, starting)], time.monotonic()
                wait_for(lambda: time.monotonic() - began > 6)
                took = time.monotonic() - began
                rates = [
                    (one.counts["connections"] - was) / took
                    for one, was in zip((running, starting), before, strict=True)
                ]
                cluster.open_gate()
                assert all(0 < rate < 5 for rate in rates), rates
                assert (first.process.poll(), second.process.poll()) == (None, None)
                for conn in taken:
                    conn.close()
                cluster.until(job, "succeeded", timeout=T_DB + 2 + BUSY)
                wait_for(
                    lambda: second.titles("idle"),
                    timeout=T_DB + 2 + BUSY,
                    what="the one that starts is there",
                )
                assert cluster.row(job)["lease"] == 1
                assert audit(cluster.db, cluster.ledger, [job]) == []
            finally:
                cluster.close()
    finally:
        for conn in taken:
            conn.close()
        own.close()


def _fill_up(cluster: Cluster, dsn: str, taken: list[psycopg.Connection[object]]) -> bool:
    """Take what is free, and take away what hosts have. True: they have nothing left, and nothing is free."""
    try:
        while True:
            taken.append(psycopg.connect(dsn, autocommit=True))
    except psycopg.OperationalError:
        pass
    row = cluster.db.execute(
        "SELECT count(pg_terminate_backend(pid, 1000)) FROM pg_stat_activity"
        " WHERE application_name LIKE 'pgworkers%'"
    ).fetchone()
    return row == (0,)


def _ticks(cluster: Cluster) -> list[object]:
    return [row[0] for row in cluster.db.execute("SELECT at FROM pgworkers.tick ORDER BY at").fetchall()]


def test_row_53_a_row_that_an_operator_holds_delays_no_other_job(cluster: Cluster) -> None:
    """Its end waits for the lock and is given up for now; the ends of the others go on meanwhile."""
    cluster.start(queues="default:2")
    [job] = cluster.enqueue("gate")
    wait_for(lambda: read(cluster.ledger))
    with psycopg.connect(cluster.dsn) as operator:
        operator.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE", [job])
        cluster.open_gate()
        wait_for(lambda: [e for e in read(cluster.ledger) if (e.job, e.kind) == (job, "END")])
        held = time.monotonic()
        others = cluster.enqueue("work", 6, args={"seconds": 0.05})
        for other in others:
            cluster.until(other, "succeeded", timeout=4 * (S + 1) + BUSY)
        assert cluster.state(job) == "running"
        wait_for(lambda: time.monotonic() - held > S + 1)
    row = cluster.until(job, "succeeded", timeout=S + BUSY)
    assert (row["attempt"], row["lease"]) == (1, 1)
    assert audit(cluster.db, cluster.ledger, [job, *others]) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.getuid() != 0:
        pytest.skip("NOT TESTED: a small disk needs root (mount)")
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=160m,mode=755", "tmpfs", str(disk)]
    made = subprocess.run(words, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"NOT TESTED: {made.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.long
def test_row_58_the_disk_of_the_server_is_full(
    request: pytest.FixtureRequest, small_disk: Path, tmp_path: Path, bindir: Path | None, schema: str
) -> None:
    own = OwnServer(small_disk / "own", bindir, min_wal_size="32MB", max_wal_size="32MB")
    try:
        migrated(own.dsn, schema)
        with audited_cluster(request, own.dsn, tmp_path) as cluster:
            master = cluster.start(queues="default:2")
            args = {"seconds": 0.1, "value": "x" * 2000}
            jobs = cluster.enqueue("work", 40, args=args, max_crashes=100)
            wait_for(lambda: len(read(cluster.ledger)) >= 4)
            full = _fill(small_disk)
            errors = 0
            until = time.monotonic() + 8
            while time.monotonic() < until and errors < 3:
                try:
                    cluster.enqueue(
                        "work", 50, args={"value": os.urandom(100_000).hex()}, run_at="2099-01-01"
                    )
                except (psycopg.errors.DiskFull, psycopg.OperationalError):
                    errors += 1
                    if cluster.db.closed:
                        break
                time.sleep(0.1)
            assert errors, "the disk was not full: nothing was tested"
            full.unlink()
            own.embedded.acquire()  # it may have given up
            cluster.reconnect()
            for job in jobs:
                cluster.until(job, "succeeded", timeout=60)
            assert master.process.poll() is None
            ids = [row[0] for row in cluster.db.execute("SELECT id FROM pgworkers.jobs")]
            assert audit(cluster.db, cluster.ledger, [*jobs, *ids]) == []
    finally:
        own.close()


def _fill(disk: Path) -> Path:
    full = disk / "full"
    with full.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 65536)
        except OSError:
            pass
    return full
