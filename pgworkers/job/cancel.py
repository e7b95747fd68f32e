"""Cancel: a wish. A job that runs is only flagged; it becomes cancelled when its process is dead."""

from __future__ import annotations

from pgworkers.postgres.statements import Query, Statement

_CANCEL = Statement.beside(__file__, "cancel")


def cancel(job_id: int) -> Query[str | None]:
    """Answers "cancelled", "cancelling" (it runs), the terminal state it already had, or None: no such job."""
    return Query(_CANCEL, {"id": job_id}, lambda rows: rows[0][0])
