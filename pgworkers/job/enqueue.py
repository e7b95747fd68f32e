"""Enqueue one job.

A job without options takes the faster SQL function `enqueue_plain()`, any other `enqueue()`. For a job without options both
insert the same row. Its queue, priority and limits must be known, the text of its arguments must be short and begin with
`{`, and no text may have a NUL character. For many jobs see `copy`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
import psycopg.errors

from pgworkers.errors import ArgumentError, DuplicateJob, NotFound, PgworkersError
from pgworkers.job.model import NewJob
from pgworkers.postgres.driver_errors import first_line, translate_error
from pgworkers.postgres.statements import Query, Statement

_ENQUEUE = Statement.from_file(__file__, "enqueue")
_ENQUEUE_PLAIN = Statement.from_file(__file__, "enqueue_plain")


_NO_PARAMS: dict[str, Any] = {}

#: Arguments of fewer characters cannot be nested too deeply.
MAX_PLAIN_ARGS_CHARACTERS = 256


class Enqueued(NamedTuple):
    """The answer to an enqueue."""

    id: int
    is_new: bool  # False: a job with the same unique or idempotency key already existed


def enqueue(job: NewJob, *, is_own_transaction: bool = False) -> Query[Enqueued]:
    """Enqueue one job. Errors of the database become ours by `enqueue_error`.

    `is_own_transaction`: the statement is a transaction of its own.
    """
    if _is_plain(job):
        wire = (
            job.task.encode(),
            job.args_json.encode(),
            str(job.queue).encode(),
            str(job.priority).encode(),
            str(job.max_attempts).encode(),
            str(job.max_crashes).encode(),
            b"t" if is_own_transaction else b"f",
        )
        return Query(_ENQUEUE_PLAIN, _NO_PARAMS, _read_new, encoded_params=wire)
    params = {
        "task": job.task,
        "args": job.args_json,
        "queue": job.queue,
        "priority": job.priority,
        "run_at": job.run_at,
        "delay": job.delay,
        "unique": job.unique_key,
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
        "held": job.is_held,
        "idempotency_key": job.idempotency_key,
        "idempotency_window": job.idempotency_window,
    }
    return Query(_ENQUEUE, params, _read_enqueued)


def _is_plain(job: NewJob) -> bool:
    """True if `enqueue_plain()` may take this job: no options, all values of its task known, short arguments."""
    return (
        job.queue is not None
        and job.priority is not None
        and job.max_attempts is not None
        and job.max_crashes is not None
        and job.delay is None
        and job.run_at is None
        and job.unique_key is None
        and job.idempotency_key is None
        and not job.after
        and not job.is_held
        and job.expires is None
        and job.deadline is None
        and job.timeout is None
        and job.memory is None
        and job.concurrency_key is None
        and job.meta_json is None
        and len(job.args_json) < MAX_PLAIN_ARGS_CHARACTERS
        and job.args_json.startswith("{")
        and "\0" not in f"{job.task}{job.queue}{job.args_json}"  # where a text ends on the wire
    )


def _read_new(rows: list[tuple[Any, ...]]) -> Enqueued:
    return Enqueued(rows[0][0], True)


def _read_enqueued(rows: list[tuple[Any, ...]]) -> Enqueued:
    return Enqueued(rows[0][0], rows[0][1])


def enqueue_error(error: psycopg.Error, role: str = "") -> PgworkersError:
    """What an error while enqueueing means to the caller: `raise enqueue_error(error) from error`.

    `role`: which of our roles may do what was tried.
    """
    constraint = error.diag.constraint_name
    match error:
        case psycopg.errors.UniqueViolation() if constraint == "job_unique" and error.diag.message_detail:
            return DuplicateJob(error.diag.message_hint or "", int(error.diag.message_detail))
        case psycopg.errors.NoDataFound():
            return NotFound(f"{first_line(error)}; nothing was enqueued")
        case psycopg.errors.CheckViolation() if constraint in _CONSTRAINT_MESSAGES:
            return ArgumentError(f"{_CONSTRAINT_MESSAGES[constraint]}; nothing was enqueued")
        case psycopg.DataError() | psycopg.errors.StatementTooComplex():
            return ArgumentError(f"Postgres cannot store this job: {first_line(error)}; nothing was enqueued")
    return translate_error(error, "nothing was enqueued", role)


_CONSTRAINT_MESSAGES = {
    "job_args_fit": "the arguments are larger than 4MB, as Postgres prints them",
    "job_args_are_flat": "the arguments are nested deeper than 128 levels",
    "job_args_are_an_object": "the arguments are not a JSON object",
    "job_names_fit": "the queue's or the task's name is empty or longer than 200 bytes",
    "job_names_are_plain": (
        "the queue's or the task's name has spaces around it, begins with -, or holds a comma, a colon or control characters"
    ),
    "job_unique_fits": "the unique key is empty or longer than 1000 bytes",
    "idempotency_key_fits": "the idempotency key is empty or longer than 1000 bytes",
    "job_concurrency_key_fits": "the concurrency key is empty or longer than 1000 bytes",
    "job_attempts_fit": "max_attempts and max_crashes must be from 1 to 10001",
    "job_priority_fits": "the priority is lower than -2147483647",
    "job_timestamps_fit": "run_at, or what delay, expires or deadline add to it, lies beyond the year 9999 or before 1970",
    "job_timeout_fits": "the timeout must be longer than 0 and at most 100 years",
    "job_memory_fits": "the memory limit must be at least 1MB and less than 2^60 bytes",
    "job_meta_fits": "meta is larger than 32KB, as Postgres prints it",
    "job_meta_is_an_object": "meta is not a JSON object",
    "job_meta_is_flat": "meta is nested deeper than 128 levels",
}
