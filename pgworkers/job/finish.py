"""Finish: the end of a job, written only by the lease that ran it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgworkers.job import clean
from pgworkers.job.postmortem import TEXT_LIMIT, Postmortem, answers, columns, in_order
from pgworkers.job.state import State
from pgworkers.postgres.statements import Query, Statement

_FINISH = Statement.beside(__file__, "finish")


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Postmortem):
    """The last attempt of a job, and the state the job ends in."""

    state: State
    result: str | None = None  # JSON text


def finish(host: str, ends: Sequence[End]) -> Query[dict[tuple[int, int], str]]:
    """End these jobs. Answers for each (id, lease): "written", "already" or "lost"."""
    rows: list[End] = in_order(ends)
    params = columns(rows) | {
        "host": host,
        "states": [str(end.state) for end in rows],
        "results": [clean.json_value(end.result, TEXT_LIMIT) for end in rows],
    }
    return Query(_FINISH, params, answers)
