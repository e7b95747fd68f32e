"""A vacuum that is held back by an open snapshot: what looks only now and then does not walk over all that ever ran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.desk import Desk

from pgworkers.job import queue
from pgworkers.job.depth import depth
from pgworkers.job.mine import mine
from pgworkers.job.rescue import lost, rescue
from pgworkers.postgres.connect import STEADY
from pgworkers.postgres.statements import Query, Statement

Db = psycopg.Connection[Any]
JOBS = 2000


@pytest.fixture
def held_back(dsn: str) -> Iterator[Db]:
    """A database of its own, in which no dead row can be removed."""
    with psycopg.connect(dsn) as snapshot, psycopg.connect(dsn, autocommit=True) as db:
        for name, value in STEADY.items():  # as the sessions of a host
            db.execute(f"SET {name} = '{value}'")
        snapshot.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        snapshot.execute("SELECT count(*) FROM pgworkers.job")
        yield db


def blocks(db: Db, query: Query[Any]) -> int:
    """How many pages a statement touches."""
    with db.transaction(force_rollback=True):
        text = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query.statement.render("pgworkers")
        (found,) = db.execute(text, query.params).fetchone() or ([],)
    root = found[0]["Plan"]
    return int(root["Shared Hit Blocks"] + root["Shared Read Blocks"])


def ran(db: Db, host: str) -> None:
    """Jobs that this host ran to their end, as they look to the indexes."""
    db.execute("INSERT INTO pgworkers.job (queue, task) SELECT 'a', 't' FROM generate_series(1, %s)", [JOBS])
    db.execute("UPDATE pgworkers.job SET state = 'running', host = %s, lease = 1, claimed_at = now()", [host])
    db.execute("DELETE FROM pgworkers.job")


def test_a_rescue_passes_by_what_the_living_have_run(held_back: Db) -> None:
    desk = Desk(held_back, "pgworkers")
    others = [Desk(held_back, "pgworkers") for _ in range(3)]
    for one in (desk, *others):
        one.register()
    before = [blocks(held_back, query) for query in (rescue(desk.host, 10), lost(desk.host, 10))]
    for one in (desk, *others):
        ran(held_back, one.host)
    after = [blocks(held_back, query) for query in (rescue(desk.host, 10), lost(desk.host, 10))]
    walked = blocks(held_back, mine(desk.host, 0.0))  # the entries of one host
    assert walked > 50
    assert max(after) < max(before) + walked / 2


def test_a_look_at_the_depth_walks_over_them_once(held_back: Db) -> None:
    desk = Desk(held_back, "pgworkers")
    desk.register()
    desk.ask(queue.declare(["a"]))
    ran(held_back, desk.host)
    desk.put()
    claimable = "SELECT FROM pgworkers.job WHERE state = 'ready' AND NOT gated AND concurrency_key IS NULL AND queue = 'a'"
    running = "SELECT FROM pgworkers.job WHERE host IS NOT NULL"
    walks = [f"{claimable} ORDER BY priority DESC, id", f"{running} ORDER BY host"]
    once = sum(blocks(held_back, Query(Statement("walk", text), {}, len)) for text in walks)
    assert once > 50
    assert blocks(held_back, depth()) < 1.3 * once
