"""Rows of part B about what the server itself has only so much of: room for notifications, transaction ids."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.bounds import BUSY, P, S
from support.command import Command
from support.ledger import audit, read
from support.server import OwnServer, migrated
from support.tree import Forest, wait_for

pytestmark = pytest.mark.timeout(300)


def _finding(forest: Forest, check: str) -> dict[str, Any]:
    said = Command(forest.directory, PGWORKERS_DSN=forest.dsn)("doctor", "-o", "json", code=None).json()
    found: dict[str, Any] = next(row for row in said if row["check"] == check)
    return found


@pytest.fixture
def little_room(tmp_path: Path, bindir: Path | None, schema: str) -> Iterator[Forest]:
    """A server whose queue of notifications holds 512 kB instead of 8 GB."""
    try:
        own = OwnServer(tmp_path / "own", bindir, max_notify_queue_pages="64")
    except Exception as why:
        pytest.skip(f"NOT TESTED: a queue of notifications that can be filled needs Postgres 17 ({why})")
    try:
        migrated(own.dsn, schema)
        forest = Forest(own.dsn, tmp_path)
        try:
            yield forest
        finally:
            forest.close()
    finally:
        own.close()


@pytest.mark.long
def test_row_51_a_full_queue_of_notifications_refuses_nothing_of_ours(little_room: Forest) -> None:
    """Somebody listens in a transaction that does not end. Who notifies fails; jobs come, run and end by the poll."""
    forest = little_room
    forest.start(queues="default:2")
    [held] = forest.enqueue("gate")
    wait_for(lambda: read(forest.ledger), what="a job that runs")
    _somebody_sleeps(forest)
    with psycopg.connect(forest.dsn) as stuck:
        stuck.execute("LISTEN pgworkers")
        stuck.execute("LISTEN pgworkers_done")
        stuck.commit()
        stuck.execute("SELECT 1")  # and never ends
        fill = "SELECT pg_notify('foreign', lpad(n::text, 7900, 'x')) FROM generate_series(1, %s) n"
        for _ in range(64):
            with contextlib.suppress(psycopg.errors.ProgramLimitExceeded):
                forest.db.execute(fill, [1])
        jobs = [held, *forest.enqueue("work")]
        with forest.db.transaction():
            jobs += forest.enqueue("work", 2)  # always notifies: it cannot know who sleeps when it commits
        jobs += forest.enqueue("work", delay="0.2 s")
        for job in jobs[1:]:
            forest.until(job, "succeeded", timeout=3 * (P + S) + BUSY)
        [failing] = forest.enqueue("fail", max_attempts=1)
        forest.until(failing, "dead", timeout=P + S + BUSY)
        [never] = forest.enqueue("work", delay="1 h")
        for job, end in ((never, "cancelled"), (held, "cancelled")):
            assert forest.db.execute("SELECT pgworkers.cancel(%s)", [job]).fetchone() is not None
            forest.until(job, end, timeout=2 * (P + S) + BUSY)
        full = _finding(forest, "notify")
        assert (full["level"], full["facts"]["used"] >= 0.9) == ("fail", True), full
        assert "nobody is notified" in full["why"]
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):  # it was full all the time
            forest.db.execute(fill, [1])
    wait_for(
        lambda: _finding(forest, "notify")["level"] == "ok", what="room again, and a notification that comes"
    )
    with psycopg.connect(forest.dsn, autocommit=True) as ear:
        ear.execute("LISTEN pgworkers")
        _somebody_sleeps(forest)
        jobs += forest.enqueue("work")
        assert next(ear.notifies(timeout=BUSY)).payload == "ready:default"
    forest.until(jobs[-1], "succeeded")
    assert audit(forest.db, forest.ledger, [*jobs, failing, never]) == []


def _somebody_sleeps(forest: Forest) -> None:
    look = "SELECT count(*) FROM pgworkers.asleep WHERE queue = 'default'"
    wait_for(lambda: forest.db.execute(look).fetchone() == (1,), what="a host that wants to be told")
