"""Readers survive what is there: rows with times that Python cannot hold, written before the tables refused them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.command import ForkedCommand
from support.logins import DIRECT_ONLY, LoginDatabase

from pgworkers.job import gauges, maintenance, queries
from pgworkers.postgres import connect
from pgworkers.postgres.statements import run
from pgworkers.settings import Settings

TIMES = ("-infinity", "infinity", "12000-01-01", "0044-03-15 BC")


@pytest.fixture
def strange(admin: psycopg.Connection[Any]) -> None:
    """One ready and one scheduled job for each strange time, in all columns that may hold one, and the same in history."""
    admin.execute("ALTER DOMAIN pgworkers.bounded_timestamp DROP CONSTRAINT job_timestamps_fit")
    for at in TIMES:
        for state in ("ready", "scheduled"):
            admin.execute(
                "INSERT INTO pgworkers.job (task, queue, state, run_at, created_at, expires_at, deadline_at, cancel_at)"
                " SELECT 't', 'q', %s::pgworkers.job_state, t, t, t, t, t FROM (SELECT %s::timestamptz) AS v (t)",
                [state, at],
            )
    admin.execute(
        "INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, attempt, crashes,"
        " max_attempts, max_crashes, created_at, run_at, started_at, deadline_at, errors)"
        " SELECT 1000 + n, 'dead', 'error', 0, 'q', 't', '{}', 1, 1, 0, 1, 1, t, t, t, t, '{}'"
        " FROM unnest(%s::timestamptz[]) WITH ORDINALITY AS v (t, n)",
        [list(TIMES)],
    )


@pytest.mark.usefixtures("strange")
@DIRECT_ONLY
def test_lists_counts_and_duties(way: str, database: LoginDatabase) -> None:
    with connect.connect(Settings(), database.dsn("worker", way), "test") as conn:
        listed = queries.find_jobs(
            lambda query: run(conn, "pgworkers", query), queries.JobFilter(limit=50)
        ).jobs
        assert len(listed) == 3 * len(TIMES)
        assert all(run(conn, "pgworkers", queries.get_job(one.id)) is not None for one in listed)
        found = {one.name: one for one in run(conn, "pgworkers", queries.list_queues())}
        assert found["q"].ready == len(TIMES)
        (counted,) = run(conn, "pgworkers", gauges.count_depth(1000))
        assert counted.ready == len(TIMES)
        assert 0 <= counted.oldest < 1e12, "a metric of it is finite"
        assert run(conn, "pgworkers", maintenance.due_duties()) is not None
        assert run(conn, "pgworkers", maintenance.promote_due(10)) is not None


@pytest.mark.usefixtures("strange")
@DIRECT_ONLY
def test_commands(way: str, database: LoginDatabase, tmp_path: Path) -> None:
    cli = ForkedCommand(tmp_path, DATABASE_URL=database.dsn("viewer", way))
    listed = cli("jobs", "list", "-o", "json").json()
    assert len(listed) == 3 * len(TIMES)
    cli("jobs", "list")
    for job in listed:
        cli("jobs", "show", str(job["id"]))
    cli("queues", "list")
