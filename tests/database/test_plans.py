"""The plans of the hot statements, under empty, fresh and stale statistics: always the index, never the trap.

The trap (PERFORMANCE.md): analysed at a moment when nothing runs, the planner takes the running ones for none and answers a
finish from a partial index full of dead entries. `test_the_trap_is_real` shows it with the index that would allow it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.desk import Desk

from pgworkers.job import claim, finish, progress, release, renew, retry
from pgworkers.job.finish import End
from pgworkers.job.progress import Saved
from pgworkers.job.retry import Again
from pgworkers.job.state import State, Verdict
from pgworkers.postgres.statements import Query, Statement

IDS = list(range(5000, 5100))


def fill(conn: psycopg.Connection[Any], count: int = 20_000) -> None:
    conn.execute(
        "INSERT INTO pgworkers.job (queue, task) SELECT 'q' || n %% 4, 't' FROM generate_series(1, %s) n",
        [count],
    )


def empty(conn: psycopg.Connection[Any]) -> None:
    """Never analysed, as right after the first start; the rows came after."""
    fill(conn)


def fresh(conn: psycopg.Connection[Any]) -> None:
    """Analysed while nothing runs; then a thousand are claimed."""
    fill(conn)
    conn.execute("VACUUM ANALYZE pgworkers.job")


def stale(conn: psycopg.Connection[Any]) -> None:
    """Analysed when the table was empty; the rows came after."""
    conn.execute("VACUUM ANALYZE pgworkers.job")
    fill(conn)


def churned(conn: psycopg.Connection[Any]) -> None:
    """Many jobs came and went since the last vacuum: indexes full of dead entries, few rows."""
    fill(conn)
    conn.execute("UPDATE pgworkers.job SET state = 'running', host = gen_random_uuid(), lease = 1")
    conn.execute("DELETE FROM pgworkers.job WHERE id > 6000")
    conn.execute("UPDATE pgworkers.job SET state = 'ready', host = NULL, lease = 0")
    conn.execute("ANALYZE pgworkers.job")


STATISTICS = [empty, fresh, stale, churned]
HELD = [(job_id, 1) for job_id in IDS]
QUERIES: dict[str, Query[Any]] = {
    "finish": finish.finish(
        "00000000-0000-0000-0000-000000000001",
        [End(id=n, lease=1, state=State.SUCCEEDED, verdict=Verdict.SUCCEEDED, result="1") for n in IDS],
    ),
    "retry": retry.retry(
        "00000000-0000-0000-0000-000000000001",
        [Again(id=n, lease=1, verdict=Verdict.ERROR, after=1.0, error="x") for n in IDS],
    ),
    "release": release.release(HELD),
    "progress": progress.save([Saved(n, 1, "1", None) for n in IDS]),
    "renew": renew.renew("00000000-0000-0000-0000-000000000001", HELD, "running", "[]"),
}


def scans(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every node of a plan that reads the table `job`."""
    if node.get("Relation Name") == "job" or node.get("Index Name", "").startswith("job_"):
        yield node
    for child in node.get("Plans", []):
        yield from scans(child)


def plan(
    conn: psycopg.Connection[Any], statement: Statement, params: Any, *, generic: bool
) -> list[dict[str, Any]]:
    """How the statement reads `job`, planned for these values or for any."""
    with conn.transaction(force_rollback=True):
        conn.execute("SET LOCAL plan_cache_mode = force_generic_plan" if generic else "SELECT")
        cursor = conn.execute(
            b"EXPLAIN (FORMAT JSON) " + statement.render("pgworkers"), params, prepare=generic
        )
        (found,) = cursor.fetchone() or ([],)
        root = (found if isinstance(found, list) else json.loads(found))[0]["Plan"]
    return list(scans(root))


@pytest.fixture
def own(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Statistics and dead rows are part of the test: a database of its own."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn


@pytest.mark.parametrize("statistics", STATISTICS)
def test_what_follows_a_claim_finds_its_rows_by_primary_key(
    own: psycopg.Connection[Any], statistics: Callable[[psycopg.Connection[Any]], None]
) -> None:
    statistics(own)
    own.execute(
        "UPDATE pgworkers.job SET state = 'running', host = gen_random_uuid(), lease = 1 WHERE id BETWEEN 5000 AND 6000"
    )
    for name, query in QUERIES.items():
        for generic in (False, True):
            found = plan(own, query.statement, query.params, generic=generic)
            ways = {(node["Node Type"], node.get("Index Name")) for node in found}
            ways -= {("ModifyTable", None)}
            assert ways == {("Index Scan", "job_pkey")}, (name, generic)


@pytest.mark.parametrize("statistics", STATISTICS)
def test_a_claim_walks_the_ready_index_in_order(
    own: psycopg.Connection[Any], statistics: Callable[[psycopg.Connection[Any]], None]
) -> None:
    statistics(own)
    wants = [claim.Wants("q0", 50), claim.Wants("q1", 50)]
    for aged in (None, 60.0):
        query = claim.claim("00000000-0000-0000-0000-000000000001", wants, ["t"], aged=aged)
        for generic in (False, True):
            found = plan(own, query.statement, query.params, generic=generic)
            ways = {(node["Node Type"], node.get("Index Name")) for node in found} - {("ModifyTable", None)}
            probe = (
                "Index Only Scan" if ("Index Only Scan", "job_lane") in ways else "Index Scan",
                "job_lane",
            )
            ways -= {("Index Only Scan", "job_ready")}  # the priorities of an aged claim
            assert ways == {("Index Scan", "job_ready"), probe, ("Tid Scan", None)}, (aged, generic)


def test_jobs_without_a_limit_pay_one_probe_of_an_empty_index(own: psycopg.Connection[Any]) -> None:
    fresh(own)
    query = claim.claim("00000000-0000-0000-0000-000000000001", [claim.Wants("q0", 50)], ["t"])
    with own.transaction(force_rollback=True):
        cursor = own.execute(
            b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query.statement.render("pgworkers"), query.params
        )
        (found,) = cursor.fetchone() or ([],)
    nodes = list(scans(found[0]["Plan"]))
    (probe,) = [node for node in nodes if node.get("Index Name") == "job_lane"]
    assert (probe["Actual Rows"], probe["Shared Hit Blocks"] + probe["Shared Read Blocks"]) <= (0, 2)
    (admit,) = [node for node in _all(found[0]["Plan"]) if node.get("Function Name") == "admit"]
    assert admit["Actual Loops"] == 0


def _all(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _all(child)


def test_the_trap_is_real(own: psycopg.Connection[Any]) -> None:
    """With an index on what runs by state, fresh statistics lead a plain guarded join into it."""
    own.execute("DROP INDEX pgworkers.job_running")
    own.execute("CREATE INDEX job_trap ON pgworkers.job (host) WHERE state = 'running'")
    fresh(own)
    plain = Statement(
        "plain",
        "DELETE FROM pgworkers.job j USING unnest(%(ids)s::bigint[], %(leases)s::integer[]) AS e (id, lease)"
        " WHERE j.id = e.id AND j.lease = e.lease AND j.state = 'running'",
    )
    found = plan(own, plain, {"ids": IDS, "leases": [1] * len(IDS)}, generic=False)
    assert "job_trap" in {node.get("Index Name") for node in found}


def test_a_finish_of_a_hundred_reads_a_hundred_rows_however_many_are_dead(
    own: psycopg.Connection[Any],
) -> None:
    churned(own)
    desk = Desk(own, "pgworkers")
    desk.register()
    jobs = desk.take(100, queue="q1")
    ends = [End(id=j.id, lease=j.lease, state=State.SUCCEEDED, verdict=Verdict.SUCCEEDED) for j in jobs]
    query = finish.finish(desk.host, ends)
    with own.transaction(force_rollback=True):
        cursor = own.execute(
            b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query.statement.render("pgworkers"), query.params
        )
        (found,) = cursor.fetchone() or ([],)
    reads = [node for node in scans(found[0]["Plan"]) if node["Node Type"] == "Index Scan"]
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in reads) == 200, (
        "once to lock, once to delete"
    )
    assert all(node["Shared Hit Blocks"] + node["Shared Read Blocks"] < 100 * 12 for node in reads)
