"""What a claim reads where jobs stand behind limits: the same however many of them wait. Pages are counted, not seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.desk import Desk

from pgworkers.job import claim
from pgworkers.postgres.connect import STEADY
from pgworkers.postgres.statements import Query

Db = psycopg.Connection[Any]
#: Claims that are measured: each begins at a lane of its own.
TRIES = 8


@pytest.fixture
def db(dsn: str) -> Iterator[Db]:
    """A database of its own: dead rows and statistics are part of the test. The session is like those of a host."""
    options = " ".join(f"-c {name}={value}" for name, value in STEADY.items())
    with psycopg.connect(dsn, autocommit=True, options=options) as conn:
        yield conn


@pytest.fixture
def desk(db: Db) -> Desk:
    desk = Desk(db, "pgworkers")
    desk.register()
    return desk


def pages(db: Db, query: Query[Any]) -> int:
    """How many pages a statement touches, those that its functions touch included; what it does is undone."""
    with db.transaction(force_rollback=True):
        text = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query.statement.render("pgworkers")
        (found,) = db.execute(text, query.params).fetchone() or ([],)
    root = found[0]["Plan"]
    return int(root["Shared Hit Blocks"] + root["Shared Read Blocks"])


def most_pages(db: Db, query: Query[Any]) -> int:
    """The dearest of some tries. The first reads the catalog, too, and is not counted."""
    return max([pages(db, query) for _ in range(TRIES + 1)][1:])


def wait_with_keys(db: Db, jobs: int, keys: int, task: str = "t", queue: str = "a") -> None:
    db.execute(
        "INSERT INTO pgworkers.job (queue, task, concurrency_key)"
        " SELECT %s, %s, 'tenant ' || n %% %s FROM generate_series(1, %s) n",
        [queue, task, keys, jobs],
    )


@pytest.mark.parametrize("keys", [2, 7, 99])
def test_a_claim_of_jobs_with_few_keys_reads_the_same_beside_ten_times_as_many(
    db: Db, desk: Desk, keys: int
) -> None:
    query = claim.claim(desk.host, [claim.Wants("a", 10)], ["t"])
    wait_with_keys(db, 2_000, keys)
    before = most_pages(db, query)
    wait_with_keys(db, 18_000, keys)
    db.execute("VACUUM ANALYZE pgworkers.job")
    assert most_pages(db, query) < 1.5 * before + 50
