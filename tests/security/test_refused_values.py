"""Values that SQL must not accept: a login that may only enqueue cannot stop a claim, a duty or a reader with data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg
import pytest
from psycopg.errors import CheckViolation, DataError, InvalidParameterValue
from support.attacked_host import not_refused
from support.cluster import Cluster, Master, wait_for
from support.logins import DIRECT_ONLY, NEWEST_ONLY

Session = psycopg.Connection[Any]

REFUSALS = (CheckViolation, InvalidParameterValue, DataError)
#: Takes a few hundred bytes where it is stored. With 40 numbers it prints 5 MB, which is too much; with 2,100, 275 MB.
LOUD = "jsonb_build_object('value', (SELECT jsonb_agg(1e131071::numeric) FROM generate_series(1, {})))"
#: The arguments of pgworkers.enqueue() after the task.
HOSTILE = (
    "concurrency_key => (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 125) i)",
    "concurrency_key => ''",
    "unique_key => repeat('k', 1001)",
    "queue => repeat('q', 201)",
    "queue => E'a\\nb'",
    "queue => ' a'",
    "queue => 'a,b'",
    "queue => 'a:b'",
    "queue => '-a'",
    "run_at => '-infinity'",
    "run_at => 'infinity'",
    "run_at => '12000-01-01'",
    "run_at => '0044-03-15 BC'",
    "run_at => '9999-01-01 00:00:00+00'",
    "run_at => '9998-01-01', delay => '99 years'",
    "delay => '100000 years'",
    "delay => '-1 s'",
    "run_at => '9998-01-01', expires => '99 years'",
    "run_at => '9998-01-01', deadline => '99 years'",
    "timeout => '0'",
    "timeout => '102 years'",
    "memory => 1",
    "memory => 9223372036854775807",
    "priority => -2147483648",
    "max_attempts => 0",
    "meta => jsonb_build_object('a', repeat('x', 32768))",
    "meta => ('{\"a\": ' || repeat('[', 200) || repeat(']', 200) || '}')::jsonb",
    f"args => {LOUD.format(40)}",
    f"meta => {LOUD.format(40)}",
)
INFINITE_INTERVALS = (
    "delay => 'infinity'",
    "timeout => 'infinity'",
    "deadline => 'infinity'",
    "expires => 'infinity'",
    "delay => '-infinity'",
)


def _enqueue(conn: Session, how: str) -> int:
    row = conn.execute(f"SELECT (pgworkers.enqueue('work', {how})).id".encode()).fetchone()
    assert row is not None
    number: int = row[0]
    return number


def calls(options: Iterable[str]) -> list[str]:
    return [f"SELECT pgworkers.enqueue('work', {how})" for how in options]


def test_web_cannot_enqueue_it(web: Session, admin: Session) -> None:
    assert not_refused(web, calls(HOSTILE), *REFUSALS) == []
    assert admin.execute("SELECT count(*) FROM pgworkers.jobs").fetchone() == (0,)


@DIRECT_ONLY
def test_web_cannot_enqueue_what_prints_275_mb(way: str, web: Session, admin: Session) -> None:
    loud = (f"args => {LOUD.format(2100)}", f"meta => {LOUD.format(2100)}")
    assert not_refused(web, calls(loud), *REFUSALS) == []
    assert admin.execute("SELECT count(*) FROM pgworkers.jobs").fetchone() == (0,)


@NEWEST_ONLY
def test_infinite_intervals_are_refused(age: str, web: Session, admin: Session) -> None:
    if admin.info.server_version < 170000:
        pytest.skip("NOT TESTED: Postgres has infinite intervals from version 17 on")
    assert not_refused(web, calls(INFINITE_INTERVALS), *REFUSALS) == []


@pytest.mark.excused(
    "I5", "numbers that Python cannot read: the arguments do not fit, so the handler is not run"
)
def test_what_web_may_say_at_most_runs(
    running_host: Master, cluster: Cluster, web: psycopg.Connection[Any]
) -> None:
    """Every bound at its end: the host claims and runs it."""
    extremes = [
        "concurrency_key => (SELECT left(string_agg(md5(i::text), ''), 1000) FROM generate_series(1, 40) i)",
        "unique_key => (SELECT left(string_agg(md5(i::text), ''), 1000) FROM generate_series(1, 40) i)",
        "run_at => '1970-01-01 00:00:00+00'",
        "timeout => '36500 days', deadline => '36500 days', expires => '36500 days'",
        "memory => 1152921504606846975",
        "priority => -2147483647",
        "priority => 2147483647",
        "max_attempts => 10001, max_crashes => 10001",
        "args => jsonb_build_object('value', (SELECT jsonb_agg(1e100000::numeric) FROM generate_series(1, 30)))",
        "meta => jsonb_build_object('a', repeat('x', 32000))",
    ]
    jobs = [_enqueue(web, how) for how in extremes]
    wait_for(
        lambda: (
            cluster.db.execute(
                "SELECT count(*) FROM pgworkers.jobs WHERE id = ANY (%s) AND attempt = 0", [jobs]
            ).fetchone()
            == (0,)
        ),
        what="each has begun",
    )
    later = _enqueue(web, "args => '{\"value\": 1}'")
    assert cluster.until(later, "succeeded")["result"] == 1


CHANGES_OF_A_JOB = (
    "run_at = '-infinity'",
    "created_at = 'infinity'",
    "expires_at = 'infinity'",
    "deadline_at = '-infinity'",
    "cancel_at = '12000-01-01'",
    "claimed_at = 'infinity'",
    "concurrency_key = repeat('k', 1001)",
    f"checkpoint = {LOUD.format(40)}",
    f"progress = {LOUD.format(40)}",
    "errors = ARRAY[repeat('x', 100000)]",
    "errors = ARRAY[['a', 'b']]",
    "errors = ARRAY[NULL]",
    "attempt = -1",
    "max_attempts = 10002",
    "max_crashes = 2147483647",
    "memory = 0",
    "timeout = '-1 s'",
)
CHANGES_OF_A_QUEUE = ("throttled_until = 'infinity'", "retention = '100000 years'")


def test_a_worker_cannot_write_it_into_a_row(worker: Session, web: Session, admin: Session) -> None:
    job = _enqueue(web, "args => '{}'")
    admin.execute("INSERT INTO pgworkers.queue (name) VALUES ('q')")
    changes = [f"UPDATE pgworkers.job SET {change} WHERE id = {job}" for change in CHANGES_OF_A_JOB]
    changes += [f"UPDATE pgworkers.queue SET {change}" for change in CHANGES_OF_A_QUEUE]
    assert not_refused(worker, changes, *REFUSALS) == []
