"""Requests of operators to a host: the stack of a job, suspend, resume or kill it, or stop a worker.

A request is a row. Its host is notified, takes it, does it and writes the answer, which the command waits for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pgworkers.job import sanitize
from pgworkers.postgres.statements import Query, Statement

_REQUEST_FOR_JOB = Statement.from_file(__file__, "request_for_job")
_REQUEST_FOR_WORKERS = Statement.from_file(__file__, "request_for_workers")
_REQUEST_TAKE = Statement.from_file(__file__, "request_take")
_REQUEST_ANSWER = Statement.from_file(__file__, "request_answer")
_REQUEST_ANSWERS = Statement.from_file(__file__, "request_answers")
_REQUEST_PRUNE = Statement.from_file(__file__, "request_prune")

MAX_ANSWER_CHARACTERS = 256 << 10


class RequestKind(StrEnum):
    STACK = "stack"  #: answer with the Python stack of the worker
    SUSPEND = "suspend"  #: stop the process of the job with SIGSTOP
    RESUME = "resume"  #: continue a suspended job
    KILL = "kill"  #: kill the process; the job is released and runs again
    LEAVE = "leave"  #: end the worker after its job


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """One request as its host takes it: of a job, or of the worker in a slot."""

    id: int
    kind: RequestKind
    job_id: int | None
    queue: str | None
    slot: int | None


@dataclass(frozen=True, slots=True)
class RequestAnswer:
    """The answer to a request. `is_done` is None until it is answered."""

    id: int
    job_id: int | None
    queue: str | None
    slot: int | None
    host: str
    is_done: bool | None
    text: str | None


def request_for_job(kind: RequestKind, job_id: int) -> Query[int | None]:
    """Ask the host of a running job. Answers the id of the request; None: the job does not run."""
    return Query(
        _REQUEST_FOR_JOB, {"kind": kind, "job_id": job_id}, lambda rows: rows[0][0] if rows else None
    )


def request_for_workers(
    kind: RequestKind, queue: str | None = None, slot: int | None = None
) -> Query[list[int]]:
    """Ask for every worker of all living hosts, or those of a queue, or of one slot of it."""
    return Query(
        _REQUEST_FOR_WORKERS,
        {"kind": kind, "queue": queue, "slot": slot},
        lambda rows: [row[0] for row in rows],
    )


def take_requests(host: str) -> Query[list[OperatorRequest]]:
    """Take the requests that wait for this host. Each is taken once."""
    return Query(_REQUEST_TAKE, {"host": host}, _read_requests)


def _read_requests(rows: list[tuple[Any, ...]]) -> list[OperatorRequest]:
    return [
        OperatorRequest(id=id, kind=RequestKind(kind), job_id=job_id, queue=queue, slot=slot)
        for id, kind, job_id, queue, slot in rows
    ]


def answer_request(request: int, done: bool, text: str) -> Query[bool]:
    return Query(
        _REQUEST_ANSWER,
        {"id": request, "done": done, "answer": sanitize.clean_text(text, MAX_ANSWER_CHARACTERS)},
        bool,
    )


def read_answers(requests: list[int]) -> Query[list[RequestAnswer]]:
    return Query(_REQUEST_ANSWERS, {"ids": requests}, lambda rows: [RequestAnswer(*row) for row in rows])


def prune_requests(limit: int) -> Query[int]:
    """Delete requests older than an hour. Answers how many."""
    return Query(_REQUEST_PRUNE, {"limit": limit}, _count)


def _count(rows: list[tuple[Any, ...]]) -> int:
    return len(rows)
