"""Purge: an operator empties a queue of what waits, or forgets its dead jobs for good."""

from __future__ import annotations

from collections.abc import Sequence

from pgworkers.job.operation import UNSAID, Note
from pgworkers.postgres.statements import Query, Statement

_PURGE = Statement.beside(__file__, "purge")
_WAITING = Statement.beside(__file__, "purge_waiting")


def purge(ids: Sequence[int], note: Note = UNSAID) -> Query[list[int]]:
    """Delete those of these jobs that are dead; answers which."""
    return Query(_PURGE, {"ids": list(ids), **note.params()}, lambda rows: [row[0] for row in rows])


def purge_waiting(ids: Sequence[int], note: Note = UNSAID) -> Query[dict[int, str | None]]:
    """Cancel a bounded number of jobs; those that run go on. Answers as `cancel_many`, with "running" for those."""
    return Query(_WAITING, {"ids": list(ids), **note.params()}, lambda rows: {row[0]: row[1] for row in rows})
