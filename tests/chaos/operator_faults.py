"""Faults caused by people: locks left open, cancels, pauses, changed numbers of workers."""

from __future__ import annotations

import random
import time
from typing import Any

import psycopg

from chaos.environment import QUEUES, Host, SoakEnvironment, boottime
from chaos.nemesis import kind
from pgworkers.job import cancel, queues, requests, requeue
from pgworkers.postgres.statements import Query, run


def _ask(soak: SoakEnvironment, query: Query[Any]) -> Any:
    return soak.asking(lambda conn: run(conn, "pgworkers", query))


def _hold(soak: SoakEnvironment, statement: str, seconds: float) -> int | None:
    """Run a statement in a transaction that stays open. Returns its number of rows; None if the server was away."""
    try:
        with psycopg.connect(soak.postgres.dsn, application_name="chaos operator") as conn:
            conn.execute("SET lock_timeout = '2s'")
            found = len(conn.execute(statement.encode()).fetchall())
            if found:
                time.sleep(seconds)
            conn.rollback()
            return found
    except psycopg.Error:
        return None


@kind("lock.running")
def lock_running(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    found = _hold(
        soak,
        "SELECT id FROM pgworkers.job WHERE state = 'running' ORDER BY random() LIMIT 2 FOR UPDATE",
        soak.settings.statement_timeout + draw.uniform(0.5, 2.0),
    )
    return f"{found} running jobs" if found else None


@kind("lock.ready")
def lock_ready(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    found = _hold(soak, "SELECT id FROM pgworkers.job WHERE state <> 'running' LIMIT 20 FOR UPDATE", 2.0)
    return f"{found} waiting jobs" if found else None


@kind("lock.host")
def lock_host(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    """A host's row cannot be renewed."""
    seconds = soak.settings.lease_duration * draw.choice([0.5, 1.3])
    found = _hold(soak, "SELECT id FROM pgworkers.host ORDER BY random() LIMIT 1 FOR UPDATE", seconds)
    return f"a host's row for {seconds:.1f} s" if found else None


@kind("lock.table")
def lock_table(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    """What a migration or VACUUM FULL does."""
    try:
        with psycopg.connect(soak.postgres.dsn) as conn:
            conn.execute("SET lock_timeout = '2s'")
            conn.execute("LOCK TABLE pgworkers.job IN ACCESS EXCLUSIVE MODE")
            time.sleep(soak.settings.statement_timeout * draw.choice([0.5, 1.8]))
            conn.rollback()
    except psycopg.Error:
        return None
    return "pgworkers.job"


@kind("transaction.long")
def long_transaction(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    """Pins the horizon of vacuum."""
    try:
        with psycopg.connect(soak.postgres.dsn) as conn:
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            conn.execute("SELECT count(*) FROM pgworkers.job")
            time.sleep(draw.uniform(3.0, 6.0))
            conn.rollback()
    except psycopg.Error:
        return None
    return "repeatable read"


@kind("vacuum")
def vacuum(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    try:
        with soak.connect() as conn:
            conn.execute("SET lock_timeout = '2s'")
            conn.execute(draw.choice([b"VACUUM ANALYZE pgworkers.job", b"VACUUM FULL pgworkers.job"]))
    except psycopg.Error:
        return None
    return "pgworkers.job"


@kind("cancel.storm")
def cancel_storm(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    """Cancel running and waiting jobs. Jobs whose cancel was acknowledged must not start afterwards."""
    ids = [
        row[0]
        for row in soak.rows(
            "SELECT id FROM pgworkers.job WHERE task IN ('sturdy', 'polite', 'alone', 'spin', 'progress')"
            " AND batch_id IS NULL ORDER BY (state = 'running') DESC, random() LIMIT 8"
        )
    ]
    done = []
    for job in ids:
        try:
            with soak.connect() as conn:
                answer = run(conn, "pgworkers", cancel.cancel(job))
                at = boottime()
                lease = conn.execute(
                    "SELECT max(lease) FROM (SELECT lease FROM pgworkers.job WHERE id = %(id)s UNION ALL"
                    " SELECT lease FROM pgworkers.history WHERE id = %(id)s) l",
                    {"id": job},
                ).fetchone()
        except psycopg.Error:
            soak.cancelled_maybe.add(job)
            continue
        soak.cancelled_maybe.add(job)
        if answer in ("cancelled", "cancelling") and lease is not None:
            done.append(job)
            soak.cancelled[job] = (answer, at, lease[0])
    return f"{len(done)} jobs" if done else None


@kind("requeue")
def requeue_dead(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    """An operator requeues dead jobs."""
    ids = [
        row[0]
        for row in soak.rows(
            "SELECT id FROM pgworkers.history WHERE state = 'dead' ORDER BY random() LIMIT 3"
        )
    ]
    soak.requeued.update(ids)
    found = [one for one in _ask(soak, requeue.requeue(ids)) if one.outcome == "requeued"]
    return f"{len(found)} jobs" if found else None


@kind("suspend")
def suspend(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    """A running job is suspended by a command and resumed by another."""
    ids = soak.rows("SELECT id FROM pgworkers.job WHERE state = 'running' ORDER BY random() LIMIT 1")
    if not ids:
        return None
    job = ids[0][0]
    asked = _ask(soak, requests.request_for_job(requests.RequestKind.SUSPEND, job))
    if asked is None:
        return None
    time.sleep(draw.uniform(0.5, 2.0))
    answers = _ask(soak, requests.read_answers([asked]))
    _ask(soak, requests.request_for_job(requests.RequestKind.RESUME, job))
    return f"job {job}: {answers[0].text if answers else 'no answer'}"


@kind("kill.order")
def kill_order(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    """`jobs kill`."""
    ids = soak.rows("SELECT id FROM pgworkers.job WHERE state = 'running' ORDER BY random() LIMIT 1")
    if not ids:
        return None
    asked = _ask(soak, requests.request_for_job(requests.RequestKind.KILL, ids[0][0]))
    return f"job {ids[0][0]}" if asked is not None else None


@kind("scale")
def scale(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    name = draw.choice(list(QUEUES))
    wanted = draw.choice([1, 3, 4])
    _ask(soak, queues.scale_queue(name, workers=wanted))
    time.sleep(draw.uniform(1.0, 3.0))
    _ask(soak, queues.scale_queue(name))
    return f"{name} to {wanted} and back"


@kind("pause")
def pause(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    name = draw.choice(list(QUEUES))
    _ask(soak, queues.pause_queue(name))
    time.sleep(draw.uniform(0.5, 2.0))
    _ask(soak, queues.resume_queue(name))
    return name


@kind("flood")
def flood(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    """Many notifications with meaningless payloads, some of them hostile."""
    try:
        with soak.connect() as conn:
            for nth in range(300):
                text = draw.choice(
                    ["ready:no such queue", "x", "cancel:abc", f"queue:{nth}", "batch:-1", ":"]
                )
                conn.execute("SELECT pg_notify('pgworkers', %s)", [text])
    except psycopg.Error:
        return None
    return "300 notifications"
