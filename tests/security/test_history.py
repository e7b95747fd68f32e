"""Operators cannot rewrite history: what they do to finished jobs goes through functions that leave a trace."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege
from support.attacked_host import not_refused
from support.database_host import DatabaseHost

from pgworkers.job import batches, cancel, enqueue, operations, queues, requests, requeue
from pgworkers.job.claim import end_oversized_jobs
from pgworkers.job.copy import copy_jobs
from pgworkers.job.model import JobState, NewJob
from pgworkers.job.operations import OperationNote
from pgworkers.limits import concurrency
from pgworkers.postgres.statements import run
from pgworkers.schedule import definitions

Session = psycopg.Connection[Any]
NOTE = OperationNote("wrong input", "anna@laptop")


@pytest.fixture
def dead(admin: Session) -> int:
    host = DatabaseHost(admin, "pgworkers")
    host.register()
    job = host.enqueue_and_claim()
    host.finish_job(job, JobState.DEAD, error="no")
    return job.id


NOT_ALLOWED = [
    "UPDATE pgworkers.history SET state = 'succeeded'",
    "DELETE FROM pgworkers.history",
    "INSERT INTO pgworkers.history SELECT * FROM pgworkers.history",
    "TRUNCATE pgworkers.history",
    "UPDATE pgworkers.history_default SET state = 'succeeded'",
    "UPDATE pgworkers.attempt SET error = 'no'",
    "DELETE FROM pgworkers.attempt",
    "INSERT INTO pgworkers.operation (verb, job_id) VALUES ('cancel', 1)",
    "UPDATE pgworkers.operation SET login = 'somebody'",
    "DELETE FROM pgworkers.operation",
    "UPDATE pgworkers.job SET args = '{}'",
    "UPDATE pgworkers.job SET errors = '{}'",
    "UPDATE pgworkers.job SET enqueued_by = 'somebody'",
    "UPDATE pgworkers.job SET created_at = now()",
    "UPDATE pgworkers.job SET state = 'scheduled'",
    "INSERT INTO pgworkers.job (queue, task, enqueued_by) VALUES ('q', 't', 'somebody')",
    "INSERT INTO pgworkers.job (queue, task, created_at, errors) VALUES ('q', 't', now(), '{no}')",
    "DELETE FROM pgworkers.job",
    "DELETE FROM pgworkers.dependency",
    "UPDATE pgworkers.batch SET finished_at = now()",
    "UPDATE pgworkers.tick SET reason = 'no'",
    "UPDATE pgworkers.queue SET declared_retention = '0'",
    "SELECT pgworkers.end_jobs('{1}', 'host_lost', 'no')",
]


def test_an_operator_writes_neither_history_nor_its_trace(operator: Session, dead: int) -> None:
    assert not_refused(operator, NOT_ALLOWED, InsufficientPrivilege) == []


def traces(conn: Session, job: int) -> list[tuple[Any, ...]]:
    return [
        (one.verb, one.login, one.os_user, one.reason, one.state)
        for one in run(conn, "pgworkers", operations.operations_of_job(job))
    ]


def test_a_retry_leaves_a_trace_of_the_end_that_it_took_away(
    operator: Session, admin: Session, dead: int
) -> None:
    (done,) = run(operator, "pgworkers", requeue.requeue([dead], NOTE))
    assert done.outcome == "requeued"
    assert traces(operator, dead) == [("retry", "operator", "anna@laptop", "wrong input", "dead")]
    assert admin.execute("SELECT count(*) FROM pgworkers.history").fetchone() == (0,)


def test_a_purge_leaves_a_trace_of_the_job_that_it_forgot(
    operator: Session, admin: Session, dead: int
) -> None:
    assert run(operator, "pgworkers", cancel.purge_dead([dead], NOTE)) == [dead]
    assert traces(operator, dead) == [("forget", "operator", "anna@laptop", "wrong input", "dead")]
    assert admin.execute("SELECT count(*) FROM pgworkers.attempt").fetchone() == (0,)


def test_cancel_and_discard_leave_a_trace(operator: Session, admin: Session) -> None:
    host = DatabaseHost(admin, "pgworkers")
    host.register()
    running = host.enqueue_and_claim().id
    first, second, third = host.enqueue(), host.enqueue(), host.enqueue()
    run(operator, "pgworkers", cancel.cancel_many([running, first], NOTE))
    run(operator, "pgworkers", cancel.discard(second, NOTE))
    run(operator, "pgworkers", cancel.purge_waiting([running, third], NOTE))
    said = ("operator", "anna@laptop", "wrong input", None)
    assert traces(admin, running) == [("cancel", *said)], "it runs: a purge does nothing to it"
    assert traces(admin, first) == [("cancel", *said)]
    assert traces(admin, second) == [("discard", *said)]
    assert traces(admin, third) == [("purge", *said)]


def test_an_operator_chooses_neither_verdict_nor_trace(operator: Session, admin: Session) -> None:
    job = DatabaseHost(admin, "pgworkers").enqueue()
    for function in ("cancel_many", "discard_many"):
        for choice in ("should_record => false", "verdict => 'unfit'", "error_line => 'mine'"):
            with pytest.raises(psycopg.errors.UndefinedFunction):
                operator.execute(f"SELECT pgworkers.{function}(ARRAY[%s::bigint], {choice})".encode(), [job])
    assert admin.execute("SELECT count(*) FROM pgworkers.job").fetchone() == (1,)
    operator.execute("SELECT pgworkers.discard_many(ARRAY[%s::bigint])", [job])
    kept = admin.execute("SELECT verdict, errors FROM pgworkers.history").fetchone()
    assert kept == ("discarded", ["discarded by an operator"])
    assert [trace[:2] for trace in traces(admin, job)] == [("discard", "operator")]


def test_a_change_of_the_retention_leaves_a_trace(operator: Session, admin: Session) -> None:
    admin.execute("INSERT INTO pgworkers.queue (name) VALUES ('q')")
    operator.execute("UPDATE pgworkers.queue SET retention = '0'")
    operator.execute("UPDATE pgworkers.queue SET paused = true")
    run(operator, "pgworkers", queues.set_retention("q", None))
    found = admin.execute("SELECT verb, queue, login, reason FROM pgworkers.operation ORDER BY id").fetchall()
    assert found == [
        ("retention", "q", "operator", "from the default to 00:00:00"),
        ("retention", "q", "operator", "from 00:00:00 to the default"),
    ]


def test_a_postponed_result_is_not_an_operation(worker: Session, admin: Session) -> None:
    admin.execute("ALTER DOMAIN pgworkers.arguments DROP CONSTRAINT job_args_fit")
    job = DatabaseHost(admin, "pgworkers").enqueue()
    admin.execute(
        "UPDATE pgworkers.job SET queue = 'q', task = 't', args = jsonb_build_object('value',"
        " (SELECT jsonb_agg(1e131071::numeric) FROM generate_series(1, 100)))"
    )
    assert [one.id for one in run(worker, "pgworkers", end_oversized_jobs(["q"], ["t"]))] == [job]
    assert traces(admin, job) == []


def test_an_operator_moves_no_deadline_without_a_trace(operator: Session, admin: Session) -> None:
    host = DatabaseHost(admin, "pgworkers")
    host.register()
    job = host.enqueue()
    with pytest.raises(InsufficientPrivilege):
        operator.execute("UPDATE pgworkers.job SET deadline_at = now() WHERE id = %s", [job])
    assert run(operator, "pgworkers", cancel.set_deadline(job, 60.0)) == "ready"
    assert [trace[0] for trace in traces(admin, job)] == ["deadline"]


def test_every_verb_of_an_operator_still_works(operator: Session, admin: Session) -> None:
    """Those that test_roles.py has no row for, on rows that are there."""
    host = DatabaseHost(admin, "pgworkers")
    host.register()
    admin.execute("INSERT INTO pgworkers.queue (name) VALUES ('q')")
    admin.execute("INSERT INTO pgworkers.schedule (name, task, every) VALUES ('s', 't', 60)")
    admin.execute("INSERT INTO pgworkers.batch (total) VALUES (1)")
    running, waiting, member = host.enqueue_and_claim().id, host.enqueue(), host.enqueue()
    admin.execute("UPDATE pgworkers.job SET batch_id = 1, has_links = true WHERE id = %s", [member])
    task = admin.execute("SELECT task FROM pgworkers.job WHERE id = %s", [running]).fetchone()
    assert task is not None
    assert run(operator, "pgworkers", cancel.set_deadline(waiting, 60.0)) == "ready"
    assert run(operator, "pgworkers", concurrency.set_limit("task", task[0], 1))
    assert run(operator, "pgworkers", queues.scale_queue("q", cluster=2))
    assert run(operator, "pgworkers", queues.pause_queue("q"))
    assert run(operator, "pgworkers", queues.set_retention("q", 60.0))
    (schedule,) = run(operator, "pgworkers", definitions.list_schedules("s"))
    assert len(run(operator, "pgworkers", definitions.run_now(schedule)).ticks) == 1
    operator.execute("SELECT pgworkers.cancel(%s)", [running])
    assert (
        run(operator, "pgworkers", requests.request_for_job(requests.RequestKind.SUSPEND, running))
        is not None
    )
    run(operator, "pgworkers", batches.cancel_batch(1))
    run(operator, "pgworkers", batches.cancel_batch_jobs(1, 10))
    assert [trace[0] for trace in traces(admin, member)] == ["cancel"]
    assert admin.execute("SELECT finished_at IS NOT NULL FROM pgworkers.batch").fetchone() == (True,)
    run(operator, "pgworkers", enqueue.enqueue(NewJob("t", queue="q", unique_key="u", args_json="{}")))
    assert copy_jobs(operator, "pgworkers", [NewJob("t", queue="q", delay=60.0, meta_json="{}")]) == 1
    assert admin.execute("SELECT count(*) FROM pgworkers.job WHERE enqueued_by = 'operator'").fetchone() == (
        3,
    )
