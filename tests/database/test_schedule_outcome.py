"""What a tick remembers: its job's end, by whichever way it came, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.database_host import DatabaseHost
from support.schedule_leader import Leader

from pgworkers.job import maintenance
from pgworkers.job.model import JobState, Verdict
from pgworkers.specs import ScheduleSpec

Db = psycopg.Connection[Any]


@pytest.fixture
def leader(dsn: str) -> Iterator[Leader]:
    made = Leader(dsn)
    yield made
    made.close()


@pytest.fixture
def own_host(db: Db, schema: str) -> DatabaseHost:
    made = DatabaseHost(db, schema)
    made.register()
    return made


def tick(db: Db, leader: Leader, host: DatabaseHost, **more: Any) -> Any:
    """A tick five minutes late, and its job claimed."""
    leader.sync(ScheduleSpec("m", "t", cron="* * * * *", queue="a", **more))
    db.execute(
        "UPDATE pgworkers.schedule SET planned_until = now() - interval '5 minutes', due_at = '-infinity'"
    )
    assert leader.fire() == 1
    (job,) = host.claim()
    return job


def outcome(db: Db) -> dict[str, Any]:
    cursor = db.cursor(row_factory=psycopg.rows.dict_row)
    found = cursor.execute("SELECT * FROM pgworkers.ticks ORDER BY at DESC LIMIT 1").fetchone()
    assert found is not None
    return found


def test_success(db: Db, leader: Leader, own_host: DatabaseHost) -> None:
    job = tick(db, leader, own_host)
    assert outcome(db)["outcome"] == "claimed", "its host names no worker that runs it"
    own_host.finish_job(job, result='{"rows": 12}', duration_seconds=1.5)
    found = outcome(db)
    assert (found["outcome"], found["attempt"], found["duration"], found["rows"]) == ("succeeded", 1, 1.5, 12)
    assert found["error_code"] is None
    assert found["job_id"] == job.id
    assert found["started_at"] <= found["finished_at"]


@pytest.mark.parametrize(
    ("state", "verdict", "code"),
    [
        (JobState.DEAD, Verdict.ERROR, "handler_error"),
        (JobState.DEAD, Verdict.TIMEOUT, "timeout"),
        (JobState.CANCELLED, Verdict.CANCELLED, "cancelled"),
        (JobState.DEAD, Verdict.HOST_LOST, "stale"),
        (JobState.DEAD, Verdict.OOM, "oom"),
    ],
)
def test_failures_have_a_code(
    db: Db, leader: Leader, own_host: DatabaseHost, state: JobState, verdict: Verdict, code: str
) -> None:
    own_host.finish_job(tick(db, leader, own_host), state, verdict=verdict, error="it was so")
    found = outcome(db)
    assert (found["outcome"], found["error_code"], found["error"]) == (str(state), code, "it was so")


@pytest.mark.parametrize(("reentrant", "after"), [(False, "dead"), (True, "scheduled")])
def test_not_reentrant_is_not_run_again_when_its_host_dies(
    db: Db, leader: Leader, own_host: DatabaseHost, reentrant: bool, after: str
) -> None:
    tick(db, leader, own_host, reentrant=reentrant)
    db.execute("UPDATE pgworkers.host SET renewed_at = now() - interval '1 hour'")
    (rescued,) = own_host.execute(maintenance.rescue_jobs("00000000-0000-0000-0000-000000000009", 10))
    assert str(rescued.state) == after
    found = outcome(db)
    assert (found["outcome"], found["error_code"]) == (after, None if reentrant else "stale")


def test_a_job_past_its_retention_is_forgotten_and_says_so(
    db: Db, leader: Leader, own_host: DatabaseHost
) -> None:
    own_host.finish_job(tick(db, leader, own_host))
    db.execute("DELETE FROM pgworkers.history")
    assert outcome(db)["outcome"] == "forgotten"


def test_old_ticks_go_but_the_newest_of_each_stays(db: Db, leader: Leader) -> None:
    db.execute(
        """INSERT INTO pgworkers.tick (schedule, scope, at)
           SELECT s, '', now() - n * interval '1 day' + interval '1 h'
             FROM unnest('{a,b}'::text[]) s, generate_series(1, 1200) n
            WHERE s = 'b' OR n > 40"""
    )
    assert leader.prune(30 * 86400.0) == 1159 + 1170
    rows = db.execute(
        "SELECT schedule, count(*), max(at) < now() - interval '39 days' FROM pgworkers.tick GROUP BY 1 ORDER BY 1"
    )
    assert rows.fetchall() == [("a", 1, True), ("b", 30, False)]
    assert leader.prune(30 * 86400.0) == 0
