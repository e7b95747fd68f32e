"""Cancel: a wish. A job that runs is only flagged; it becomes cancelled when its process is dead."""

from __future__ import annotations

from collections.abc import Sequence

from pgworkers.job.operation import UNSAID, Note
from pgworkers.postgres.statements import Query, Statement

_CANCEL = Statement.beside(__file__, "cancel")
_MANY = Statement.beside(__file__, "cancel_many")


def cancel(job_id: int, note: Note = UNSAID) -> Query[str | None]:
    """Answers "cancelled", "cancelling" (it runs), the terminal state it already had, or None: no such job."""
    return Query(_CANCEL, {"id": job_id, **note.params()}, lambda rows: rows[0][0])


def cancel_many(ids: Sequence[int], note: Note = UNSAID) -> Query[dict[int, str | None]]:
    """`cancel` for each of a bounded number of jobs, in one transaction; the answers by id."""
    return Query(_MANY, {"ids": list(ids), **note.params()}, lambda rows: {row[0]: row[1] for row in rows})
