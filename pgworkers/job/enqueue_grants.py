"""Grants: which tasks and queues an enqueue-only role may use, and how many of its jobs may wait.

`pgworkers.check_enqueue_grant()` obeys them, inside of every enqueue by a login that may not insert jobs itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pgworkers.postgres.statements import Query, Statement

_ENQUEUE_GRANT_LIST = Statement.from_file(__file__, "enqueue_grant_list")
_ENQUEUE_GRANT_ADD = Statement.from_file(__file__, "enqueue_grant_add")
_ENQUEUE_GRANT_REMOVE = Statement.from_file(__file__, "enqueue_grant_remove")

ANY_NAME = "*"  #: as a queue or a task: all of them


@dataclass(frozen=True, slots=True)
class EnqueueGrant:
    """One row. `waiting`: jobs that count against `max_waiting` now.

    `has_role`: the server has such a role.
    """

    id: int
    role: str
    queue: str
    task: str
    max_waiting: int | None
    may_replace: bool
    granted_by: str
    granted_at: datetime
    waiting: int | None
    has_role: bool


def list_grants() -> Query[list[EnqueueGrant]]:
    """Every grant, by role."""
    return Query(_ENQUEUE_GRANT_LIST, {}, lambda rows: [EnqueueGrant(*row) for row in rows])


def add_grant(
    role: str,
    *,
    queue: str = ANY_NAME,
    task: str = ANY_NAME,
    max_waiting: int | None = None,
    may_replace: bool = False,
) -> Query[tuple[int, bool]]:
    """Add a grant, or change the bound of one that is there.

    Answers its number, and whether the role exists.
    """
    params = {
        "role": role,
        "queue": queue,
        "task": task,
        "max_waiting": max_waiting,
        "may_replace": may_replace,
    }
    return Query(_ENQUEUE_GRANT_ADD, params, lambda rows: (int(rows[0][0]), bool(rows[0][1])))


def remove_grants(ids: Sequence[int]) -> Query[list[int]]:
    """Remove grants. Returns the ids of those that existed."""
    return Query(_ENQUEUE_GRANT_REMOVE, {"ids": list(ids)}, lambda rows: [row[0] for row in rows])
