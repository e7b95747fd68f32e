"""Requeue: run jobs that have ended again, or waiting ones at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pgworkers.job.operations import NO_NOTE, OperationNote
from pgworkers.postgres.statements import Query, Statement

MAX_REQUEUE_TRIES = 3  #: so often may others come first, one after the other
_REQUEUE = Statement.from_file(__file__, "requeue")


@dataclass(frozen=True, slots=True)
class RequeueResult:
    """What became of one id.

    `outcome`: "requeued"; "conflict" (a newer live job holds its unique key); "missing"; or the state that kept it from
    being requeued ("ready", "running", "succeeded"). "changing": another session changed it while this waited for its
    row; only the next statement can see its state (`requeue_until_settled`).
    """

    id: int
    outcome: str


def requeue(ids: Sequence[int], note: OperationNote = NO_NOTE) -> Query[list[RequeueResult]]:
    """Requeue these jobs, row by row: one that cannot be holds up no other."""
    return Query(
        _REQUEUE,
        {"ids": list(ids), **note.params()},
        lambda rows: [RequeueResult(row[0], row[1]) for row in rows],
    )


def requeue_until_settled(
    ask: Callable[[Query[list[RequeueResult]]], list[RequeueResult]],
    ids: Sequence[int],
    note: OperationNote = NO_NOTE,
) -> dict[int, str]:
    """Requeue these jobs, and again those that changed during the statement, so that the outcome is what a job is now.

    Each statement is a transaction of its own.
    """
    outcomes: dict[int, str] = {}
    left = list(ids)
    for _ in range(MAX_REQUEUE_TRIES):
        outcomes |= {one.id: one.outcome for one in ask(requeue(left, note))}
        left = [id for id in left if outcomes[id] == "changing"]
        if not left:
            break
    return outcomes
