"""Set aside: end the ready jobs whose data makes a claim fail, so that it stops no other job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pgworkers.job import clean
from pgworkers.job.postmortem import LINE_LIMIT
from pgworkers.postgres.arrays import Texts
from pgworkers.postgres.statements import Query, Statement

_SET_ASIDE = Statement.beside(__file__, "set_aside")
_SET_LOUD_ASIDE = Statement.beside(__file__, "set_loud_aside")

#: The most rows of each queue that are tried: this many with a concurrency limit, and as many without.
LOOK_ROWS = 2000
#: SQLSTATE classes of errors that one row's data can cause: data, integrity, a limit of the server.
#: Not XX (internal): that is damage or a bug, and healthy rows fail with it, too.
_OF_DATA = ("22", "23", "54")


class SetAside(NamedTuple):
    """A job that no claim can take. It is dead now."""

    id: int
    lease: int
    queue: str
    task: str
    attempt: int
    max_attempts: int
    reason: str


def set_loud_aside(queues: Iterable[str], tasks: Iterable[str]) -> Query[list[SetAside]]:
    """End what takes too long to print among the jobs that a claim would look at. Answers which they were."""
    return Query(_SET_LOUD_ASIDE, _params(queues, tasks), _read)


def set_aside(queues: Iterable[str], tasks: Iterable[str]) -> Query[list[SetAside]]:
    """End what cannot be claimed among the jobs that a claim would look at. Answers which they were."""
    return Query(_SET_ASIDE, _params(queues, tasks), _read)


def _params(queues: Iterable[str], tasks: Iterable[str]) -> dict[str, Any]:
    return {"queues": Texts(queues), "tasks": Texts(tasks), "look": LOOK_ROWS}


def may_be_data(sqlstate: str | None) -> bool:
    """True if the data of a row can be the reason of an error."""
    return sqlstate is not None and sqlstate.startswith(_OF_DATA)


def _read(rows: list[tuple[Any, ...]]) -> list[SetAside]:
    return [SetAside._make(row)._replace(reason=clean.line(row[6], LINE_LIMIT)) for row in rows]
