"""S-03, S-04, S-05: values that SQL accepts and that must stop no claim, no duty and no reader."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import psycopg
import pytest
from psycopg import sql
from support.attacked_host import odd_samples, renewals, serves, unreadable
from support.cluster import Cluster, Master

HOST_OPTIONS = {"PGWORKERS_METRICS_ADDRESS": "127.0.0.1:0"}

#: Text that no index can compress.
RANDOM = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, {}) i)"
TIMES = (
    "'-infinity'",
    "'infinity'",
    "'0001-01-01 BC'",
    "'4713-01-01 00:00:00+00 BC'",
    "'0001-01-01'",
    "'9999-12-31 23:59:59.999999+00'",
    "'10000-01-01'",
    "'294276-12-31 23:59:59+00'",
)
SPANS = (
    "interval '0'",
    "interval '-1 second'",
    "interval '100000 years'",
    "interval '-100000 years'",
    "interval '178000000 years'",
    "interval '1 month -30 days'",
    "interval '0.000001 s'",
    "'infinity'::interval",
)
NUMBERS = ("0", "-1", "1", "2147483647", "-2147483648")
TEXTS = (
    "''",
    "' '",
    "repeat('k', 4000)",
    RANDOM.format(125),  # 4 kB
    RANDOM.format(40_000),  # 1.3 MB
    "E'\\x01\\x1b[2J\\n'",
    "U&'\\202E\\FFFF'",
    "'schedule:x/'",
)
DOCUMENTS = (
    "'null'",
    "'[]'",
    "'1e131071'",
    "jsonb_build_object('a', 1e131071)",
    "(SELECT jsonb_object_agg(i, 1e131071) FROM generate_series(1, 40) i)",  # 275 MB are in test_refused_values.py
    "jsonb_build_object('a', (SELECT jsonb_agg(1e131071) FROM generate_series(1, 40)))",
    "jsonb_build_object('a', -1e-16000)",
    "jsonb_build_object('a', repeat(E'\\x01', 1000000))",
    "jsonb_build_object('a', repeat('x', 3000000))",
    "(repeat('{\"a\":', 2000) || '1' || repeat('}', 2000))::jsonb",
    "jsonb_build_object(repeat('k', 100000), 1)",
    "(SELECT jsonb_object_agg(i, i) FROM generate_series(1, 100000) i)",
    '\'{"a": "\\ud83d\\ude00"}\'',
)
OPTIONS = {
    "run_at": TIMES,
    "delay": SPANS,
    "timeout": SPANS,
    "deadline": SPANS,
    "expires": SPANS,
    "priority": NUMBERS,
    "max_attempts": NUMBERS,
    "max_crashes": NUMBERS,
    "memory": (*NUMBERS, "9223372036854775807"),
    "unique_key": TEXTS,
    "concurrency_key": TEXTS,
    "queue": TEXTS,
    "on_conflict": TEXTS,
    "on_failed": TEXTS,
    "args": DOCUMENTS,
    "meta": DOCUMENTS,
    "after": (
        "'{}'::bigint[]",
        "ARRAY[0, -1, 9223372036854775807]",
        "ARRAY[NULL]::bigint[]",
        "(SELECT array_agg(i) FROM generate_series(1, 100000) i)",
        "'{{1,2},{3,4}}'::bigint[]",
    ),
    "held": ("true", "NULL"),
}


def enqueue(conn: psycopg.Connection[Any], task: str, name: str, value: str) -> int | None:
    """The id of the job, if the database took it."""
    call = (
        "SELECT (pgworkers.enqueue({}, {} => {})).id"
        if name != "task"
        else "SELECT (pgworkers.enqueue({2})).id"
    )
    text = call.format(sql.Literal(task).as_string(None), name, value)
    try:
        row = conn.execute(text.encode()).fetchone()
    except (psycopg.DataError, psycopg.DatabaseError):
        return None
    return row[0] if row else None


def check(
    host: Master, cluster: Cluster, web: psycopg.Connection[Any], viewer: str, jobs: Iterable[int]
) -> None:
    """The host runs jobs, renews its row, counts in finite numbers, and people can read."""
    serves(cluster, web)
    renewals(cluster, 2)
    assert host.process.poll() is None, host.log()
    assert "Traceback" not in host.log()
    assert odd_samples(host) == []
    assert unreadable(cluster, viewer, *[("jobs", "show", str(job)) for job in jobs]) == []


@pytest.mark.excused("audit", "jobs whose arguments do not fit their task end without a line in the ledger")
def test_s03_s04_s05_no_value_that_web_can_enqueue_stops_the_host_or_a_reader(
    running_host: Master, cluster: Cluster, login_dsn: Callable[[str], str], web: psycopg.Connection[Any]
) -> None:
    taken = []
    for name, values in {**OPTIONS, "task": TEXTS}.items():
        for value in values:
            for task in ("work", "tenant") if name == "concurrency_key" else ("work",):
                job = enqueue(web, task, name, value)
                if job is not None:
                    taken.append(job)
    check(running_host, cluster, web, login_dsn("viewer"), taken[:: max(1, len(taken) // 3)])


def timestamps(conn: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    """Every column with a time in a table that this login may update."""
    return conn.execute(
        "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0"
        " WHERE c.relnamespace = to_regnamespace('pgworkers') AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
        " AND a.atttypid IN (1184, (SELECT t.oid FROM pg_type t WHERE t.typname = 'instant')) AND NOT a.attisdropped"
        " AND has_column_privilege(c.oid, a.attnum, 'UPDATE') ORDER BY 1, 2"
    ).fetchall()


@pytest.mark.excused("audit", "the operator changes times of jobs that ended, too")
def test_s04_no_time_that_an_operator_can_write_stops_the_host_or_a_reader(
    running_host: Master,
    cluster: Cluster,
    login_dsn: Callable[[str], str],
    operator: psycopg.Connection[Any],
    web: psycopg.Connection[Any],
) -> None:
    waiting = cluster.enqueue("work", 3, run_at="2100-01-01")
    columns = timestamps(operator)
    assert len(columns) >= 4
    for table, column in columns:
        for value in TIMES:
            change = sql.SQL("UPDATE pgworkers.{} SET {} = {}").format(
                sql.Identifier(table), sql.Identifier(column), sql.SQL(value)
            )
            with contextlib.suppress(psycopg.Error):
                operator.execute(change)
    check(running_host, cluster, web, login_dsn("viewer"), waiting[:1])
