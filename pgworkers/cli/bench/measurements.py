"""The measurements of `pgworkers bench`: round trips, enqueueing, a host at work. Each returns plain numbers.

Everything happens in a schema of its own, whose name is locked by an advisory lock. A schema whose lock is free was left
by a killed run, and the next run drops it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import IO, Any

import psycopg
from psycopg import sql

from pgworkers.app import App
from pgworkers.errors import PgworkersError
from pgworkers.postgres import migrate
from pgworkers.postgres.connect import connect
from pgworkers.postgres.statements import Query, Statement, run
from pgworkers.settings import Settings

BENCH_SCHEMA_PREFIX = "pgworkers_bench_"
#: How long a host may take to start, and to do all its jobs.
HOST_TIMEOUT_SECONDS = 120.0
HOST_STOP_TIMEOUT_SECONDS = 15.0
_ENDED = Statement.from_file(__file__, "measurements_ended")
#: Options of a `run` that is not this one; settings are passed on, they are what the user wants to know about.
_EXCLUDED_VARIABLES = {
    f"PGWORKERS_{name}" for name in ("QUEUES", "WORKERS", "CONFIG", "BURST", "RELOAD", "CHECK", "QUIET")
}
ProgressCallback = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class BenchSchema:
    """The schema of this run in the user's database."""

    conn: psycopg.Connection[Any]
    dsn: str
    schema: str
    settings: Settings


@contextmanager
def bench_schema(conn: psycopg.Connection[Any], dsn: str, settings: Settings) -> Iterator[BenchSchema]:
    """Create a schema, and drop it at the end in every case."""
    _refuse_unwritable(conn)
    _drop_leftovers(conn)
    name = BENCH_SCHEMA_PREFIX + uuid.uuid4().hex[:8]
    conn.execute("SELECT pg_advisory_lock(hashtext(%s))", [name])
    try:
        migrate.up(conn, name)
        yield BenchSchema(conn, dsn, name, replace(settings, schema=name, dsn=dsn))
    finally:
        with ignoring_signals():
            drop = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name))
            try:
                conn.execute(drop)
                conn.execute("SELECT pg_advisory_unlock(hashtext(%s))", [name])
            except psycopg.OperationalError:  # the interruption came in the middle of a statement
                conn.close()
                with closing(connect(settings, dsn, "bench")) as fresh:
                    fresh.execute(drop)


@contextmanager
def ignoring_signals() -> Iterator[None]:
    """Ignore signals during the cleanup, so that a second Ctrl-C does not interrupt it."""
    before: list[Any] = [signal.signal(signum, signal.SIG_IGN) for signum in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for signum, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(signum, handler)


def _refuse_unwritable(conn: psycopg.Connection[Any]) -> None:
    row = conn.execute(
        "SELECT pg_is_in_recovery(), has_database_privilege(current_database(), 'CREATE'), current_user::text,"
        " current_database()::text"
    ).fetchone()
    standby, allowed, user, database = row or (False, False, "?", "?")
    if standby:
        raise PgworkersError("this database is a standby and cannot be written to; nothing was measured")
    if not allowed:
        raise PgworkersError(
            f"{user} may not create a schema in {database}; nothing was measured. GRANT CREATE ON DATABASE {database} "
            f"TO {user}, or measure as another user with --dsn"
        )


def _drop_leftovers(conn: psycopg.Connection[Any]) -> None:
    """Schemas of runs that were killed: no session holds their lock."""
    found = conn.execute(
        "SELECT nspname FROM pg_namespace WHERE starts_with(nspname, %s)", [BENCH_SCHEMA_PREFIX]
    ).fetchall()
    for (name,) in found:
        got = conn.execute("SELECT pg_try_advisory_lock(hashtext(%s))", [name]).fetchone()
        if got and got[0]:
            conn.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))
            conn.execute("SELECT pg_advisory_unlock(hashtext(%s))", [name])


# -- the way to the database -----------------------------------------------------------------------------------------


def round_trip_latencies(site: BenchSchema, count: int) -> list[float]:
    """Milliseconds of a statement that does nothing."""
    return [_milliseconds(lambda: site.conn.execute("SELECT 1")) for _ in range(count)]


def notification_latencies(site: BenchSchema, count: int) -> list[float]:
    """Milliseconds from NOTIFY, sent by one connection, until another one has it."""
    found = []
    channel = f"{site.schema}_echo"
    with closing(psycopg.connect(site.dsn, autocommit=True)) as ear:
        ear.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        for _ in range(count):
            began = time.perf_counter()
            site.conn.execute("SELECT pg_notify(%s, '')", [channel])
            if not list(ear.notifies(timeout=5, stop_after=1)):
                raise PgworkersError(
                    "a notification did not arrive within 5 s; a transaction pooler? Use --dsn of the server"
                )
            found.append((time.perf_counter() - began) * 1000)
    return found


def _milliseconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1000


# -- enqueueing ------------------------------------------------------------------------------------------------------


@contextmanager
def bound_app(site: BenchSchema) -> Iterator[App]:
    """The app, enqueueing into our schema."""
    from pgworkers.cli.bench.app import app

    app.use_database(site.dsn, site.settings)
    try:
        yield app
    finally:
        app.close()


def enqueue_one_by_one(app: App, count: int, done: ProgressCallback) -> float:
    """Jobs per second, one commit each."""
    task = app.tasks["do_nothing"]
    began = time.perf_counter()
    for number in range(count):
        task.enqueue(number)
        done(number + 1)
    return count / (time.perf_counter() - began)


def enqueue_in_bulk(app: App, count: int) -> float:
    """Jobs per second, streamed by COPY."""
    task = app.tasks["do_nothing"]
    began = time.perf_counter()
    app.enqueue_many(task.prepare(number) for number in range(count))
    return count / (time.perf_counter() - began)


# -- a host at work --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EndedJobs:
    count: int
    seconds: float  # from the first start to the last end, on the server's clock
    start_times: dict[str, float]  # of the jobs after a given one


def ended_jobs(site: BenchSchema, after: int = 1 << 62) -> EndedJobs:
    query: Query[EndedJobs] = Query(_ENDED, {"after": after}, lambda found: found[0], record=EndedJobs)
    return run(site.conn, site.schema, query)


@dataclass(frozen=True, slots=True)
class BenchHost:
    process: subprocess.Popen[bytes]
    stderr: IO[bytes]  # to stderr


@contextmanager
def running_host(site: BenchSchema, workers: int) -> Iterator[BenchHost]:
    """Run a real `pgworkers run` on our schema. It gets the address in its environment, which `ps` does not show."""
    environ = {name: value for name, value in os.environ.items() if name not in _EXCLUDED_VARIABLES}
    environ |= {"PGWORKERS_SCHEMA": site.schema, "PGWORKERS_METRICS_ADDRESS": "off"}
    environ |= {"PGWORKERS_DSN": site.dsn} if site.dsn else {}
    output = tempfile.TemporaryFile()  # noqa: SIM115 (closed below, after the process)
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "pgworkers",
            "-q",
            "run",
            "-c",
            "pgworkers.cli.bench.app:app",
            "-w",
            str(workers),
        ],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=output,
        start_new_session=True,  # Ctrl-C is for us: it ends when we say so
    )
    try:
        yield BenchHost(process, output)
    finally:
        with ignoring_signals():
            process.terminate()
            try:
                process.wait(HOST_STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()  # its tree goes with it
                process.wait()
            output.close()


def wait_until_drained(site: BenchSchema, host: BenchHost, count: int, done: ProgressCallback) -> EndedJobs:
    """Wait until the host has done everything."""
    give_up = time.monotonic() + HOST_TIMEOUT_SECONDS
    while True:
        found = ended_jobs(site)
        done(found.count)
        if found.count >= count:
            return found
        if host.process.poll() is not None:
            host.stderr.seek(0)
            output = host.stderr.read().decode(errors="replace").strip()
            raise PgworkersError(
                f"the host ended before its jobs did: {output[-500:] or host.process.returncode}"
            )
        if time.monotonic() > give_up:
            raise PgworkersError(
                f"only {found.count} of {count} jobs were done within {HOST_TIMEOUT_SECONDS:.0f} s"
            )
        time.sleep(0.1)


def pickup_latencies(site: BenchSchema, app: App, count: int, done: ProgressCallback) -> list[float]:
    """Milliseconds from the call of an enqueue to the start of its handler, on an idle host: by its return it may run."""
    task, sent = app.tasks["do_nothing"], {}
    first = 0
    for number in range(count):
        called = time.time()
        job = task.enqueue(number)
        sent[str(job.id)] = called
        first = first or job.id
        done(number + 1)
        time.sleep(0.05)
    give_up = time.monotonic() + 10
    while True:
        results = ended_jobs(site, first - 1).start_times
        if len(results) >= count or time.monotonic() > give_up:
            return [(began - sent[job]) * 1000 for job, began in results.items() if job in sent]
        time.sleep(0.1)


def wal_bytes(site: BenchSchema) -> int:
    """Bytes of the write-ahead log so far."""
    row = site.conn.execute("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint").fetchone()
    return int(row[0]) if row else 0
