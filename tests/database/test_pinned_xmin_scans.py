"""A vacuum that is held back by an open snapshot: what looks only now and then does not walk over all that ever ran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.database_host import DatabaseHost

from pgworkers.job import claim, finish, hosts, queues
from pgworkers.job.gauges import start_depth_count
from pgworkers.job.hosts import jobs_of_host
from pgworkers.job.maintenance import rescue_candidates, rescue_jobs
from pgworkers.job.model import Verdict
from pgworkers.postgres.session_settings import HOST_PLANNER_SETTINGS
from pgworkers.postgres.statements import Query, Statement

Db = psycopg.Connection[Any]
JOBS = 2000


@pytest.fixture
def held_back(dsn: str) -> Iterator[Db]:
    """A database of its own, in which no dead row can be removed."""
    with psycopg.connect(dsn) as snapshot, psycopg.connect(dsn, autocommit=True) as db:
        for name, value in HOST_PLANNER_SETTINGS.items():  # as the sessions of a host
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
    host = DatabaseHost(held_back, "pgworkers")
    others = [DatabaseHost(held_back, "pgworkers") for _ in range(3)]
    for one in (host, *others):
        one.register()
    before = [
        blocks(held_back, query) for query in (rescue_jobs(host.id, 10), rescue_candidates(host.id, 10))
    ]
    for one in (host, *others):
        ran(held_back, one.id)
    after = [blocks(held_back, query) for query in (rescue_jobs(host.id, 10), rescue_candidates(host.id, 10))]
    walked = blocks(held_back, jobs_of_host(host.id, 0.0))  # the entries of one host
    assert walked > 50
    assert max(after) < max(before) + walked / 2


def test_a_look_at_the_depth_walks_over_them_once(held_back: Db) -> None:
    host = DatabaseHost(held_back, "pgworkers")
    host.register()
    host.execute(queues.declare_queues(["a"]))
    ran(held_back, host.id)
    host.enqueue()
    claimable = (
        "SELECT FROM pgworkers.job WHERE state = 'ready' AND NOT behind_limit AND concurrency_key IS NULL"
        " AND queue = 'a'"
    )
    running = "SELECT FROM pgworkers.job WHERE host IS NOT NULL"
    walks = [f"{claimable} ORDER BY priority DESC, id", f"{running} ORDER BY host"]
    once = sum(blocks(held_back, Query(Statement("walk", text), {}, len)) for text in walks)
    assert once > 50
    blocks(
        held_back, start_depth_count(1)
    )  # the first claim of a session also reads the catalog, for worker_counts()
    assert blocks(held_back, start_depth_count(1)) < 1.3 * once


def test_a_look_for_what_a_host_holds_passes_by_what_it_ran_before(held_back: Db) -> None:
    host = DatabaseHost(held_back, "pgworkers")
    host.register()
    for _ in range(5):
        ran(held_back, host.id)
    seen = host.execute(jobs_of_host(host.id, 0.0))
    everything = blocks(held_back, jobs_of_host(host.id, 0.0))
    assert everything > 50
    held_back.execute("VACUUM ANALYZE pgworkers.job")  # the planner believes that there is nothing
    assert blocks(held_back, jobs_of_host(host.id, 0.0)) < 1.3 * everything
    assert blocks(held_back, jobs_of_host(host.id, 0.0, seen.complete_until)) < 10
    ran(held_back, host.id)
    assert blocks(held_back, jobs_of_host(host.id, 0.0, seen.complete_until)) < everything / 2


def test_what_is_written_of_jobs_touches_their_rows_and_no_others(held_back: Db) -> None:
    """Analysed while nothing is left, with a snapshot held: each of these once walked over the whole primary key."""
    host, gone = DatabaseHost(held_back, "pgworkers"), DatabaseHost(held_back, "pgworkers")
    host.register()
    for _ in range(5):
        ran(held_back, host.id)
    held_back.execute("VACUUM ANALYZE pgworkers.job")
    for one in (host, gone):
        one.enqueue()
    (ours,), (theirs,) = host.claim(), gone.claim()
    held = [ours.fence]
    again = finish.JobRetry(**ours.fence._asdict(), verdict=Verdict.ERROR, delay_seconds=60.0)
    queries: list[Query[Any]] = [
        finish.retry(host.id, [again]),
        finish.release(host.id, held),
        finish.save_progress(host.id, [finish.ProgressUpdate(*ours.fence, "1", None)]),
        rescue_jobs(host.id, 10),
        hosts.prune_hosts(10),
    ]
    walked = blocks(
        held_back, Query(Statement("walk", "SELECT FROM pgworkers.job WHERE id > 0 ORDER BY id"), {}, len)
    )
    assert walked > 1000
    for query in queries:
        assert blocks(held_back, query) < walked / 5, query.statement.name
    assert theirs.id in [job.id for job in host.execute(rescue_jobs(host.id, 10))], (
        "and it does find what it is for"
    )


def test_the_oldest_are_sought_at_the_places_and_a_step_ends_where_it_should(held_back: Db) -> None:
    host = DatabaseHost(held_back, "pgworkers")
    for _ in range(10):
        ran(held_back, host.id)
    late = host.enqueue(priority=-5)
    (newest,) = held_back.execute("SELECT max(id) FROM pgworkers.job").fetchone() or (0,)
    wants = [claim.QueueCapacity("a", 5)]
    places = [claim.ScanRange(0, 0, newest + 1), claim.ScanRange(claim.LOWEST_PRIORITY, -1, 0)]
    step = [claim.ScanRange(0, 0, 1, 100), *places]
    for aged in (None, 0.0):
        head = blocks(held_back, claim.claim(host.id, wants, ["t"], aged))
        assert head > 200
        for ranges in (places, step):
            query = claim.claim(host.id, wants, ["t"], aged, scan_ranges={"a": ranges})
            assert blocks(held_back, query) < head / 4, (aged, ranges)
    query = claim.claim(host.id, wants, ["t"], 0.0, scan_ranges={"a": step})
    assert [job.id for job in host.execute(query)] == [late]
