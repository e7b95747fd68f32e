"""Cancel, discard and purge jobs, and set their deadline.

A cancel of a running job is a request: it sets `cancel_at` and notifies the host. The host reads the row with its next
renewal (master/lease_keeper.py) and stops the process. The job becomes cancelled when its process is dead. Discard ends a
job that does not run. Purge cancels the waiting jobs of a queue, or deletes its dead ones for good. A deadline says how
long a job may still take; the host of a running job is notified, reads the row and applies it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pgworkers.job.operations import NO_NOTE, OperationNote
from pgworkers.postgres.statements import Query, Statement

_CANCEL_ONE = Statement.from_file(__file__, "cancel_one")
_CANCEL = Statement.from_file(__file__, "cancel")


def cancel(job_id: int, note: OperationNote = NO_NOTE) -> Query[str | None]:
    """Answers "cancelled", "cancelling" (it runs), the terminal state it already had, or None: no such job."""
    return Query(_CANCEL_ONE, {"id": job_id, **note.params()}, lambda rows: rows[0][0])


def cancel_many(ids: Sequence[int], note: OperationNote = NO_NOTE) -> Query[dict[int, str | None]]:
    """`cancel` for each of a bounded number of jobs, in one transaction; the answers by id."""
    return Query(_CANCEL, {"ids": list(ids), **note.params()}, lambda rows: {row[0]: row[1] for row in rows})


_DISCARD_ONE = Statement.from_file(__file__, "discard_one")
_DISCARD = Statement.from_file(__file__, "discard")


def discard(job_id: int, note: OperationNote = NO_NOTE) -> Query[str | None]:
    """Answers the state the job now has: "dead", "running" (nothing was done: cancel it first), or None: no such job."""
    return Query(_DISCARD_ONE, {"id": job_id, **note.params()}, lambda rows: rows[0][0])


def discard_many(ids: Sequence[int], note: OperationNote = NO_NOTE) -> Query[dict[int, str | None]]:
    """`discard` for each of a bounded number of jobs, in one transaction; the answers by id."""
    return Query(_DISCARD, {"ids": list(ids), **note.params()}, lambda rows: {row[0]: row[1] for row in rows})


_PURGE_DEAD = Statement.from_file(__file__, "purge_dead")
_PURGE_WAITING = Statement.from_file(__file__, "purge_waiting")


def purge_dead(ids: Sequence[int], note: OperationNote = NO_NOTE) -> Query[list[int]]:
    """Delete those of these jobs that are dead; answers which."""
    return Query(_PURGE_DEAD, {"ids": list(ids), **note.params()}, lambda rows: [row[0] for row in rows])


def purge_waiting(ids: Sequence[int], note: OperationNote = NO_NOTE) -> Query[dict[int, str | None]]:
    """Cancel a bounded number of jobs; those that run go on.

    Answers as `cancel_many`, with "running" for those.
    """
    return Query(
        _PURGE_WAITING, {"ids": list(ids), **note.params()}, lambda rows: {row[0]: row[1] for row in rows}
    )


_SET_DEADLINE = Statement.from_file(__file__, "set_deadline")


def set_deadline(job_id: int, seconds: float, note: OperationNote = NO_NOTE) -> Query[str | None]:
    """Let the job end within `seconds` from now.

    Answers its state (terminal: nothing was done), or None: no such job.
    """
    return Query(
        _SET_DEADLINE, {"id": job_id, "seconds": seconds, "os_user": note.os_user}, lambda rows: rows[0][0]
    )
