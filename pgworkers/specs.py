"""What an app declares, as data: the message that the `describe` child sends to the master over a pipe.

The master never imports the user's code. These structs are all that it knows about it.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec


class BackoffKind(StrEnum):
    EXPONENTIAL = "exponential"
    FIXED = "fixed"  #: always `base`
    LIST = "list"  #: `delays`, the last one repeats
    FUNCTION = "function"  #: the worker calls the user's function; exponential if it cannot


class BackoffSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait before the next attempt."""

    kind: BackoffKind = BackoffKind.EXPONENTIAL
    base: float = 2.0
    factor: float = 2.0
    cap: float = 10800.0
    jitter: float = 0.1
    delays: tuple[float, ...] = ()


class TaskSpec(msgspec.Struct, frozen=True):
    name: str
    queue: str
    priority: int = 0
    max_attempts: int = 20
    max_crashes: int = 3
    backoff: BackoffSpec = BackoffSpec()
    retry_verdicts: dict[
        str, bool | float
    ] = {}  # by verdict: False ends the job, seconds delay the next attempt
    timeout: float | None = None  # seconds for one attempt
    deadline: float | None = None  # seconds for the whole job
    memory: int | None = None  # bytes
    expires: float | None = None  # seconds
    exclusive: bool = False
    stall_timeout: float | None = None
    result_limit: int | None = None
    secret: tuple[str, ...] = ()  # names of its secret parameters
    keep_args: bool = True  # False: history does not keep the arguments of succeeded jobs
    concurrency: int | None = None  # most jobs of this task that run at once, on all hosts together
    concurrency_per_key: int | None = None  # the same for jobs with the same concurrency_key; None: one
    doc: str = ""
    signature: str = ""  # "(report_id: int, *, fmt: str = 'pdf')", for people


class QueueSpec(msgspec.Struct, frozen=True):
    name: str
    workers: int = 1
    cluster_workers: int | None = None
    memory: int | None = None
    nice: int = 0
    threads: int | None = 1
    cores: tuple[int, ...] = ()  # cores that its workers may run on; empty: all
    pin: bool = False  # give each worker one core, in turn
    address_space: int | None = None  # bytes, RLIMIT_AS of each worker
    max_jobs: int | None = None
    max_rss: int | None = None
    preload: tuple[str, ...] = ()
    lookahead: bool = True
    retention: float | None = None  # seconds that finished jobs are kept; None: the setting
    reload_overlap: bool = False  # after a reload, old and new workers may be busy at the same time

    @property
    def max_workers_per_host(self) -> int:
        """The most workers that one host can have. One host may have all workers of a cluster-wide limit."""
        return self.workers if self.cluster_workers is None else self.cluster_workers


class ScheduleSpec(msgspec.Struct, frozen=True):
    """When a task is enqueued: by `cron` in `tz`, or `every` this many seconds."""

    name: str
    task: str
    cron: str | None = None
    every: float | None = None
    tz: str = "UTC"
    args: dict[str, Any] = {}
    jitter: float = 0.0  # seconds
    start: datetime | None = None
    end: datetime | None = None
    missed: str = "latest"  # all, skip
    missed_window: float = 86400.0  # seconds; how far back missed="all" goes
    overlap: str = "allow"  # skip, replace
    reentrant: bool = True
    paused: bool = False  # when it is first deployed; afterwards operators pause and resume it
    scope_kind: str = ""  # "tenant": it runs once for each of `scopes`
    scopes: dict[str, dict[str, Any]] = {}  # scope -> its own arguments
    queue: str | None = None
    priority: int | None = None
    deadline: float | None = None  # seconds
    expires: float | None = None  # seconds


class AppSpec(msgspec.Struct, frozen=True):
    name: str  # as shown in titles: "app.py", or "pkg.mod:app" if `run` was given that
    version: str
    queues: tuple[QueueSpec, ...]
    tasks: tuple[TaskSpec, ...]
    schedules: tuple[ScheduleSpec, ...] = ()
    settings: dict[str, Any] = {}
    threads: tuple[str, ...] = ()  # threads that the import started: such an app cannot be forked
    reported_verdicts: tuple[
        str, ...
    ] = ()  # of attempts whose end the reporter gets; empty: there is no reporter
    reports_schedules: bool = False  # the reporter gets the ticks of schedules and the ends of their jobs
    uses_prometheus: bool = False  # the import of the app imports prometheus_client
