"""Queues and tasks as rows: declared by deploys, tuned by operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgworkers.postgres.statements import Query, Statement
from pgworkers.specs import TaskSpec

_DECLARE = Statement.beside(__file__, "queue_declare")
_TASKS = Statement.beside(__file__, "queue_tasks")
_PAUSE = Statement.beside(__file__, "queue_pause")
_THROTTLE = Statement.beside(__file__, "queue_throttle")
_CONFIGS = Statement.beside(__file__, "queue_configs")


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """What operators tuned. None: what the app says. `throttled`: seconds until the queue may be claimed from again."""

    name: str
    paused: bool
    workers: int | None
    cluster_workers: int | None
    throttled: float


def declare(names: Sequence[str]) -> Query[list[str]]:
    """Make the rows that are missing; never overwrite one. Answers the new names."""
    return Query(_DECLARE, {"names": sorted(set(names))}, lambda rows: [row[0] for row in rows])


def declare_tasks(tasks: Sequence[TaskSpec]) -> Query[list[str]]:
    """Write down what the app says about its tasks. Answers the names that are new or changed."""
    ordered = sorted({task.name: task for task in tasks}.values(), key=lambda task: task.name)
    params = {
        "names": [task.name for task in ordered],
        "queues": [task.queue for task in ordered],
        "priorities": [task.priority for task in ordered],
        "max_attempts": [task.max_attempts for task in ordered],
        "max_crashes": [task.max_crashes for task in ordered],
    }
    return Query(_TASKS, params, lambda rows: [row[0] for row in rows])


def pause(name: str) -> Query[bool]:
    """Nothing more is claimed from this queue. False: there is no such queue."""
    return Query(_PAUSE, {"name": name, "paused": True}, bool)


def resume(name: str) -> Query[bool]:
    """Claiming goes on, at once. False: there is no such queue."""
    return Query(_PAUSE, {"name": name, "paused": False}, bool)


def throttle(name: str, seconds: float) -> Query[bool]:
    """Nothing is claimed from this queue for `seconds`. False: there is no such queue."""
    return Query(_THROTTLE, {"name": name, "seconds": seconds}, bool)


def configs(names: Sequence[str]) -> Query[list[QueueConfig]]:
    """The rows of these queues, as far as they exist."""
    return Query(_CONFIGS, {"names": list(names)}, lambda rows: [QueueConfig(*row) for row in rows])
