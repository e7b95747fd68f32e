"""Park: jobs of tasks that a host does not know are moved out of the way of its claims, in portions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pgworkers.postgres.arrays import Texts
from pgworkers.postgres.statements import Query, Statement

_PARK = Statement.beside(__file__, "park")

#: How many jobs of a queue one portion looks at.
PORTION = 2000


class Parked(NamedTuple):
    """What one portion moved, by task, and the place (priority, id) of the last job it looked at; None: that was all.

    `newest`: the id of the newest job of all queues.
    """

    tasks: dict[str, int]
    place: tuple[int, int] | None
    newest: int = 0


def park(queue: str, tasks: Iterable[str], look: int = PORTION) -> Query[Parked]:
    """Of the first jobs of a queue, move those of other tasks behind the others."""

    def read(rows: list[tuple[Any, ...]]) -> Parked:
        moved = {task: jobs for task, jobs, *_ in rows if task is not None}
        for task, seen, priority, job_id, newest in rows:
            if task is None:
                return Parked(moved, (priority, job_id) if seen >= look else None, newest or 0)
        return Parked(moved, None)

    return Query(_PARK, {"queue": queue, "tasks": Texts(tasks), "look": look}, read)
