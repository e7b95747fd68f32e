"""S-10: an enqueue-only login is bound by the task's row and by its grants, on every way that enqueues."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.errors import ConfigurationLimitExceeded, InsufficientPrivilege

from pgworkers.job import enqueue, queues
from pgworkers.job.copy import copy_jobs
from pgworkers.job.model import NewJob
from pgworkers.postgres.statements import run
from pgworkers.specs import TaskSpec

Session = psycopg.Connection[Any]
PLAIN = {"queue": "a", "priority": 0, "max_attempts": 1, "max_crashes": 1}


@pytest.fixture(autouse=True)
def deployed(admin: Session) -> None:
    """Two tasks with limits, as a host has declared them."""
    tasks = [
        TaskSpec(name, "a", max_attempts=2, max_crashes=1, timeout=30.0, memory=64 << 20)
        for name in ("t", "u")
    ]
    run(admin, "pgworkers", queues.declare_tasks(tasks))


def put(conn: Session, task: str = "t", **more: Any) -> int:
    """As the Python API does: by enqueue_plain() where nothing is special, by enqueue() else."""
    return run(conn, "pgworkers", enqueue.enqueue(NewJob(task, **{**PLAIN, **more}))).id


def row(admin: Session, job: int, *columns: str) -> tuple[Any, ...]:
    found = admin.execute(f"SELECT {', '.join(columns)} FROM pgworkers.job WHERE id = %s", [job]).fetchone()
    assert found is not None
    return tuple(found)


def grant(operator: Session, role: str, **more: Any) -> None:
    names = ["role", *more]
    operator.execute(
        f"INSERT INTO pgworkers.enqueue_grant ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))})",
        [role, *more.values()],
    )


BUDGETS = ("timeout", "memory", "max_attempts", "max_crashes")


@pytest.mark.parametrize("way_in", ["enqueue", "enqueue_plain"])
def test_an_enqueuer_exceeds_nothing_that_the_task_says(web: Session, admin: Session, way_in: str) -> None:
    if way_in == "enqueue":
        job = put(web, timeout=3600.0, memory=1 << 40, max_attempts=1_000_000, max_crashes=1_000_000)
        assert row(admin, job, *BUDGETS) == (timedelta(seconds=30), 64 << 20, 2, 1)
    else:
        job = put(web, max_attempts=1_000_000, max_crashes=1_000_000)
        assert row(admin, job, *BUDGETS) == (None, None, 2, 1)


def test_less_than_the_task_says_is_kept(web: Session, admin: Session) -> None:
    job = put(web, timeout=5.0, memory=32 << 20, max_attempts=1)
    assert row(admin, job, *BUDGETS) == (timedelta(seconds=5), 32 << 20, 1, 1)


def test_an_unknown_task_has_the_defaults(web: Session, admin: Session) -> None:
    job = put(web, "unheard", timeout=3600.0, memory=1 << 40, max_attempts=1_000_000, max_crashes=1_000_000)
    assert row(admin, job, *BUDGETS) == (None, None, 10, 3)


def test_the_concurrency_keys_of_schedules_are_refused(web: Session, worker: Session, admin: Session) -> None:
    with pytest.raises(InsufficientPrivilege, match="begins with schedule:"):
        put(web, concurrency_key="schedule:nightly/")
    assert admin.execute("SELECT count(*) FROM pgworkers.job").fetchone() == (0,)
    assert put(web, concurrency_key="scheduled") > 0
    assert put(worker, concurrency_key="schedule:nightly/") > 0, "hosts fire schedules"


def test_a_task_without_limits_gives_no_memory_away(web: Session, admin: Session) -> None:
    run(admin, "pgworkers", queues.declare_tasks([TaskSpec("free", "a")]))
    job = put(web, "free", timeout=3600.0, memory=1 << 40)
    assert row(admin, job, "timeout", "memory") == (timedelta(hours=1), None), "a timeout only restricts"


@pytest.mark.parametrize("more", [{}, {"meta_json": '{"a": 1}'}], ids=["enqueue_plain", "enqueue"])
def test_the_priority_of_the_task_is_the_highest(web: Session, admin: Session, more: dict[str, str]) -> None:
    run(admin, "pgworkers", queues.declare_tasks([TaskSpec("low", "a", priority=-5)]))
    found = [
        row(admin, put(web, task, priority=asked, **more), "priority")[0]
        for task, asked in (("low", 2_000_000_000), ("low", -7), ("t", 1), ("unheard", 1), ("unheard", -1))
    ]
    assert found == [-5, -7, 0, 0, -1]


def test_a_job_is_not_held_by_an_enqueuer(web: Session, worker: Session, admin: Session) -> None:
    with pytest.raises(InsufficientPrivilege, match="may not enqueue a held job"):
        put(web, unique_key="k", is_held=True)
    assert admin.execute("SELECT count(*) FROM pgworkers.job").fetchone() == (0,)
    assert put(worker, unique_key="k", is_held=True) > 0


def test_operators_may_exceed_it(operator: Session, admin: Session) -> None:
    job = put(operator, timeout=3600.0, memory=1 << 40, max_attempts=50)
    assert row(admin, job, *BUDGETS) == (timedelta(hours=1), 1 << 40, 50, 1)


def test_each_job_keeps_the_login_that_enqueued_it(
    web: Session, operator: Session, worker: Session, admin: Session
) -> None:
    made = {put(web): "web", put(web, unique_key="k"): "web", put(operator): "operator"}
    copy_jobs(worker, "pgworkers", [NewJob("t", queue="copied")])
    found = dict(
        admin.execute("SELECT id, enqueued_by FROM pgworkers.job WHERE queue <> 'copied'").fetchall()
    )
    assert found == made
    assert admin.execute("SELECT enqueued_by FROM pgworkers.job WHERE queue = 'copied'").fetchone() == (
        "worker",
    )
    operator.execute("SELECT pgworkers.cancel(%s)", [next(iter(made))])
    kept = admin.execute("SELECT enqueued_by FROM pgworkers.history").fetchall()
    assert kept == [("web",)]


def test_the_arguments_of_others_are_not_replaced(web: Session, operator: Session, admin: Session) -> None:
    job = put(operator, args_json='{"a": 1}', unique_key="guessed")
    with pytest.raises(InsufficientPrivilege, match="may not replace its arguments"):
        put(web, args_json='{"a": 2}', unique_key="guessed", on_conflict="replace")
    assert row(admin, job, "args") == ({"a": 1},)
    grant(operator, "web", may_replace=True)
    assert put(web, args_json='{"a": 2}', unique_key="guessed", on_conflict="replace") == job
    assert row(admin, job, "args") == ({"a": 2},)


def test_ones_own_are_replaced(web: Session, admin: Session) -> None:
    job = put(web, args_json='{"a": 1}', unique_key="k")
    assert put(web, args_json='{"a": 2}', unique_key="k", on_conflict="replace") == job
    assert row(admin, job, "args") == ({"a": 2},)


@pytest.mark.parametrize("way_in", ["enqueue", "enqueue_plain"])
def test_a_grant_bounds_queue_and_task(web: Session, operator: Session, way_in: str) -> None:
    more: dict[str, Any] = {} if way_in == "enqueue_plain" else {"meta_json": "{}"}
    put(web, "u", queue="b", **more)
    grant(operator, "web", queue="a", task="t")
    put(web, "t", **more)
    for task, name in (("u", "a"), ("t", "b"), ("u", "b")):
        with pytest.raises(InsufficientPrivilege, match=f"web may not enqueue task {task} in queue {name}"):
            put(web, task, queue=name, **more)
    grant(operator, "pgworkers_enqueue", queue="b")
    put(web, "u", queue="b", **more)
    put(operator, "u", queue="c", **more)


@pytest.mark.parametrize("way_in", ["enqueue", "enqueue_plain"])
def test_a_grant_bounds_how_many_wait(web: Session, operator: Session, admin: Session, way_in: str) -> None:
    more: dict[str, Any] = {} if way_in == "enqueue_plain" else {"meta_json": "{}"}
    grant(operator, "web", queue="a", max_waiting=2)
    first = put(web, **more)
    with web.transaction():
        put(web, delay=60.0, **more)
        with pytest.raises(ConfigurationLimitExceeded), web.transaction():
            put(web, **more)
    operator.execute("SELECT pgworkers.cancel(%s)", [first])
    put(web, **more)
    with pytest.raises(ConfigurationLimitExceeded):
        put(web, **more)
    assert admin.execute("SELECT count(*) FROM pgworkers.job").fetchone() == (2,)


def test_a_grant_of_a_dropped_role_stops_no_login(web: Session, operator: Session) -> None:
    grant(operator, "never was", queue="x")
    put(web)


def test_only_owner_and_operator_write_grants(
    web: Session, worker: Session, viewer: Session, owner: Session
) -> None:
    for conn in (web, worker, viewer):
        with pytest.raises(InsufficientPrivilege):
            grant(conn, "web")
    grant(owner, "web")


def test_operators_move_deadlines_and_others_do_not(
    admin: Session, web: Session, viewer: Session, operator: Session
) -> None:
    job = put(admin)
    for session in (web, viewer):
        with pytest.raises(InsufficientPrivilege):
            session.execute("SELECT pgworkers.set_deadline(%s, '1 h')", [job])
    assert operator.execute("SELECT pgworkers.set_deadline(%s, '1 h')", [job]).fetchone() == ("ready",)


def test_copy_obeys_the_same_grants(web: Session, operator: Session) -> None:
    with pytest.raises(InsufficientPrivilege):
        copy_jobs(web, "pgworkers", [NewJob("t", queue="a")])
    for statement in (
        "INSERT INTO pgworkers.job (queue, task) VALUES ('a', 't')",
        "COPY pgworkers.job (queue, task) FROM STDIN",
        "SELECT pgworkers.check_enqueue_grant('t', 'a')",
        "SELECT pgworkers.link_dependencies(1)",
        "SELECT pgworkers.find_parents('{1}', 'cancel', NULL)",
    ):
        with pytest.raises(InsufficientPrivilege):
            web.execute(statement.encode())
