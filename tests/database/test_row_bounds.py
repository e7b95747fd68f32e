"""Limits that hold for every way to write a row: functions, COPY, plain INSERT. The API checks the same limits first."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.errors import CheckViolation, InvalidParameterValue

DEEP = '{"a": ' + "[" * 200 + "]" * 200 + "}"
FLAT = '{"a": ' + "[" * 127 + "]" * 127 + "}"
WIDE = '{"a": "' + "x" * (5 << 20) + '"}'
WAYS = {
    "enqueue": "SELECT pgworkers.enqueue('t', %s::jsonb, 'q')",
    "enqueue_plain": "SELECT pgworkers.enqueue_plain('t', %s::jsonb, 'q', 0, 1, 1, true)",
    "insert": "INSERT INTO pgworkers.job (task, queue, args) VALUES ('t', 'q', %s::jsonb)",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("args", [DEEP, WIDE, "[1]", "null"], ids=["deep", "wide", "array", "null"])
def test_what_does_not_fit_is_refused_every_way(db: psycopg.Connection[Any], way: str, args: str) -> None:
    with pytest.raises((CheckViolation, InvalidParameterValue)):
        db.execute(WAYS[way].encode(), [args])
    assert db.execute("SELECT count(*) FROM pgworkers.job").fetchone() == (0,)


#: What a compressed value may hide: levels, and numbers that print 147,457 characters each.
COMPRESSED = {
    "deep": (
        "job_args_are_flat",
        f'''SELECT '{{"a": {"[" * 140}{"]" * 140}, "b": "{"x" * 9000}"}}'::jsonb''',
        1024,
    ),
    "numbers": (
        "job_args_fit",
        "SELECT jsonb_build_object('a', jsonb_agg(round(1e131071, 16383))) FROM generate_series(1, 500)",
        256,
    ),
}


@pytest.mark.parametrize("kind", COMPRESSED)
def test_a_compressed_value_is_checked_as_it_will_be_read(db: psycopg.Connection[Any], kind: str) -> None:
    """pg_column_size() of a row of another table is the compressed size."""
    constraint, value, small = COMPRESSED[kind]
    db.execute("CREATE TEMP TABLE other (args jsonb) WITH (toast_tuple_target = 128)")
    db.execute(f"INSERT INTO other {value}".encode())
    (stored,) = db.execute("SELECT pg_column_size(args) FROM other").fetchone() or (0,)
    assert stored <= small, "not compressed enough to look small"
    with pytest.raises(CheckViolation, match=constraint):
        db.execute("INSERT INTO pgworkers.job (task, queue, args) SELECT 't', 'q', args FROM other")


def test_what_is_too_small_to_be_printed_prints_less_than_the_bound(db: psycopg.Connection[Any]) -> None:
    """The worst value of up to 256 bytes: nothing but numbers with all digits that Postgres has."""
    worst = "jsonb_build_object('', jsonb_agg(round(1e131071, 16383)))"
    sizes = f"SELECT pg_column_size({worst}), octet_length(({worst})::text) FROM generate_series(1, %s)"
    found = [db.execute(sizes.encode(), [count]).fetchone() or (0, 0) for count in (13, 14, 15)]
    stored, printed = max(one for one in found if one[0] <= 256)
    assert stored > 240, "the next one is larger than 256 bytes"
    assert printed < 2_400_000 < 4 << 20


@pytest.mark.parametrize("way", WAYS)
def test_what_just_fits_is_taken(db: psycopg.Connection[Any], way: str) -> None:
    db.execute(WAYS[way].encode(), [FLAT])
    assert db.execute("SELECT count(*) FROM pgworkers.job").fetchone() == (1,)


@pytest.mark.parametrize(
    ("column", "value"),
    [("queue", "q" * 201), ("queue", ""), ("task", "t" * 501), ("unique_key", "k" * 1001)],
)
def test_names_fit(db: psycopg.Connection[Any], column: str, value: str) -> None:
    row = {"queue": "q", "task": "t", "unique_key": None, column: value}
    with pytest.raises(CheckViolation):
        db.execute(
            "INSERT INTO pgworkers.job (queue, task, unique_key) VALUES (%(queue)s, %(task)s, %(unique_key)s)",
            row,
        )


@pytest.mark.parametrize("name", ["a,b", "a:4", "-a"])
@pytest.mark.parametrize("column", ["queue", "task"])
def test_names_that_no_command_line_can_say_are_refused(
    db: psycopg.Connection[Any], column: str, name: str
) -> None:
    """As `app.queue` and `@app.task` do: a job of such a queue could not be served by name."""
    names = {"queue": "q", "task": "t", column: name}
    with pytest.raises(CheckViolation, match="job_names_are_plain"):
        db.execute("SELECT pgworkers.enqueue(%(task)s, '{}', %(queue)s)", names)
    assert db.execute("SELECT count(*) FROM pgworkers.job").fetchone() == (0,)


def test_what_a_handler_left_fits(db: psycopg.Connection[Any]) -> None:
    """Beyond these limits the end is written without it (`test_finish_refused.py`): the API writes no such row."""
    attempt = (
        "INSERT INTO pgworkers.attempt (job_id, attempt, lease, queue, task, verdict, {})"
        " VALUES (1, 1, 1, 'q', 't', 'error', %s)"
    )
    for column in ("error", "traceback", "stack", "output"):
        statement = attempt.format(column).encode()
        db.execute(statement, ["x" * (1 << 20)])
        with pytest.raises(CheckViolation, match="attempt_texts_fit"):
            db.execute(statement, ["x" * ((1 << 20) + 1)])
    history = (
        b"INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, attempt, crashes,"
        b" max_attempts, max_crashes, created_at, run_at, errors, result)"
        b" VALUES (1, 'succeeded', 'succeeded', 0, 'q', 't', '{}', 1, 1, 0, 1, 1, now(), now(), '{}',"
        b" to_jsonb(repeat('x', %s)))"
    )
    db.execute(history, [1 << 20])
    with pytest.raises(CheckViolation, match="job_result_fits"):
        db.execute(history, [(64 << 20) + 1])
