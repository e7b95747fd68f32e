"""pgworkers: a Postgres job queue whose jobs are real processes that it can start, measure, stop and explain.

These are the names that an app uses. `App` declares queues and tasks. `Ctx` is what a handler knows about its job. `Job` and
`Batch` are handles of what was enqueued. `Retry`, `Snooze`, `Discard` and `Throttled` are raised by a handler to decide what
happens to its attempt. Every other exception says what failed and what to do about it.

A name is imported when it is first used, so that a process does not pay for what it does not need. The master never imports
the app. A worker imports psycopg only when a handler enqueues or connects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgworkers.app import App
    from pgworkers.context import Ctx
    from pgworkers.errors import (
        AppNotLoaded,
        ArgumentError,
        DatabaseRefused,
        DatabaseUnreachable,
        Discard,
        DuplicateJob,
        JobFailed,
        JobStopped,
        NotFound,
        OutcomeUnknown,
        PermissionDenied,
        PgworkersError,
        QuotaExceeded,
        RateTimeout,
        ResultError,
        ResultTimeout,
        Retry,
        SchemaOutOfDate,
        Snooze,
        Throttled,
        UsageError,
    )
    from pgworkers.handles import Batch, Job
    from pgworkers.hooks import JobEnd
    from pgworkers.job.changes import WatchEvent
    from pgworkers.job.model import PreparedJob
    from pgworkers.options.retries import ExponentialBackoff
    from pgworkers.secret_arguments import Secret
    from pgworkers.task import Task

    __version__: str

__all__ = [
    "App",
    "AppNotLoaded",
    "ArgumentError",
    "Batch",
    "Ctx",
    "DatabaseRefused",
    "DatabaseUnreachable",
    "Discard",
    "DuplicateJob",
    "ExponentialBackoff",
    "Job",
    "JobEnd",
    "JobFailed",
    "JobStopped",
    "NotFound",
    "OutcomeUnknown",
    "PermissionDenied",
    "PgworkersError",
    "PreparedJob",
    "QuotaExceeded",
    "RateTimeout",
    "ResultError",
    "ResultTimeout",
    "Retry",
    "SchemaOutOfDate",
    "Secret",
    "Snooze",
    "Task",
    "Throttled",
    "UsageError",
    "WatchEvent",
    "__version__",
]

#: Where a public name is defined. Names that are not listed are exceptions in `pgworkers.errors`.
_MODULES = {
    "App": "pgworkers.app",
    "Batch": "pgworkers.handles",
    "Ctx": "pgworkers.context",
    "ExponentialBackoff": "pgworkers.options.retries",
    "Job": "pgworkers.handles",
    "JobEnd": "pgworkers.hooks",
    "WatchEvent": "pgworkers.job.changes",
    "PreparedJob": "pgworkers.job.model",
    "Secret": "pgworkers.secret_arguments",
    "Task": "pgworkers.task",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "__version__":
        from importlib import metadata  # not above: it weighs more than all the rest

        return metadata.version("pgworkers")
    if name not in __all__:
        raise AttributeError(f"module 'pgworkers' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES.get(name, "pgworkers.errors")), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
