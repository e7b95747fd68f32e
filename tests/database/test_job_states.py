"""The states in SQL are the states in Python, and the table refuses what no verb may do."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from support.database_host import DatabaseHost

from pgworkers.job.model import LIVE_STATES, TERMINAL_STATES, JobState


def test_one_enum(host: DatabaseHost) -> None:
    rows = host.conn.execute("SELECT unnest(enum_range(NULL::pgworkers.job_state))::text").fetchall()
    assert [row[0] for row in rows] == [str(state) for state in JobState]


@pytest.mark.parametrize("state", sorted({*TERMINAL_STATES, JobState.CLAIMED}))
def test_no_row_has_a_state_that_is_finished_or_only_shown(host: DatabaseHost, state: JobState) -> None:
    job_id = host.enqueue()
    for _ in range(2):
        with pytest.raises(psycopg.errors.CheckViolation):
            host.conn.execute("UPDATE pgworkers.job SET state = %s WHERE id = %s", [str(state), job_id])
        host.claim()


@pytest.mark.parametrize("state", sorted(LIVE_STATES))
def test_no_live_job_lies_in_history(host: DatabaseHost, state: JobState) -> None:
    job = host.enqueue_and_claim()
    host.finish_job(job)
    with pytest.raises(psycopg.errors.CheckViolation):
        host.conn.execute("UPDATE pgworkers.history SET state = %s", [str(state)])


@pytest.mark.parametrize(
    "change",
    [
        "state = 'running'",
        "host = gen_random_uuid()",
        "args = '[]'",
        "attempt = -1",
        "max_attempts = 0",
        "queue = ''",
    ],
)
def test_a_row_that_makes_no_sense_is_refused(host: DatabaseHost, change: Any) -> None:
    host.enqueue()
    with pytest.raises(psycopg.errors.CheckViolation):
        host.conn.execute(f"UPDATE pgworkers.job SET {change}")


def test_a_running_job_always_has_a_host(host: DatabaseHost) -> None:
    host.enqueue_and_claim()
    with pytest.raises(psycopg.errors.CheckViolation):
        host.conn.execute("UPDATE pgworkers.job SET host = NULL")
