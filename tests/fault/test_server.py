"""Rows of part B about the server itself: it dies in the middle of a duty, an operator holds a row, the disk is full."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support.bounds import BUSY, T_DB, T_HOST, S
from support.forests import growing
from support.ledger import audit, read
from support.proxy import Proxy, mark
from support.server import OwnServer, migrated
from support.tree import Forest, wait_for

pytestmark = pytest.mark.timeout(300)


@pytest.mark.long
@pytest.mark.parametrize("duty", ["job/rescue", "schedule/fire"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_row_30_postgres_dies_in_the_middle_of_a_duty(
    own_server: OwnServer, own_forest: Forest, duty: str, moment: str
) -> None:
    """Before the statement arrived, or when it had committed and was not yet answered: the next round repairs all."""
    forest = own_forest
    if duty == "schedule/fire":
        forest.declare('app.schedule("* * * * * *", name="beat", missed="all")(work)')
    lost = forest.start(queues="default:2")
    jobs = forest.enqueue("work", 4, args={"seconds": 0.5}, max_crashes=20)
    wait_for(lambda: len(read(forest.ledger)) >= 2)
    lost.signal(signal.SIGKILL)
    lost.wait()
    with Proxy(own_server.dsn) as proxy:
        forest.start(queues="default:2", dsn=proxy.dsn)
        rule = proxy.lose_query(mark(duty)) if moment == "before" else proxy.hold_reply(mark(duty))
        wait_for(rule.done.is_set, timeout=T_HOST + 30, what="the duty is in the middle")
        forest.db.close()
        own_server.crash()
        own_server.start()
        rule.go.set()
        forest.reconnect()
        for job in jobs:
            forest.until(job, "succeeded", timeout=T_DB + T_HOST + BUSY)
        if duty == "schedule/fire":
            wait_for(lambda: len(_ticks(forest)) >= 3)
            forest.db.execute("UPDATE pgworkers.schedule SET paused = true, revision = revision + 1")
        forest.until_all_ended()
        for master in forest.masters[1:]:
            assert master.terminate() == 0
    if duty == "schedule/fire":
        ticks = _ticks(forest)
        made = forest.db.execute(
            "SELECT count(*), count(DISTINCT meta ->> 'tick') FROM pgworkers.jobs WHERE meta ? 'tick'"
        ).fetchone()
        assert made == (len(ticks), len(ticks))
    ids = [row[0] for row in forest.db.execute("SELECT id FROM pgworkers.jobs")]
    assert audit(forest.db, forest.ledger, ids) == []


def _ticks(forest: Forest) -> list[object]:
    return [row[0] for row in forest.db.execute("SELECT at FROM pgworkers.tick ORDER BY at").fetchall()]


def test_row_53_a_row_that_an_operator_holds_delays_no_other_job(forest: Forest) -> None:
    """Its end waits for the lock and is given up for now; the ends of the others go on meanwhile."""
    forest.start(queues="default:2")
    [job] = forest.enqueue("gate")
    wait_for(lambda: read(forest.ledger))
    with psycopg.connect(forest.dsn) as operator:
        operator.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE", [job])
        forest.open_gate()
        wait_for(lambda: [e for e in read(forest.ledger) if (e.job, e.kind) == (job, "END")])
        held = time.monotonic()
        others = forest.enqueue("work", 6, args={"seconds": 0.05})
        for other in others:
            forest.until(other, "succeeded", timeout=4 * (S + 1) + BUSY)
        assert forest.state(job) == "running"
        wait_for(lambda: time.monotonic() - held > S + 1)
    row = forest.until(job, "succeeded", timeout=S + BUSY)
    assert (row["attempt"], row["lease"]) == (1, 1)
    assert audit(forest.db, forest.ledger, [job, *others]) == []


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
        with growing(request, own.dsn, tmp_path) as forest:
            master = forest.start(queues="default:2")
            args = {"seconds": 0.1, "value": "x" * 2000}
            jobs = forest.enqueue("work", 40, args=args, max_crashes=100)
            wait_for(lambda: len(read(forest.ledger)) >= 4)
            full = _fill(small_disk)
            errors = 0
            until = time.monotonic() + 8
            while time.monotonic() < until and errors < 3:
                try:
                    forest.enqueue("work", 50, args={"value": os.urandom(100_000).hex()}, run_at="2099-01-01")
                except (psycopg.errors.DiskFull, psycopg.OperationalError):
                    errors += 1
                    if forest.db.closed:
                        break
                time.sleep(0.1)
            assert errors, "the disk was not full: nothing was tested"
            full.unlink()
            own.embedded.acquire()  # it may have given up
            forest.reconnect()
            for job in jobs:
                forest.until(job, "succeeded", timeout=60)
            assert master.process.poll() is None
            ids = [row[0] for row in forest.db.execute("SELECT id FROM pgworkers.jobs")]
            assert audit(forest.db, forest.ledger, [*jobs, *ids]) == []
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
