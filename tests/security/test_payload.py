"""S-17: arguments stay out of a host's log when `log_args` is off, and a viewer sees jobs without their payload."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege
from support.attacked_host import not_refused
from support.cluster import Cluster
from support.command import ForkedCommand
from support.database_host import DatabaseHost
from support.logins import NEWEST_ONLY, LoginDatabase

from pgworkers.job import queries
from pgworkers.job.model import JobState
from pgworkers.job.queries import HIDDEN_PAYLOAD
from pgworkers.postgres.statements import run
from pgworkers.schedule import definitions as schedules

Session = psycopg.Connection[Any]
SECRET = "canary-of-payload"


@pytest.fixture
def jobs(admin: Session) -> dict[str, int]:
    """A job that waits, one that succeeded, one that is dead, each with payload in every column that holds some."""
    host = DatabaseHost(admin, "pgworkers")
    host.register()
    payload = json.dumps({"token": SECRET})
    done = host.enqueue_and_claim(args=payload, meta_json=payload)
    host.finish_job(done, result=payload, checkpoint=payload)
    dead = host.enqueue_and_claim(args=payload, meta_json=payload)
    host.finish_job(dead, JobState.DEAD, error="no", output=SECRET)
    waits = host.enqueue(args=payload, meta_json=payload)
    admin.execute("UPDATE pgworkers.job SET checkpoint = args")
    admin.execute(
        "INSERT INTO pgworkers.schedule (name, task, every, args, scope_args) VALUES ('s', 't', 60, %s, %s)",
        [payload, payload],
    )
    admin.execute(
        "INSERT INTO pgworkers.tick (schedule, scope, at, job_id) VALUES ('s', '', now(), %s)", [done.id]
    )
    return {"done": done.id, "dead": dead.id, "waits": waits}


def test_a_viewer_sees_jobs_and_no_payload(viewer: Session, jobs: dict[str, int]) -> None:
    found = queries.find_jobs(lambda query: run(viewer, "pgworkers", query), queries.JobFilter()).jobs
    assert {job.id for job in found} == set(jobs.values())
    assert all(job.args == HIDDEN_PAYLOAD and job.checkpoint is None and job.meta is None for job in found)
    done = run(viewer, "pgworkers", queries.get_job(jobs["done"]))
    assert done is not None
    assert done.result == HIDDEN_PAYLOAD
    dead = run(viewer, "pgworkers", queries.job_attempts(jobs["dead"]))
    assert [(one.error, one.output) for one in dead] == [("no", None)]
    assert run(viewer, "pgworkers", queries.job_situation(jobs["waits"])).is_task_known is False
    assert run(viewer, "pgworkers", schedules.list_schedules(limit=9))[0].args is None
    run(viewer, "pgworkers", queries.list_queues())
    run(viewer, "pgworkers", queries.overview(10, should_notify_hosts=True))


SIDE_DOORS = [
    "SELECT args FROM pgworkers.job",
    "SELECT meta FROM pgworkers.job",
    "SELECT checkpoint FROM pgworkers.job",
    "SELECT j FROM pgworkers.job j",
    "SELECT result FROM pgworkers.history",
    "SELECT args FROM pgworkers.history",
    "SELECT output FROM pgworkers.attempt",
    "SELECT args FROM pgworkers.schedule",
    "SELECT scope_args FROM pgworkers.schedule",
    "SELECT id FROM pgworkers.job WHERE args::text LIKE '%canary%'",
    "SELECT args FROM pgworkers.history_default",
    "COPY pgworkers.job TO STDOUT",
]


def test_a_viewer_reads_payload_by_no_side_door(viewer: Session, jobs: dict[str, int]) -> None:
    assert not_refused(viewer, SIDE_DOORS, InsufficientPrivilege) == []


def test_no_view_shows_it_to_a_viewer(viewer: Session, auditor: Session, jobs: dict[str, int]) -> None:
    for view in ("jobs", "attempts", "ticks", "schedule_args", "worker"):
        shown = viewer.execute(f"SELECT v::text FROM pgworkers.{view} v").fetchall()  # type: ignore[arg-type]
        assert SECRET not in str(shown), view
        if view != "worker":
            assert shown, f"{view} has rows"
            read = auditor.execute(f"SELECT v::text FROM pgworkers.{view} v").fetchall()  # type: ignore[arg-type]
            assert SECRET in str(read), view
    found = viewer.execute("SELECT id FROM pgworkers.jobs WHERE args::text LIKE '%canary%'").fetchall()
    assert found == []


def test_the_role_payload_reads_everything_and_changes_nothing(
    auditor: Session, jobs: dict[str, int]
) -> None:
    done = run(auditor, "pgworkers", queries.get_job(jobs["done"]))
    assert done is not None
    assert done.args == done.result == done.meta == {"token": SECRET}
    assert [one.output for one in run(auditor, "pgworkers", queries.job_attempts(jobs["dead"]))] == [SECRET]
    for statement in ("UPDATE pgworkers.queue SET name = name", "SELECT pgworkers.cancel(1)"):
        with pytest.raises(InsufficientPrivilege):
            auditor.execute(statement.encode())


@NEWEST_ONLY
def test_the_command_line_works_for_a_viewer(
    login_dsn: Callable[[str], str], jobs: dict[str, int], age: str, tmp_path: Path
) -> None:
    cli = ForkedCommand(tmp_path, PGWORKERS_DSN=login_dsn("viewer"))
    for words in (
        ("jobs", "list"),
        ("jobs", "show", str(jobs["done"])),
        ("queues",),
        ("schedules",),
        ("top", "--once"),
        ("workers",),
    ):
        said = cli(*words)
        assert SECRET not in said.out, words
        assert words[0] != "jobs" or "hidden: this role sees no payload" in said.out, words


@NEWEST_ONLY
@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize("log_args", ["true", "false"])
def test_a_host_logs_arguments_only_if_it_may(
    cluster: Cluster, database: LoginDatabase, age: str, style: str, log_args: str
) -> None:
    host = cluster.start(
        "--log", style, queues="default:1", dsn=database.dsn("worker"), PGWORKERS_LOG_ARGS=log_args
    )
    (done,) = cluster.enqueue("work", args={"value": SECRET})
    cluster.until(done, "succeeded")
    assert host.terminate() == 0
    lines = [line for line in host.log().splitlines() if f"#{done} " in line]
    assert lines, "the job has a line"
    assert (SECRET in "\n".join(lines)) is (log_args == "true")
