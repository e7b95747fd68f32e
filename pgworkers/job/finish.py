"""Finish: the end of a job, written only by the lease that ran it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pgworkers.job import clean
from pgworkers.job.claim import Fence
from pgworkers.job.postmortem import TEXT_LIMIT, Postmortem, column, columns, in_order, unwritten
from pgworkers.job.state import State
from pgworkers.postgres.arrays import Texts
from pgworkers.postgres.statements import Query, Statement

_FINISH = Statement.beside(__file__, "finish")
_SUCCEEDED = State.SUCCEEDED


class End(Postmortem, frozen=True, kw_only=True, gc=False):
    """The last attempt of a job, and the state the job ends in."""

    state: State
    result: str | None = None  # JSON text
    children: str | None = None  # JSON text: jobs that begin to exist with this end (`job.children`)
    keep_args: bool = True  # in history; a job that did not succeed keeps them in any case


def finish(host: str, ends: Sequence[End]) -> Query[dict[Fence, str]]:
    """End these jobs. Answers for each that was not written: "missing", or "again".

    A missing end was written before, is locked, or its lease is lost (`unwritten`). One statement writes one end of a job: a
    second one is answered "again" and must be sent in another statement.
    """
    rows: list[End] = in_order(ends)
    once = list({end.id: end for end in rows}.values())
    succeeded = [end.state for end in once].count(_SUCCEEDED) == len(once)
    result, results = _results([end.result for end in once])
    params = columns(once) | {
        "host": host,
        "states": None if succeeded else Texts([str(end.state) for end in once]),
        "result": result,
        "results": results,
        "children": _children(once),
        "dropped_args": _dropped_args(once),
    }

    def read(found: list[tuple[Any, ...]]) -> dict[Fence, str]:
        ((written, _),) = found
        answers = {} if written is None else unwritten(once, written)
        if len(once) < len(rows):
            answers |= dict.fromkeys({end.fence for end in rows} - {end.fence for end in once}, "again")
        return answers

    return Query(_FINISH, params, read)


def _results(values: list[str | None]) -> tuple[str | None, Texts | None]:
    """The result that all of them have, else one for each: most jobs return None, as their neighbours do."""
    if values and values[0] is not None and values.count(values[0]) == len(values):
        return _result(values[0]), None
    return None, column(values, _result)


def _dropped_args(ends: Sequence[End]) -> list[bool] | None:
    """Which of them leave no arguments in history; None in the common case. What may run again keeps its arguments."""
    dropped = [not end.keep_args and end.state is _SUCCEEDED for end in ends]
    return dropped if any(dropped) else None


def _children(ends: Sequence[End]) -> str | None:
    """The lists of all of them by id and lease; None in the common case."""
    lists = [f'"{end.id}:{end.lease}":{end.children}' for end in ends if end.children is not None]
    return f"{{{','.join(lists)}}}" if lists else None


def _result(value: str) -> str | None:
    return value if value == "null" else clean.json_value(value, TEXT_LIMIT)
