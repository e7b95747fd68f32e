"""Deadline: how long a job may still take. The host of a running one is notified, reads the row and moves its limit."""

from __future__ import annotations

from pgworkers.job.operation import UNSAID, Note
from pgworkers.postgres.statements import Query, Statement

_DEADLINE = Statement.beside(__file__, "deadline")


def set_deadline(job_id: int, seconds: float, note: Note = UNSAID) -> Query[str | None]:
    """Let the job end within `seconds` from now. Answers its state (terminal: nothing was done), or None: no such job."""
    return Query(
        _DEADLINE, {"id": job_id, "seconds": seconds, "os_user": note.os_user}, lambda rows: rows[0][0]
    )
