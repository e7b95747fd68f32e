"""Limits that hold whoever writes the row: functions, COPY, plain INSERT. The API refuses the same before it asks."""

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
    "enqueue_now": "SELECT pgworkers.enqueue_now('t', %s::jsonb, 'q', 0, 1, 1, true)",
    "insert": "INSERT INTO pgworkers.job (task, queue, args) VALUES ('t', 'q', %s::jsonb)",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("args", [DEEP, WIDE, "[1]", "null"], ids=["deep", "wide", "array", "null"])
def test_what_does_not_fit_is_refused_every_way(db: psycopg.Connection[Any], way: str, args: str) -> None:
    with pytest.raises((CheckViolation, InvalidParameterValue)):
        db.execute(WAYS[way].encode(), [args])
    assert db.execute("SELECT count(*) FROM pgworkers.job").fetchone() == (0,)


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
    """Beyond these limits the end is written without it (`test_ends_refused.py`): somebody else wrote past the API."""
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
