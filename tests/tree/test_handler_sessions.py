"""The job's SQL dies with it: sessions of `ctx.connect()` are named after job and lease, and gone when it is."""

from __future__ import annotations

import os
import signal

import psycopg
import pytest
from support.cluster import Cluster, wait_for
from support.ledger import audit, read

from pgworkers.job.handler_sessions import end_handler_sessions, session_name
from pgworkers.postgres.statements import run

TASKS = """

@app.task(retries=1, backoff="10m")
def ask(ctx: Ctx, how: str = "sleep") -> Any:
    conn = ctx.connect(autocommit=how != "tidy")
    note(ctx, "START")
    match how:
        case "name":
            note(ctx, "END")
            return conn.execute("SHOW application_name").fetchone()[0], conn.execute("SHOW statement_timeout").fetchone()[0]
        case "sleep":
            conn.execute("SELECT pg_sleep(600)")
        case "stubborn":
            while True:
                try:
                    ctx.connect(autocommit=True).execute("SELECT pg_sleep(600)")
                except BaseException:
                    pass
        case "tidy":
            try:
                conn.execute("SELECT pg_sleep(600)")
            finally:
                conn.rollback()
                print("usable:", conn.execute("SELECT 7").fetchone()[0])
        case "with":
            with conn:
                conn.execute("SELECT pg_sleep(600)")
        case "thread":
            import threading
            threading.Thread(target=conn.execute, args=("SELECT pg_sleep(600)",), daemon=True).start()
            time.sleep(600)


@app.task(retries=1, backoff="10m")
async def ask_async(ctx: Ctx) -> None:
    conn = await ctx.aconnect(autocommit=True)
    note(ctx, "START")
    await conn.execute("SELECT pg_sleep(600)")
"""

SLEEPING = (
    "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%pg_sleep(600)%%' AND pid <> pg_backend_pid()"
)
NAMED = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"


@pytest.fixture
def sql(cluster: Cluster) -> Cluster:
    cluster.app.write_text(cluster.app.read_text() + TASKS)
    return cluster


def busy(cluster: Cluster, task: str = "ask", **how: str) -> int:
    """A job whose session sleeps on the server under its name."""
    options = {"timeout": how.pop("timeout")} if "timeout" in how else {}
    [job] = cluster.enqueue(task, args=dict(how), **options)
    wait_for(lambda: cluster.db.execute(SLEEPING).fetchone()[0], what="the statement runs")
    assert cluster.db.execute(NAMED, (f"pgworkers job {job} lease 1",)).fetchone()[0]
    return job


def gone(cluster: Cluster, job: int) -> None:
    name = f"pgworkers job {job} lease 1"
    wait_for(lambda: cluster.db.execute(NAMED, (name,)).fetchone() == (0,), what="no session")


def test_a_handler_session_names_its_job_and_has_none_of_our_limits(sql: Cluster) -> None:
    sql.start(queues="default:1")
    [job] = sql.enqueue("ask", args={"how": "name"})
    assert sql.until(job, "succeeded")["result"] == [f"pgworkers job {job} lease 1", "0"]
    gone(sql, job)


@pytest.mark.parametrize("how", ["sleep", "with", "tidy", "thread"])
def test_a_cancel_ends_the_statement_and_keeps_the_worker(sql: Cluster, how: str) -> None:
    # a handler that is slow to unwind on a busy machine is not one that has to be killed
    master = sql.start(queues="default:1", PGWORKERS_RAISE_GRACE="60s")
    workers = master.worker_pids()
    job = busy(sql, how=how)
    sql.db.execute("SELECT pgworkers.cancel(%s)", (job,))
    sql.until(job, "cancelled")
    gone(sql, job)
    [attempt] = sql.attempts(job)
    assert [rung["rung"] for rung in attempt["rungs"]] == ["ask", "raise"]
    if how == "tidy":
        assert "usable: 7" in attempt["output"]
    assert master.worker_pids() == workers


def test_an_async_handler_is_cancelled_in_its_statement(sql: Cluster) -> None:
    sql.start(queues="default:1")
    job = busy(sql, "ask_async")
    sql.db.execute("SELECT pgworkers.cancel(%s)", (job,))
    sql.until(job, "cancelled")
    gone(sql, job)


def test_the_sessions_of_a_killed_handler_are_gone_before_its_end_is_written(sql: Cluster) -> None:
    master = sql.start(queues="default:1", PGWORKERS_SUPERVISOR_TIMEOUT="60s")
    [supervisor] = master.supervisor_pids()
    os.kill(supervisor, signal.SIGSTOP)  # its clock decides: the deadline waits until the statement was seen
    job = busy(sql, how="stubborn", timeout="0.5 seconds")
    os.kill(supervisor, signal.SIGCONT)
    wait_for(lambda: sql.attempts(job))
    gone(sql, job)
    assert sql.attempts(job)[0]["verdict"] == "timeout"
    assert sql.attempts(job)[0]["exit_status"] == "SIGKILL"


def test_a_crash_leaves_no_session(sql: Cluster) -> None:
    sql.start(queues="default:1")
    job = busy(sql)
    os.kill(read(sql.ledger)[0].pid, signal.SIGKILL)
    gone(sql, job)
    assert wait_for(lambda: sql.attempts(job))[0]["verdict"] == "crash"
    assert audit(sql.db, sql.ledger, [job]) == []


def test_a_drain_leaves_no_session(sql: Cluster) -> None:
    master = sql.start(queues="default:1", PGWORKERS_DRAIN_TIMEOUT="0.2s")
    job = busy(sql, how="stubborn")
    assert master.terminate() == 0, master.log()
    gone(sql, job)


def test_the_sessions_of_a_lost_host_end_when_its_jobs_are_rescued(sql: Cluster) -> None:
    first = sql.start(queues="default:1")
    job = busy(sql)
    first.signal(signal.SIGKILL)
    first.wait()
    sql.start(queues="default:1")
    wait_for(lambda: sql.attempts(job), what="rescued")
    gone(sql, job)


def test_only_sessions_of_that_very_execution_are_ended(dsn: str, db: psycopg.Connection[object]) -> None:
    with (
        psycopg.connect(dsn, application_name=session_name("pgworkers", 7, 1)) as old,
        psycopg.connect(dsn, application_name=session_name("pgworkers", 7, 11)) as younger,
        psycopg.connect(dsn, application_name=session_name("pgworkers", 71, 1)) as neighbour,
        psycopg.connect(dsn, application_name=session_name("second", 7, 1)) as install,
        psycopg.connect(dsn, application_name="psql") as stranger,
    ):
        assert run(db, "pgworkers", end_handler_sessions([(7, 1), (8, 1)])) == 1
        for living in (younger, neighbour, install, stranger):
            living.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            old.execute("SELECT 1")
