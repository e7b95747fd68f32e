"""The plans of the hot statements, under empty, fresh and stale statistics: always the index, never the trap.

The trap: analysed at a moment when nothing runs, the planner takes the running ones for none and answers a
finish from a partial index full of dead entries. `test_the_trap_is_real` shows it with the index that would allow it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

import psycopg
import pytest
from support.database_host import DatabaseHost
from test_statements import NO_PLAN, statements

from pgworkers.job import claim, finish, gauges, hosts, maintenance, model
from pgworkers.job.finish import JobFinish, JobRetry, ProgressUpdate
from pgworkers.job.model import JobState, Verdict
from pgworkers.postgres.connect import aconnect
from pgworkers.postgres.session_settings import HOST_PLANNER_SETTINGS, HOST_ROLES
from pgworkers.postgres.statements import Query, Statement
from pgworkers.settings import Settings
from pgworkers.states import ConnectionRole

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


def vacant(conn: psycopg.Connection[Any]) -> None:
    """Planned while there is nothing, as on an idle system after a vacuum: the plan is kept, then a million jobs come."""
    conn.execute("VACUUM ANALYZE pgworkers.job")


def deserted(conn: psycopg.Connection[Any]) -> None:
    """Nothing is left of many jobs but pages, as when a vacuum is held back: all of an index seems to be free."""
    fill(conn)
    conn.execute(
        "UPDATE pgworkers.job SET state = 'running', host = gen_random_uuid(), lease = 1, claimed_at = now()"
    )
    conn.execute("DELETE FROM pgworkers.job")
    conn.execute("ANALYZE pgworkers.job")
    found = conn.execute(
        "SELECT reltuples, relpages > 100 FROM pg_class WHERE oid = 'pgworkers.job'::regclass"
    )
    assert found.fetchone() == (0, True)


def between_other_queues(conn: psycopg.Connection[Any]) -> None:
    """Nearly all jobs wait in another queue: there are many of them between two ids of this queue."""
    conn.execute(
        "INSERT INTO pgworkers.job (queue, task) SELECT 'other', 't' FROM generate_series(1, 20000) n"
    )
    fill(conn, 200)
    conn.execute("VACUUM ANALYZE pgworkers.job")


STATISTICS = [empty, fresh, stale, churned, vacant, deserted, between_other_queues]
HELD = [model.Fence(job_id, 1, 10**15) for job_id in IDS]
QUERIES: dict[str, Query[Any]] = {
    "finish": finish.finish(
        "00000000-0000-0000-0000-000000000001",
        [
            JobFinish(**one._asdict(), state=JobState.SUCCEEDED, verdict=Verdict.SUCCEEDED, result="1")
            for one in HELD
        ],
    ),
    "retry": finish.retry(
        "00000000-0000-0000-0000-000000000001",
        [JobRetry(**one._asdict(), verdict=Verdict.ERROR, delay_seconds=1.0, error="x") for one in HELD],
    ),
    "release": finish.release("00000000-0000-0000-0000-000000000001", HELD),
    "progress": finish.save_progress(
        "00000000-0000-0000-0000-000000000001", [ProgressUpdate(*one, "1", None) for one in HELD]
    ),
    "renew": hosts.renew_lease("00000000-0000-0000-0000-000000000001", HELD, "running", "[]"),
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
    if generic:
        return list(scans(planned(conn, statement)))
    cursor = conn.execute(b"EXPLAIN (FORMAT JSON) " + statement.render("pgworkers"), params)
    return list(scans((cursor.fetchone() or ([],))[0][0]["Plan"]))


def planned(conn: psycopg.Connection[Any], statement: Statement) -> dict[str, Any]:
    """The plan for any values. (An EXPLAIN with parameters is always planned for its own.)"""
    text, names = statement.numbered("pgworkers")
    conn.execute("SET plan_cache_mode = force_generic_plan")
    conn.execute(b"PREPARE planned AS " + text)
    try:
        values = f"({', '.join(['NULL'] * len(names))})" if names else ""
        cursor = conn.execute(f"EXPLAIN (FORMAT JSON) EXECUTE planned {values}".encode())
        return cast("dict[str, Any]", (cursor.fetchone() or ([],))[0][0]["Plan"])
    finally:
        conn.execute("DEALLOCATE planned")


def ways(found: list[dict[str, Any]]) -> set[tuple[str, str | None]]:
    """The indexes by which rows are read. A scan without an index condition is named `whole …`; few queries may use it."""
    return {
        (node["Node Type"], node.get("Index Name"))
        if "Index Cond" in node or node["Node Type"] == "Tid Scan"
        else (f"whole {node['Node Type']}", node.get("Index Name"))
        for node in found
        if node["Node Type"] != "ModifyTable"
    }


@pytest.fixture
def own(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Statistics and dead rows are part of the test: a database of its own. The session is like those of a host."""
    options = " ".join(f"-c {name}={value}" for name, value in HOST_PLANNER_SETTINGS.items())
    with psycopg.connect(dsn, autocommit=True, options=options) as conn:
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
            assert ways(found) == {("Index Scan", "job_pkey")}, (name, generic)


@pytest.mark.parametrize("statistics", STATISTICS)
def test_a_claim_walks_the_ready_index_in_order(
    own: psycopg.Connection[Any], statistics: Callable[[psycopg.Connection[Any]], None]
) -> None:
    statistics(own)
    wants = [claim.QueueCapacity("q0", 50), claim.QueueCapacity("q1", 50)]
    step = [claim.ScanRange(0, 0, 5001, 6000), claim.ScanRange(0, 0, 6001)]
    for aged, places in ((None, None), (None, {"q0": step}), (60.0, None), (60.0, {"q0": step})):
        query = claim.claim("00000000-0000-0000-0000-000000000001", wants, ["t"], aged, scan_ranges=places)
        for generic in (False, True):
            found = plan(own, query.statement, query.params, generic=generic)
            seen = ways(found)
            probe = (
                "Index Only Scan" if ("Index Only Scan", "job_ready_by_task") in seen else "Index Scan",
                "job_ready_by_task",
            )
            seen -= {("Index Only Scan", "job_ready")}  # the priorities of an aged claim
            assert seen == {("Index Scan", "job_ready"), probe, ("Tid Scan", None)}, (aged, places, generic)


@pytest.mark.parametrize("statistics", STATISTICS)
def test_slots_are_counted_by_the_index_of_their_limit(
    own: psycopg.Connection[Any], statistics: Callable[[psycopg.Connection[Any]], None]
) -> None:
    statistics(own)
    for call, index in (
        ("free_slots_of_task(%(task)s)", "job_running_by_task"),
        ("free_slots_of_key(%(task)s, %(key)s)", "job_running_by_key"),
    ):
        statement = Statement("room", f"SELECT * FROM pgworkers.{call}")
        for generic in (False, True):
            found = ways(plan(own, statement, {"task": "t", "key": "k"}, generic=generic))
            found = {(way.replace("Only ", ""), name) for way, name in found}
            assert found == {("Index Scan", index), ("Index Scan", "job_pkey")}, (
                "those of the mark by their id"
            )


@pytest.mark.parametrize("statistics", STATISTICS)
def test_the_first_jobs_of_a_task_are_read_in_the_order_of_their_index(
    own: psycopg.Connection[Any], statistics: Callable[[psycopg.Connection[Any]], None]
) -> None:
    statistics(own)
    call = "first_limited_jobs(%(queue)s, %(task)s, %(priority)s, %(first)s, %(newest)s, %(count)s)"
    params = {"queue": "q0", "task": "t", "priority": 1 << 31, "first": 0, "newest": 0, "count": 100}
    statement = Statement("first", f"SELECT * FROM pgworkers.{call}")
    for generic in (False, True):
        assert ways(plan(own, statement, params, generic=generic)) == {("Index Scan", "job_ready_by_task")}


def test_jobs_without_a_limit_pay_one_probe_of_an_empty_index(own: psycopg.Connection[Any]) -> None:
    fresh(own)
    query = claim.claim("00000000-0000-0000-0000-000000000001", [claim.QueueCapacity("q0", 50)], ["t"])
    called = (
        "SELECT funcname FROM pg_stat_xact_user_functions"
        " WHERE funcname IN ('choose_claimed_jobs', 'admit_limited_jobs')"
    )
    with own.transaction(force_rollback=True):
        own.execute("SET LOCAL track_functions = 'all'")
        cursor = own.execute(
            b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query.statement.render("pgworkers"), query.params
        )
        (found,) = cursor.fetchone() or ([],)
        assert own.execute(called).fetchall() == []
        own.execute("INSERT INTO pgworkers.job (queue, task, concurrency_key) VALUES ('q0', 't', 'k')")
        own.execute(query.statement.render("pgworkers"), query.params)
        assert len(own.execute(called).fetchall()) == 2, "the twin: with a limit they are called"
    nodes = list(scans(found[0]["Plan"]))
    (probe,) = [node for node in nodes if node.get("Index Name") == "job_ready_by_task"]
    assert (probe["Actual Rows"], probe["Shared Hit Blocks"] + probe["Shared Read Blocks"]) <= (0, 2)


@pytest.mark.parametrize("statistics", STATISTICS)
def test_what_is_due_is_found_in_the_order_of_its_time(
    own: psycopg.Connection[Any], statistics: Callable[[psycopg.Connection[Any]], None]
) -> None:
    statistics(own)
    for query, index in (
        (maintenance.promote_due(100), "job_scheduled"),
        (maintenance.expire_jobs(100), "job_expires"),
    ):
        for generic in (False, True):
            found = plan(own, query.statement, query.params, generic=generic)
            # When the next one is due: the first of the index.
            seen = {way for way in ways(found) if way[0].removeprefix("whole ") != "Index Only Scan"}
            assert seen == {("Index Scan", index), ("Tid Scan", None)}, (index, generic)


@pytest.mark.parametrize("statistics", STATISTICS)
def test_a_slice_of_a_count_is_read_in_the_order_of_its_index(
    own: psycopg.Connection[Any], statistics: Callable[[psycopg.Connection[Any]], None]
) -> None:
    statistics(own)
    for statement, index in (
        (gauges._GAUGE_DEPTH_READY, "job_ready"),
        (gauges._GAUGE_DEPTH_SCHEDULED, "job_scheduled"),
    ):
        assert ways(list(scans(planned(own, statement)))) == {("Index Scan", index)}


#: Statements that may scan an index without a bound, and why.
WHOLE = {
    "gauge_depth": "counts what there is, a bounded number of rows, and rests fifty times as long as it took",
    "due_duties": "the first of an index in the order of time, nothing else",
    "promote": "when the next one is due: the first of the index",
}
#: What people ask, and what `run --burst` asks for them.
ASKED_BY_PEOPLE = {
    "query_attempts",
    "query_jobs",
    "query_job",
    "query_hosts",
    "query_queues",
    "query_search",
    "query_statuses",
    "query_workers",
    "burst_busy_hosts",
    "burst_left_behind",
    "burst_unfinished",
    "concurrency_list",
}


@pytest.mark.parametrize("statistics", STATISTICS)
def test_no_statement_of_a_host_walks_over_a_whole_index(
    own: psycopg.Connection[Any], statistics: Callable[[psycopg.Connection[Any]], None]
) -> None:
    """All that the sessions of a host ever send. What people ask is planned by sessions like any other's."""
    statistics(own)
    walks = {}
    for path, statement in statements():
        if path.parent.name in ("doctor", "bench") or statement.name in ASKED_BY_PEOPLE:
            continue
        if not NO_PLAN.match(statement.render("pgworkers").decode()) and "pgworkers.job" in statement.text:
            found = ways(list(scans(planned(own, statement))))
            if whole := {way for way in found if way[0].startswith(("whole", "Seq"))}:
                walks[statement.name] = whole
    assert set(walks) <= set(WHOLE), walks


def test_a_join_by_an_equals_sign_would_walk_over_the_primary_key(
    own: psycopg.Connection[Any],
) -> None:
    """The twin: with an equals sign, what a retry changes is sought from the other side of the join."""
    deserted(own)
    text = finish.retry("00000000-0000-0000-0000-000000000001", []).statement.text
    assert ways(list(scans(planned(own, Statement("retry", text))))) == {("Index Scan", "job_pkey")}
    alone = text.replace("j.id BETWEEN a.id AND a.id", "j.id = a.id")
    assert ("whole Index Scan", "job_pkey") in ways(list(scans(planned(own, Statement("alone", alone)))))


def test_a_vacant_table_is_a_trap_for_an_ordinary_session(dsn: str) -> None:
    """Without the settings of a host's sessions, each of these statements would be planned as a scan of the whole table."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        vacant(conn)
        for name, query in QUERIES.items():
            found = plan(conn, query.statement, query.params, generic=True)
            assert "Seq Scan" in {node["Node Type"] for node in found}, name


def test_sessions_of_a_host_are_steady(dsn: str) -> None:
    async def work() -> None:
        for role in HOST_ROLES:
            conn = await aconnect(Settings(dsn=dsn), dsn, role)
            async with conn:
                for name, value in HOST_PLANNER_SETTINGS.items():
                    cursor = await conn.execute("SELECT current_setting(%s)", [name])
                    assert await cursor.fetchone() == (value,), role

    asyncio.run(work())
    assert {*ConnectionRole, "duties"} == HOST_ROLES


def test_with_a_million_rows_each_statement_reads_what_it_changes(own: psycopg.Connection[Any]) -> None:
    """Rows and pages, not seconds: a claim of 100 from a million, what may become of them; planned while it was vacant."""
    vacant(own)
    host = DatabaseHost(own, "pgworkers")
    host.register()
    host.claim(0), host.execute(finish.release(host.id, []))  # prepared now: the plan is kept
    (index,) = own.execute("SELECT pg_get_indexdef('pgworkers.job_ready'::regclass)").fetchone() or ("",)
    own.execute("DROP INDEX pgworkers.job_ready")  # built afterwards: a third of the time
    own.execute(
        "INSERT INTO pgworkers.job (queue, task, priority)"
        " SELECT 'q' || n % 4, 't', n % 3 FROM generate_series(1, 1000000) n"
    )
    own.execute(index)
    own.execute(
        "INSERT INTO pgworkers.job (queue, task, state, run_at)"
        " SELECT 'q0', 't', 'scheduled', now() + (n - 100) * interval '1 second' FROM generate_series(1, 10000) n"
    )
    host_id = host.id
    wants = [claim.QueueCapacity(f"q{n}", 25) for n in range(4)]
    read = _pages(own, claim.claim(host_id, wants, ["t"]))
    assert read["rows"] == 200, "each is found once and changed once"
    assert read["pages"] < 100 * 25
    jobs = host.execute(claim.claim(host_id, wants, ["t"]))
    held = [job.fence for job in jobs]
    ends = [JobFinish(**one._asdict(), state=JobState.SUCCEEDED, verdict=Verdict.SUCCEEDED) for one in held]
    agains = [JobRetry(**one._asdict(), verdict=Verdict.ERROR, delay_seconds=1.0) for one in held]
    queries: list[Query[Any]] = [
        finish.finish(host_id, ends), finish.retry(host_id, agains), finish.release(host_id, held),
        maintenance.promote_due(100),
    ]  # fmt: skip
    for query in queries:
        read = _pages(own, query)
        assert read["rows"] <= 201, query.statement.name
        assert read["pages"] < 100 * 25, query.statement.name


def _pages(conn: psycopg.Connection[Any], query: Query[Any]) -> dict[str, int]:
    """How many rows of `job` a statement reads, and how many pages it touches to do so. Changes nothing."""
    with conn.transaction(force_rollback=True):
        cursor = conn.execute(
            b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query.statement.render("pgworkers"), query.params
        )
        (found,) = cursor.fetchone() or ([],)
    nodes = [node for node in scans(found[0]["Plan"]) if node["Node Type"] != "ModifyTable"]
    return {
        "rows": sum(round(node["Actual Rows"] * node["Actual Loops"]) for node in nodes),
        "pages": sum(node["Shared Hit Blocks"] + node["Shared Read Blocks"] for node in nodes),
    }


def test_the_trap_is_real(own: psycopg.Connection[Any]) -> None:
    """With an index on what runs by state, fresh statistics lead a plain guarded join into it."""
    own.execute("RESET ALL")
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
    host = DatabaseHost(own, "pgworkers")
    host.register()
    jobs = host.claim(100, queue="q1")
    ends = [JobFinish(**j.fence._asdict(), state=JobState.SUCCEEDED, verdict=Verdict.SUCCEEDED) for j in jobs]
    query = finish.finish(host.id, ends)
    with own.transaction(force_rollback=True):
        cursor = own.execute(
            b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query.statement.render("pgworkers"), query.params
        )
        (found,) = cursor.fetchone() or ([],)
    reads = [node for node in scans(found[0]["Plan"]) if node["Node Type"] not in ("ModifyTable", "LockRows")]
    assert len(reads) == 2, "found once to be locked, and once to be deleted"
    for read in reads:
        assert read["Index Name"] == "job_pkey"
        assert read["Actual Rows"] * read["Actual Loops"] == 100
        assert read["Shared Hit Blocks"] + read["Shared Read Blocks"] < 100 * 12


def test_what_is_written_of_many_jobs_is_read_once(own: psycopg.Connection[Any]) -> None:
    """No join goes through what was sent once more for each row: 500 jobs would be 250,000 steps."""
    deserted(own)
    host = DatabaseHost(own, "pgworkers")
    host.register()
    own.execute("INSERT INTO pgworkers.job (queue, task) SELECT 'a', 't' FROM generate_series(1, 500)")
    held = [job.fence for job in host.claim(500)]
    assert len(held) == 500
    agains = [JobRetry(**one._asdict(), verdict=Verdict.ERROR, delay_seconds=1.0) for one in held]
    queries: list[Query[Any]] = [
        finish.retry(host.id, agains),
        finish.release(host.id, held),
        finish.save_progress(host.id, [ProgressUpdate(*one, "1", None) for one in held]),
        maintenance.rescue_jobs("00000000-0000-0000-0000-000000000001", 500),
    ]
    for query in queries:
        with own.transaction(force_rollback=True):
            own.execute("UPDATE pgworkers.host SET renewed_at = now() - interval '1 hour'")
            own.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            text = b"EXPLAIN (ANALYZE, FORMAT JSON) " + query.statement.render("pgworkers")
            (found,) = own.execute(text, query.params).fetchone() or ([],)
        walks = [node for node in nodes(found[0]["Plan"]) if node["Node Type"] == "CTE Scan"]
        assert max(node["Actual Rows"] * node["Actual Loops"] for node in walks) == 500, "it did something"
        assert max(node["Actual Loops"] for node in walks) < 5, query.statement.name


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from nodes(child)
