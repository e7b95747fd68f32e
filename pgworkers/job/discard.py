"""Discard: an operator gives up a job that does not run."""

from __future__ import annotations

from collections.abc import Sequence

from pgworkers.job.operation import UNSAID, Note
from pgworkers.postgres.statements import Query, Statement

_DISCARD = Statement.beside(__file__, "discard")
_MANY = Statement.beside(__file__, "discard_many")


def discard(job_id: int, note: Note = UNSAID) -> Query[str | None]:
    """Answers the state the job now has: "dead", "running" (nothing was done: cancel it first), or None: no such job."""
    return Query(_DISCARD, {"id": job_id, **note.params()}, lambda rows: rows[0][0])


def discard_many(ids: Sequence[int], note: Note = UNSAID) -> Query[dict[int, str | None]]:
    """`discard` for each of a bounded number of jobs, in one transaction; the answers by id."""
    return Query(_MANY, {"ids": list(ids), **note.params()}, lambda rows: {row[0]: row[1] for row in rows})
