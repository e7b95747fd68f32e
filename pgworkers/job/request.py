"""Requests: what operators ask of a host: the stack of a job now, to suspend, resume or kill it, or that a worker leaves.

A request is a row; its host is notified, takes it, does it and writes the answer, which the asker waits for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pgworkers.job import clean
from pgworkers.postgres.statements import Query, Statement

_ASK_JOB = Statement.beside(__file__, "request_job")
_ASK_WORKERS = Statement.beside(__file__, "request_workers")
_TAKE = Statement.beside(__file__, "request_take")
_ANSWER = Statement.beside(__file__, "request_answer")
_READ = Statement.beside(__file__, "request_read")
_FORGET = Statement.beside(__file__, "request_forget")

ANSWER_LIMIT = 256 << 10


@dataclass(frozen=True, slots=True)
class Request:
    """One request as its host takes it: of a job, or of the worker in a slot."""

    id: int
    kind: str
    job_id: int | None
    queue: str | None
    slot: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """`done` is None while nobody has answered."""

    id: int
    job_id: int | None
    queue: str | None
    slot: int | None
    host: str
    done: bool | None
    text: str | None


def ask_job(kind: str, job_id: int) -> Query[int | None]:
    """Ask the host of a running job; None: it does not run."""
    return Query(_ASK_JOB, {"kind": kind, "job_id": job_id}, lambda rows: rows[0][0] if rows else None)


def ask_workers(kind: str, queue: str | None = None, slot: int | None = None) -> Query[list[int]]:
    """Ask for every worker of all living hosts, or those of a queue, or of one slot of it."""
    return Query(
        _ASK_WORKERS, {"kind": kind, "queue": queue, "slot": slot}, lambda rows: [row[0] for row in rows]
    )


def take(host: str) -> Query[list[Request]]:
    """The requests that wait for this host; each is taken once."""
    return Query(_TAKE, {"host": host}, lambda rows: [Request(*row) for row in rows])


def answer(request: int, done: bool, text: str) -> Query[bool]:
    return Query(_ANSWER, {"id": request, "done": done, "answer": clean.text(text, ANSWER_LIMIT)}, bool)


def read(requests: list[int]) -> Query[list[Answer]]:
    return Query(_READ, {"ids": requests}, lambda rows: [Answer(*row) for row in rows])


def forget(limit: int) -> Query[int]:
    """Delete requests older than an hour. Answers how many."""
    return Query(_FORGET, {"limit": limit}, _count)


def _count(rows: list[tuple[Any, ...]]) -> int:
    return len(rows)
