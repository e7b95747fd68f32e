"""Discard: an operator gives up a job that does not run."""

from __future__ import annotations

from pgworkers.postgres.statements import Query, Statement

_DISCARD = Statement.beside(__file__, "discard")


def discard(job_id: int) -> Query[str | None]:
    """Answers the state the job now has: "dead", "running" (nothing was done: cancel it first), or None: no such job."""
    return Query(_DISCARD, {"id": job_id}, lambda rows: rows[0][0])
