"""Finish: the end of a job, written only by the lease that ran it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pgworkers.job import clean
from pgworkers.job.postmortem import TEXT_LIMIT, Postmortem, answers, column, columns, in_order
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


def finish(host: str, ends: Sequence[End]) -> Query[dict[tuple[int, int], str]]:
    """End these jobs. Answers for each (id, lease): "written", "already", "lost", or "again": it changed meanwhile, send it
    again."""
    rows: list[End] = in_order(ends)
    succeeded = [end.state for end in rows].count(_SUCCEEDED) == len(rows)
    params = columns(rows) | {
        "host": host,
        "states": None if succeeded else Texts([str(end.state) for end in rows]),
        "results": column([end.result for end in rows], _result),
        "children": _children(rows),
    }

    def read(found: list[tuple[Any, ...]]) -> dict[tuple[int, int], str]:
        return dict.fromkeys(zip(params["ids"], params["leases"], strict=True), "written") | answers(found)

    return Query(_FINISH, params, read)


def _children(ends: Sequence[End]) -> str | None:
    """The lists of all of them by id and lease; None in the common case."""
    lists = [f'"{end.id}:{end.lease}":{end.children}' for end in ends if end.children is not None]
    return f"{{{','.join(lists)}}}" if lists else None


def _result(value: str) -> str | None:
    return value if value == "null" else clean.json_value(value, TEXT_LIMIT)
