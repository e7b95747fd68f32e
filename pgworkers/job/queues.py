"""Queues and tasks as rows: declared by deploys, tuned by operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pgworkers.job.model import Verdict
from pgworkers.postgres.statements import Query, Statement
from pgworkers.specs import TaskSpec

_QUEUE_DECLARE = Statement.from_file(__file__, "queue_declare")
_TASK_DECLARE = Statement.from_file(__file__, "task_declare")
_QUEUE_PAUSE = Statement.from_file(__file__, "queue_pause")
_QUEUE_THROTTLE = Statement.from_file(__file__, "queue_throttle")
_QUEUE_RESET_THROTTLE = Statement.from_file(__file__, "queue_reset_throttle")
_QUEUE_CONFIGS = Statement.from_file(__file__, "queue_configs")
_QUEUE_SCALE = Statement.from_file(__file__, "queue_scale")
_QUEUE_SET_RETENTION = Statement.from_file(__file__, "queue_set_retention")


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """What operators tuned. None: what the app declares.

    `throttled_seconds`: seconds until claims may go on.

    `total_workers`: the limit of workers over all hosts, if there is one, set by an operator or declared by the app.
    """

    name: str
    is_paused: bool
    workers: int | None
    cluster_workers: int | None
    throttled_seconds: float
    throttle_level: int
    total_workers: int | None
    seconds_since_cool_down: float | None = (
        None  # seconds since the last cool-down ended; negative while it lasts
    )


@dataclass(frozen=True, slots=True)
class CoolDown:
    """How long a queue cools down after the nth throttle in a row: min(base * growth^(n-1), max), in seconds.

    After `quiet_seconds` without a throttle one level is dropped. A success after it resets all levels.
    """

    base_seconds: float = 60.0
    growth: float = 2.0
    max_seconds: float = 1800.0
    quiet_seconds: float = 120.0


def declare_queues(
    names: Sequence[str],
    cluster: Mapping[str, int | None] | None = None,
    retentions: Mapping[str, float | None] | None = None,
) -> Query[list[str]]:
    """Make the rows that are missing; never overwrite what was tuned. Answers the new names.

    `cluster`: how many workers the app wants over all hosts, `retentions`: how many seconds it keeps finished jobs; that
    much is the deploy's to change.
    """
    ordered = sorted(set(names))
    given = cluster or {}
    params = {
        "names": ordered,
        "known": [name in given for name in ordered],
        "totals": [given.get(name) for name in ordered],
        "retentions": [(retentions or {}).get(name) for name in ordered],
    }
    return Query(_QUEUE_DECLARE, params, lambda rows: [row[0] for row in rows if row[1]])


def declare_tasks(tasks: Sequence[TaskSpec]) -> Query[list[str]]:
    """Write down what the app says about its tasks. Answers the names that are new or changed."""
    ordered = sorted({task.name: task for task in tasks}.values(), key=lambda task: task.name)
    params = {
        "names": [task.name for task in ordered],
        "queues": [task.queue for task in ordered],
        "priorities": [task.priority for task in ordered],
        "max_attempts": [task.max_attempts for task in ordered],
        "max_crashes": [task.max_crashes for task in ordered],
        "lost_retries": [task.retry_verdicts.get(Verdict.HOST_LOST) is not False for task in ordered],
        "lost_delays": [_lost_retry_seconds(task.retry_verdicts.get(Verdict.HOST_LOST)) for task in ordered],
        "concurrency": [task.concurrency for task in ordered],
        "per_key": [task.concurrency_per_key for task in ordered],
        "timeouts": [task.timeout for task in ordered],
        "memories": [task.memory for task in ordered],
        "secrets": [",".join(task.secret) for task in ordered],
    }
    return Query(_TASK_DECLARE, params, lambda rows: [row[0] for row in rows])


def _lost_retry_seconds(policy: bool | float | None) -> float | None:
    return None if policy is None or isinstance(policy, bool) else policy


def pause_queue(name: str) -> Query[bool]:
    """Nothing more is claimed from this queue. False: there is no such queue."""
    return Query(_QUEUE_PAUSE, {"name": name, "paused": True}, bool)


def resume_queue(name: str) -> Query[bool]:
    """Claiming goes on, at once. False: there is no such queue."""
    return Query(_QUEUE_PAUSE, {"name": name, "paused": False}, bool)


class ThrottleAnswer(StrEnum):
    THROTTLED = "throttled"
    LOCKED = "locked"  #: another session has locked the row of the queue; nothing was changed
    MISSING = "missing"  #: there is no such queue


def throttle_queue(
    name: str, after: float | None = None, cooling: CoolDown | None = None
) -> Query[ThrottleAnswer]:
    """Nothing is claimed from this queue for `after` seconds, or as `cooling` says.

    It does not wait for a lock.
    """
    how = cooling or CoolDown()
    params = {
        "name": name,
        "after": after,
        "base": how.base_seconds,
        "growth": how.growth,
        "max_seconds": how.max_seconds,
        "grace": how.quiet_seconds,
    }
    return Query(_QUEUE_THROTTLE, params, lambda rows: ThrottleAnswer(rows[0][0]))


def reset_throttle(name: str, grace: float) -> Query[bool]:
    """A job of it succeeded: forget its throttles, if the last cool-down ended more than `grace` seconds ago.

    It does not wait for a lock. False: nothing was changed.
    """
    return Query(_QUEUE_RESET_THROTTLE, {"name": name, "grace": grace}, bool)


def scale_queue(name: str, *, workers: int | None = None, cluster: int | None = None) -> Query[bool]:
    """Set the workers of a queue: on each host, over all hosts, or (neither) as declared.

    False: no such queue.
    """
    return Query(_QUEUE_SCALE, {"name": name, "workers": workers, "cluster": cluster}, bool)


def set_retention(name: str, seconds: float | None) -> Query[bool]:
    """Keep ended jobs of this queue for `seconds`; None: as the app or the setting declares.

    False: no such queue.
    """
    return Query(_QUEUE_SET_RETENTION, {"name": name, "seconds": seconds}, bool)


def queue_configs(names: Sequence[str]) -> Query[list[QueueConfig]]:
    """The rows of these queues, as far as they exist."""
    return Query(_QUEUE_CONFIGS, {"names": list(names)}, lambda rows: [QueueConfig(*row) for row in rows])
