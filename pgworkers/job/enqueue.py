"""Enqueue: one job by the SQL function that everybody else uses too, many by COPY."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import psycopg
import psycopg.errors
from psycopg.rows import tuple_row

from pgworkers.errors import ArgumentError, DuplicateJob, NotFound, SchemaOutOfDate, UsageError
from pgworkers.postgres.statements import Query, Statement

_ENQUEUE = Statement.beside(__file__, "enqueue")
_DEFAULTS = Statement.beside(__file__, "copy_defaults")
_COPY = Statement.beside(__file__, "copy_in")
_NOTIFY = Statement.beside(__file__, "copy_notify")

#: A COPY ends after so many rows or characters, so that none comes near the statement timeout and memory stays constant
#: however many jobs there are. All of them are in one transaction.
CHUNK_ROWS = 5000
CHUNK_CHARACTERS = 4 << 20

OnConflict = Literal["return", "replace", "raise"]
OnFailed = Literal["cancel", "run", "wait"]


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be. None: what the task says. Durations are seconds, memory is bytes."""

    task: str
    args_json: str = "{}"
    queue: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    delay: float | None = None
    unique: str | None = None
    on_conflict: OnConflict = "return"
    max_attempts: int | None = None
    max_crashes: int | None = None
    timeout: float | None = None
    memory: int | None = None
    deadline: float | None = None
    expires: float | None = None
    concurrency_key: str | None = None
    meta_json: str | None = None
    after: tuple[int, ...] = ()  # waits until these jobs ended
    on_failed: OnFailed = "cancel"  # what it means when one of them did not succeed
    held: bool = False  # waits until it is released
    batch: int | None = None  # only by COPY


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The job's id, and whether it is new: a unique key may have led to one that was there."""

    id: int
    created: bool


def enqueue(job: NewJob) -> Query[Enqueued]:
    """Enqueue one job. Errors of the database become ours by `translate`."""
    params = {
        "task": job.task,
        "args": job.args_json,
        "queue": job.queue,
        "priority": job.priority,
        "run_at": job.run_at,
        "delay": job.delay,
        "unique": job.unique,
        "on_conflict": job.on_conflict,
        "max_attempts": job.max_attempts,
        "max_crashes": job.max_crashes,
        "timeout": job.timeout,
        "memory": job.memory,
        "deadline": job.deadline,
        "expires": job.expires,
        "concurrency_key": job.concurrency_key,
        "meta": job.meta_json,
        "after": list(job.after),
        "on_failed": job.on_failed,
        "held": job.held,
    }
    return Query(_ENQUEUE, params, lambda rows: Enqueued(*rows[0]))


def translate(error: psycopg.Error) -> Exception:
    """What an error while enqueueing means to the caller: `raise translate(error) from error`."""
    constraint = error.diag.constraint_name
    match error:
        case psycopg.errors.UniqueViolation() if constraint == "job_unique" and error.diag.message_detail:
            return DuplicateJob(error.diag.message_hint or "", int(error.diag.message_detail))
        case psycopg.errors.NoDataFound():
            return NotFound(f"{_first_line(error)}; nothing was enqueued")
        case psycopg.errors.CheckViolation() if constraint in _REFUSALS:
            return ArgumentError(f"{_REFUSALS[constraint]}; nothing was enqueued")
        case (
            psycopg.errors.UndefinedFunction()
            | psycopg.errors.UndefinedTable()
            | psycopg.errors.InvalidSchemaName()
        ):
            return SchemaOutOfDate(
                "the database has no tables of pgworkers, or those of another version; nothing was enqueued; "
                "run pgworkers migrate up"
            )
        case psycopg.DataError() | psycopg.errors.StatementTooComplex():
            return ArgumentError(
                f"Postgres cannot store this job: {_first_line(error)}; nothing was enqueued"
            )
    return error


_REFUSALS = {
    "job_args_fit": "the arguments are larger than 4MB",
    "job_args_are_an_object": "the arguments are not a JSON object",
    "job_names_fit": "the queue's name is empty or longer than 200 bytes, or the task's longer than 500",
    "job_unique_fits": "the unique key is empty or longer than 1000 bytes",
    "job_budgets": "max_attempts and max_crashes must be at least 1",
}


def copy_in(
    conn: psycopg.Connection[Any],
    schema: str,
    jobs: Iterable[NewJob],
    progress: Callable[[int], None] | None = None,
) -> int:
    """Enqueue any number of jobs, all or none; inside the caller's transaction when there is one. Answers how many."""
    with _transaction(conn):
        with conn.cursor(row_factory=tuple_row) as cursor:
            copying = _Copying.begin(cursor.execute(_DEFAULTS.render(schema)).fetchall())
        for chunk in _chunks(jobs):
            with conn.cursor(row_factory=tuple_row) as cursor, cursor.copy(_COPY.render(schema)) as copy:
                for job in chunk:
                    copy.write_row(copying.row(job))
            copying.told(progress)
        conn.execute(_NOTIFY.render(schema), {"queues": sorted(copying.ready)})
    return copying.count


async def acopy_in(
    conn: psycopg.AsyncConnection[Any],
    schema: str,
    jobs: Iterable[NewJob],
    progress: Callable[[int], None] | None = None,
) -> int:
    """`copy_in` on an async connection."""
    async with _atransaction(conn):
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(_DEFAULTS.render(schema))
            copying = _Copying.begin(await cursor.fetchall())
        for chunk in _chunks(jobs):
            async with (
                conn.cursor(row_factory=tuple_row) as cursor,
                cursor.copy(_COPY.render(schema)) as copy,
            ):
                for job in chunk:
                    await copy.write_row(copying.row(job))
            copying.told(progress)
        await conn.execute(_NOTIFY.render(schema), {"queues": sorted(copying.ready)})
    return copying.count


@contextmanager
def _transaction(conn: psycopg.Connection[Any]) -> Iterator[None]:
    if conn.autocommit:
        with conn.transaction():
            # The transaction is ours, and so is the time the caller's iterator takes.
            conn.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            yield
    else:
        conn.execute(
            "SELECT"
        )  # begins the caller's transaction, so that ours is a savepoint in it and commits nothing
        with conn.transaction():
            yield


@asynccontextmanager
async def _atransaction(conn: psycopg.AsyncConnection[Any]) -> AsyncIterator[None]:
    if conn.autocommit:
        async with conn.transaction():
            await conn.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            yield
    else:
        await conn.execute("SELECT")
        async with conn.transaction():
            yield


def _chunks(jobs: Iterable[NewJob]) -> Iterator[list[NewJob]]:
    """Gathered before it is sent: while COPY runs nobody waits for the caller's iterator."""
    chunk: list[NewJob] = []
    characters = 0
    for job in jobs:
        chunk.append(job)
        characters += len(job.args_json)
        if len(chunk) >= CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


@dataclass(slots=True)
class _Copying:
    """Rows for COPY, from the database's clock and what the deployed apps said about their tasks."""

    now: datetime
    tasks: dict[str, tuple[str, int, int, int]]
    ready: set[str]
    count: int = 0

    @classmethod
    def begin(cls, rows: list[tuple[Any, ...]]) -> _Copying:
        return cls(rows[0][0], {row[1]: row[2:] for row in rows if row[1] is not None}, set())

    def told(self, progress: Callable[[int], None] | None) -> None:
        if progress is not None:
            progress(self.count)

    def row(self, job: NewJob) -> tuple[Any, ...]:
        if job.unique is not None or job.after or job.held:
            what = "a unique key" if job.unique is not None else "after="
            raise UsageError(
                f"{job.task}: a job with {what} cannot be enqueued in bulk; nothing was enqueued; enqueue it by itself"
            )
        queue, priority, max_attempts, max_crashes = self.tasks.get(job.task, ("default", 0, 10, 3))
        queue = queue if job.queue is None else job.queue
        due = (job.run_at or self.now) + timedelta(seconds=job.delay or 0.0)
        later = due > self.now
        self.count += 1
        if not later:
            self.ready.add(queue)
        return (
            "scheduled" if later else "ready",
            priority if job.priority is None else job.priority,
            queue,
            job.task,
            job.args_json,
            max_attempts if job.max_attempts is None else job.max_attempts,
            max_crashes if job.max_crashes is None else job.max_crashes,
            due,
            None if job.expires is None else due + timedelta(seconds=job.expires),
            None if job.deadline is None else due + timedelta(seconds=job.deadline),
            None if job.timeout is None else timedelta(seconds=job.timeout),
            job.memory,
            job.concurrency_key,
            job.meta_json,
            job.batch,
            job.batch is not None,
        )


def _first_line(error: psycopg.Error) -> str:
    return (error.diag.message_primary or str(error) or type(error).__name__).splitlines()[0]
