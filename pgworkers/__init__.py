"""pgworkers: a Postgres job queue whose jobs are real processes that it can start, measure, stop and explain.

This is what a user's app.py touches: `App` declares queues and tasks, `Ctx` is what a handler knows of its
job, `Job` is the handle of an enqueued one, `Retry`, `Snooze`, `Discard` and `Throttled` steer an attempt,
and the errors say what to do.

Names are loaded when they are first used: a process that only wants one room (the master never wants the app,
a worker never wants psycopg) does not pay for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgworkers.app import App as App
    from pgworkers.context import Ctx as Ctx
    from pgworkers.errors import AppNotLoaded as AppNotLoaded
    from pgworkers.errors import ArgumentError as ArgumentError
    from pgworkers.errors import DatabaseRefused as DatabaseRefused
    from pgworkers.errors import DatabaseUnreachable as DatabaseUnreachable
    from pgworkers.errors import Discard as Discard
    from pgworkers.errors import DuplicateJob as DuplicateJob
    from pgworkers.errors import JobFailed as JobFailed
    from pgworkers.errors import JobStopped as JobStopped
    from pgworkers.errors import NotFound as NotFound
    from pgworkers.errors import OutcomeUnknown as OutcomeUnknown
    from pgworkers.errors import PermissionDenied as PermissionDenied
    from pgworkers.errors import PgworkersError as PgworkersError
    from pgworkers.errors import QuotaExceeded as QuotaExceeded
    from pgworkers.errors import RateTimeout as RateTimeout
    from pgworkers.errors import ResultError as ResultError
    from pgworkers.errors import ResultTimeout as ResultTimeout
    from pgworkers.errors import Retry as Retry
    from pgworkers.errors import SchemaOutOfDate as SchemaOutOfDate
    from pgworkers.errors import Snooze as Snooze
    from pgworkers.errors import Throttled as Throttled
    from pgworkers.errors import UsageError as UsageError
    from pgworkers.handles import Batch as Batch
    from pgworkers.handles import Job as Job
    from pgworkers.job.model import Prepared as Prepared
    from pgworkers.options.retries import ExponentialBackoff as ExponentialBackoff
    from pgworkers.task import Task as Task

_ERRORS = (
    "AppNotLoaded ArgumentError DatabaseRefused DatabaseUnreachable Discard DuplicateJob JobFailed JobStopped NotFound "
    "OutcomeUnknown PermissionDenied PgworkersError QuotaExceeded RateTimeout ResultError ResultTimeout "
    "Retry SchemaOutOfDate Snooze Throttled UsageError"
)
_PLACES = {
    "App": "pgworkers.app",
    "Batch": "pgworkers.handles",
    "Ctx": "pgworkers.context",
    "Exponential": "pgworkers.options.retries",
    "Job": "pgworkers.handles",
    "Prepared": "pgworkers.job.model",
    "Task": "pgworkers.task",
    **dict.fromkeys(_ERRORS.split(), "pgworkers.errors"),
}
__all__ = sorted([*_PLACES, "__version__"])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "__version__":
        from importlib import metadata  # not above: it weighs more than all the rest

        return metadata.version("pgworkers")
    if name not in _PLACES:
        raise AttributeError(f"module 'pgworkers' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
