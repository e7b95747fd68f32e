"""What an app declares, as data: the message the `describe` child prints for the master.

The master never imports the user's code; these structs are all it knows of it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class BackoffSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait before the next attempt. `kind`: exponential, fixed, list or function."""

    kind: str = "exponential"
    base: float = 2.0
    factor: float = 2.0
    cap: float = 3600.0
    jitter: float = 0.1
    delays: tuple[float, ...] = ()


class TaskSpec(msgspec.Struct, frozen=True):
    name: str
    queue: str
    priority: int = 0
    max_attempts: int = 10
    max_crashes: int = 3
    backoff: BackoffSpec = BackoffSpec()
    retry_on: dict[str, bool | float] = {}  # by verdict: False is the end, seconds a delay of its own
    timeout: float | None = None  # seconds for one attempt
    deadline: float | None = None  # seconds for the whole job
    memory: int | None = None  # bytes
    expires: float | None = None  # seconds
    exclusive: bool = False
    stall_timeout: float | None = None
    result_limit: int | None = None
    keep_args: bool = True  # False: history keeps no arguments of its successes
    concurrency: int | None = None  # how many of it run at once, over all hosts
    concurrency_per_key: int | None = None  # how many with the same concurrency_key do; None: one
    doc: str = ""
    signature: str = ""  # "(report_id: int, *, fmt: str = 'pdf')", for people


class QueueSpec(msgspec.Struct, frozen=True):
    name: str
    workers: int = 1
    cluster_workers: int | None = None
    memory: int | None = None
    nice: int = 0
    threads: int | None = 1
    cores: tuple[int, ...] = ()  # the only ones its workers may run on
    pin: bool = False  # one core for each worker, in turn
    address_space: int | None = None  # bytes, RLIMIT_AS of each worker
    max_jobs: int | None = None
    max_rss: int | None = None
    preload: tuple[str, ...] = ()
    lookahead: bool = True
    retention: float | None = None  # seconds that finished jobs are kept; None: the setting
    reload_overlap: bool = False  # after a reload, old and new workers may be busy side by side

    @property
    def max_workers_per_host(self) -> int:
        """The most workers of it that one host can have: of those over all hosts, all of them."""
        return self.workers if self.cluster_workers is None else self.cluster_workers


class ScheduleSpec(msgspec.Struct, frozen=True):
    """When a task is enqueued by itself: `cron` in `tz`, or `every` so many seconds."""

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
    paused: bool = False  # when it is first seen; later the operators' word counts
    scope_kind: str = ""  # "tenant": one calendar for each of `scopes`
    scopes: dict[str, dict[str, Any]] = {}  # scope -> arguments of its own
    queue: str | None = None
    priority: int | None = None
    deadline: float | None = None  # seconds
    expires: float | None = None  # seconds


class AppSpec(msgspec.Struct, frozen=True):
    name: str  # as shown in titles: "app.py", or "pkg.mod:app" if it was asked for like that
    version: str
    queues: tuple[QueueSpec, ...]
    tasks: tuple[TaskSpec, ...]
    schedules: tuple[ScheduleSpec, ...] = ()
    settings: dict[str, Any] = {}
    threads: tuple[str, ...] = ()  # that the import started: such an app cannot be forked
