"""Every list, count and show is bounded, whatever the tables hold: what people ask reads a few pages of millions of rows.

Rows and pages are counted, not seconds. The sessions are ordinary ones: people plan with the server's own settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psycopg
import pytest

from pgworkers.doctor import jobs
from pgworkers.job import batches, burst, gauges, operations, queries
from pgworkers.job.model import JobState
from pgworkers.job.queries import JobFilter
from pgworkers.postgres.statements import Query

HISTORY_DAYS = 5
HOST = "00000000-0000-0000-0000-00000000000a"
PARTITION = """
DO $$
DECLARE
    today timestamptz := (now() AT TIME ZONE 'UTC')::date::timestamp AT TIME ZONE 'UTC';
    day integer := current_setting('tests.day')::integer;
BEGIN
    EXECUTE format('CREATE TABLE pgworkers.history_old%s PARTITION OF pgworkers.history'
                   ' FOR VALUES FROM (false, %L) TO (false, %L)',
                   day, today - make_interval(days => day), today - make_interval(days => day - 1));
END $$
"""
HISTORY = """
INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, attempt, crashes, max_attempts,
                               max_crashes, created_at, run_at, finished_at, errors)
SELECT n, CASE WHEN n % 10000 = 0 THEN 'dead' WHEN n % 10000 = 1 THEN 'cancelled' ELSE 'succeeded' END::pgworkers.job_state,
       'succeeded', 0, 'q' || n % 4, 't' || n % 50, '{}', 1, 1, 0, 3, 3, now(), now(),
       now() - make_interval(days => %(days)s) * (1 - n::float8 / %(rows)s), '{}'
  FROM generate_series(1, %(rows)s) n
"""
LIVE = """
INSERT INTO pgworkers.job (queue, task, state, run_at, host, lease, claimed_at)
SELECT 'q' || n % 4, 't' || n % 50,
       CASE WHEN n <= 50 THEN 'running' WHEN n % 100 = 0 THEN 'scheduled' ELSE 'ready' END::pgworkers.job_state, now(),
       CASE WHEN n <= 50 THEN %(host)s::uuid END, 1, CASE WHEN n <= 50 THEN now() END
  FROM generate_series(1, %(rows)s) n
"""


def fill(conn: psycopg.Connection[Any], rows: int) -> None:
    """Insert `rows` finished jobs over several partitions and half as many live ones, one of them in a separate queue."""
    for day in range(1, HISTORY_DAYS + 1):
        conn.execute("SELECT set_config('tests.day', %s, false)", [str(day)])
        conn.execute(PARTITION)
    values = {"rows": rows, "days": HISTORY_DAYS, "host": HOST}
    conn.execute(HISTORY.replace(" % ", " %% "), values)
    conn.execute("SELECT setval('pgworkers.job_id_seq', %s)", [rows + 1])
    conn.execute("INSERT INTO pgworkers.job (queue, task) VALUES ('rare', 'rare')")
    conn.execute(LIVE.replace(" % ", " %% "), values | {"rows": rows // 2})


class Read(NamedTuple):
    """What one statement read of the tables: pages in all, by whole scans of a table of jobs, and rows in all."""

    pages: int
    whole: list[str]
    rows: float


def reading(conn: psycopg.Connection[Any], query: Query[Any], *, generic: bool = False) -> Read:
    params = query.params_by_name("pgworkers")
    if generic:
        text, names = query.statement.numbered("pgworkers")
        with conn.transaction(force_rollback=True):
            conn.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            conn.execute(b"PREPARE reading AS " + text)
            try:
                values = ", ".join(_literal(conn, params[name]) for name in names)
                call = f"reading({values})" if names else "reading"
                plan = _explained(
                    conn, f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE {call}".encode()
                )
            finally:
                conn.execute("DEALLOCATE reading")
    else:
        text = b"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) " + query.statement.render("pgworkers")
        plan = _explained(conn, text, params)
    return Read(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], sorted(_whole(plan)), _rows(plan))


def _explained(conn: psycopg.Connection[Any], text: bytes, params: Any = None) -> dict[str, Any]:
    (found,) = conn.execute(text, params).fetchone() or ([],)
    return dict(found[0]["Plan"])


def _literal(conn: psycopg.Connection[Any], value: Any) -> str:
    return psycopg.sql.Literal(value).as_string(conn)


def _whole(node: dict[str, Any]) -> Iterator[str]:
    """Scans of whole tables of jobs that were executed and gave many rows."""
    table = node.get("Relation Name", "")
    rows = node["Actual Rows"] * node["Actual Loops"] + node.get("Rows Removed by Filter", 0)
    if (
        node["Node Type"].endswith("Seq Scan")
        and table.startswith(("job", "history", "attempt"))
        and rows > 20_000
    ):
        yield table
    for child in node.get("Plans", []):
        yield from _whole(child)


def _rows(node: dict[str, Any]) -> float:
    """Rows that the scans of tables of jobs gave or passed by."""
    rows = 0.0
    if node.get("Relation Name", "").startswith(("job", "history")):
        rows = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return rows + sum(_rows(child) for child in node.get("Plans", []))


def filters() -> dict[str, JobFilter]:
    return {
        "all": JobFilter(limit=21),
        "dead": JobFilter(states=[JobState.DEAD], limit=21),
        "failed of a queue": JobFilter(states=[JobState.DEAD, JobState.CANCELLED], queues=["q0"], limit=21),
        "succeeded": JobFilter(states=[JobState.SUCCEEDED], limit=21),
        "ready": JobFilter(states=[JobState.READY], limit=21),
        "scheduled": JobFilter(states=[JobState.SCHEDULED], limit=21),
        "running": JobFilter(states=[JobState.RUNNING], limit=21),
        "claimed": JobFilter(states=[JobState.CLAIMED, JobState.RUNNING], limit=21),
        "a rare task": JobFilter(tasks=["rare"], limit=21),
        "no such queue": JobFilter(queues=["none"], limit=21),
    }


def other_queries(job: int) -> dict[str, tuple[Query[Any], int]]:
    """Every other statement that people send, and how many pages it may read. Searches are tested by themselves."""
    return {
        "get, finished": (queries.get_job(job), 100),
        "get, live": (queries.get_job(job * 2), 100),
        "many": (queries.jobs_by_id([job, job + 1, job + 2]), 200),
        "statuses": (queries.job_statuses([job, job + 1, job + 2]), 200),
        "attempts": (queries.job_attempts(job), 50),
        "standing": (queries.job_situation(job), 300),
        "operations": (operations.operations_of_job(job), 10),
        "hosts": (queries.list_hosts(), 100),
        "workers": (queries.list_workers(), 50),
        "others": (burst.other_busy_hosts("00000000-0000-0000-0000-000000000001", ["q0"]), 100),
        "watch": (queries.overview(2000, should_notify_hosts=False), 50),
        "queues": (queries.list_queues(), 5 * 2 * queries.MAX_COUNTED_JOBS),
        "depth": (gauges.count_depth(1000), 5 * 3 * 1000),
        "doctor running": (jobs.running_jobs(), 100),
        "doctor pace": (jobs.queue_rates(), 20_000),
        "batch": (batches.count_batch(1), 20),
    }


#: A step of a search may look into two tables, by an index each. A step begins in every partition.
PAGES_PER_ROW = 4
PAGES_TO_START = 200


def check(conn: psycopg.Connection[Any], rows: int) -> None:
    for name, where in filters().items():
        for look in (21, queries.FIRST_PAGE_ROWS):
            for generic in (False, True):
                read = reading(conn, queries.search_page(where, look), generic=generic)
                assert read.pages <= PAGES_PER_ROW * look + PAGES_TO_START, (name, look, generic, read)
    for name, (query, most) in other_queries(rows // 2).items():
        for generic in (False, True):
            read = reading(conn, query, generic=generic)
            # The doctor looks at 10,000 live jobs: of a small table that may well be all.
            assert read.whole == [] or name == "doctor pace", (name, generic)
            assert read.pages <= most, (name, generic, read.pages)


def untouched(conn: psycopg.Connection[Any]) -> None:
    """Never analysed."""


def analysed(conn: psycopg.Connection[Any]) -> None:
    conn.execute("VACUUM ANALYZE")


@pytest.fixture
def own(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn


#: What people write themselves, in psql or in a dashboard.
PLAIN = {
    "list": "SELECT * FROM pgworkers.jobs ORDER BY id DESC LIMIT 20",
    "one": "SELECT * FROM pgworkers.jobs WHERE id = 4711",
    "page": "SELECT id, state, queue FROM pgworkers.jobs WHERE id < 30000 ORDER BY id DESC LIMIT 20",
}


@pytest.mark.parametrize("statistics", [untouched, analysed])
def test_the_view_is_read_by_its_indexes(
    own: psycopg.Connection[Any], statistics: Callable[[psycopg.Connection[Any]], None]
) -> None:
    fill(own, 50_000)
    statistics(own)
    for name, text in PLAIN.items():
        plan = _explained(own, f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {text}".encode())
        pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        assert pages < PAGES_TO_START, name


@pytest.mark.parametrize("statistics", [untouched, analysed])
def test_every_reader_is_bounded(
    own: psycopg.Connection[Any], statistics: Callable[[psycopg.Connection[Any]], None]
) -> None:
    fill(own, 50_000)
    statistics(own)
    check(own, 50_000)


#: 30,000 jobs each that a burst must pass by, or that a batch has.
MANY_JOBS = """
INSERT INTO pgworkers.batch (total) VALUES (60000);
INSERT INTO pgworkers.job (queue, task, batch_id) SELECT 'a', 'unknown', 1 FROM generate_series(1, 30000);
INSERT INTO pgworkers.job (queue, task, state, run_at)
SELECT 'a', 't', 'scheduled', now() + make_interval(secs => 60 + n) FROM generate_series(1, 30000) n;
INSERT INTO pgworkers.job (queue, task, concurrency_key) SELECT 'a', 't', 'shut' FROM generate_series(1, 30000);
INSERT INTO pgworkers.concurrency (kind, name, slots) VALUES ('key', 'shut', 0);
INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, attempt, crashes, max_attempts,
                               max_crashes, created_at, run_at, errors, batch_id)
SELECT 1000000 + n, 'dead', 'error', 0, 'a', 't', '{}', 1, 1, 0, 3, 3, now(), now(), '{}', 1
  FROM generate_series(1, 30000) n;
"""


@pytest.mark.parametrize("statistics", [untouched, analysed])
def test_a_batch_is_counted_and_the_end_of_a_burst_is_found_in_portions(
    own: psycopg.Connection[Any],
    statistics: Callable[[psycopg.Connection[Any]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pgworkers.job.batches.COUNT_PORTION_IDS", 500)
    monkeypatch.setattr("pgworkers.job.burst.UNFINISHED_SCAN_ROWS", 500)
    own.execute(MANY_JOBS)
    statistics(own)
    for generic in (False, True):
        read = reading(own, batches.count_batch(1), generic=generic)
        assert read.rows <= 2 * 500 + 100, ("batch", generic, read)
        read = reading(own, burst.unfinished_work(["a", "b"], ["t", "u"]), generic=generic)
        assert read.rows <= 4 * 500 + 100, ("burst", generic, read)


@pytest.mark.long
def test_every_reader_is_bounded_with_five_million_rows(own: psycopg.Connection[Any]) -> None:
    fill(own, 5_000_000)
    own.execute("VACUUM ANALYZE")
    check(own, 5_000_000)
