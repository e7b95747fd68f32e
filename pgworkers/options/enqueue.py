"""What `task.using(...)` accepts: the options of one enqueue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypedDict

from pgworkers import bounds
from pgworkers.errors import UsageError
from pgworkers.job.model import OnConflict, OnFailed
from pgworkers.observe import tracing
from pgworkers.options.values import (
    Duration,
    read_cli_name,
    read_datetime,
    read_duration,
    read_key,
    read_memory,
    read_priority,
    read_retries,
)
from pgworkers.payload import NotJson, encode

ON_CONFLICT = ("return", "replace", "raise")
ON_FAILED = ("cancel", "run", "wait")
#: Most jobs that one job may wait for. The SQL function `find_parents` has the same bound.
MAX_AFTER_JOBS = 1000


class HasJobId(Protocol):
    """A handle of a job, or anything else with its number."""

    id: int


class EnqueueOptions(TypedDict, total=False):
    """The keywords of `task.using(...)`."""

    delay: Duration | None  # start no earlier than this long from now
    at: datetime | None  # start no earlier than this time
    priority: int | None  # higher runs first
    unique: str | None  # at most one live job of this task with this key
    on_conflict: OnConflict  # a held key: "return" its job, "replace" its arguments, or "raise" DuplicateJob
    idempotency_key: str | None  # repeats with this key return the first job, finished or not
    idempotency_window: Duration | None  # how long they do: by default a day, at most 31 days
    queue: str | None  # instead of the task's queue
    expires: Duration | None  # the job is dead if it has not started by then
    timeout: Duration | None  # longest time for one attempt
    deadline: Duration | None  # longest time for the whole job, all attempts
    memory: int | str | None  # most memory of one attempt
    meta: Mapping[str, Any] | None  # why it was enqueued; shown to operators, and in ctx.meta
    conn: object  # your own connection or session: enqueue in its transaction
    retries: int | None  # attempts after the first
    concurrency_key: str | None  # jobs with the same key share concurrency_per_key
    after: Sequence[HasJobId | int]  # start when all of these jobs have succeeded
    on_failed: OnFailed  # if one of them failed: "cancel" this job, "run" it, or "wait" for a retry
    traceparent: str | None  # W3C trace context; by default the current OpenTelemetry span


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedEnqueueOptions:
    """The checked options of one enqueue. None leaves the decision to the task."""

    delay: float | None = None
    at: datetime | None = None
    priority: int | None = None
    unique: str | None = None
    on_conflict: OnConflict = "return"
    idempotency_key: str | None = None
    idempotency_window: float | None = None
    queue: str | None = None
    expires: float | None = None
    timeout: float | None = None
    deadline: float | None = None
    memory: int | None = None
    meta_json: str | None = None
    conn: object = None
    max_attempts: int | None = None
    concurrency_key: str | None = None
    after: tuple[int, ...] = ()
    on_failed: OnFailed = "cancel"


def refuse_missing_connection(given: Mapping[str, Any]) -> None:
    """UsageError for conn=None: the caller expects a transaction. (Django's `connection.connection` may be None.)"""
    if "conn" in given and given["conn"] is None:
        raise UsageError(
            "using(conn=None): there is no connection, so no transaction to enqueue in; nothing was enqueued; "
            "open it first (in Django: conn=connection), or leave conn out"
        )


def read_idempotency_window(value: Duration | None, key: str | None) -> float | None:
    """Return for how many seconds a key leads to its first job. None: the default of the database, a day."""
    if value is not None and key is None:
        raise UsageError(
            "idempotency_window without idempotency_key=: give the key it is about; nothing was enqueued"
        )
    found = read_duration(value, what="idempotency_window")
    if found is not None and found > bounds.MAX_IDEMPOTENCY_WINDOW_DAYS * 86400:
        raise UsageError(
            f"idempotency_window: {value!r} is longer than {bounds.MAX_IDEMPOTENCY_WINDOW_DAYS} days; nothing was enqueued"
        )
    return found


def read_concurrency_key(value: str | None) -> str | None:
    """Check a concurrency key. It must not be one of those that schedules use."""
    if isinstance(value, str) and value.startswith(bounds.SCHEDULE_KEY_PREFIX):
        raise UsageError(
            f"concurrency_key: {value!r} begins with {bounds.SCHEDULE_KEY_PREFIX}, which is for the jobs of schedules;"
            " nothing was enqueued"
        )
    return read_key(value, what="concurrency_key")


def read_meta(value: Mapping[str, Any] | None) -> str | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise UsageError(
            f"meta: {type(value).__name__} is not a mapping; give a dict such as {{'why': 'nightly'}}"
        )
    try:
        return encode(dict(value), limit=bounds.MAX_META_BYTES).decode()
    except NotJson as exc:
        raise UsageError(f"meta: {exc}; nothing was enqueued") from None


def _add_traceparent(meta: Mapping[str, Any] | None, traceparent: str) -> Mapping[str, Any]:
    """Add the trace context to the meta."""
    read_meta(meta)
    return {**(meta or {}), tracing.TRACEPARENT_KEY: tracing.require_traceparent(traceparent)}


def read_after(value: Sequence[HasJobId | int]) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise UsageError(f"after: {type(value).__name__} is not a list of jobs; nothing was enqueued")
    if len(value) > MAX_AFTER_JOBS:
        raise UsageError(
            f"after: {len(value)} jobs, at most {MAX_AFTER_JOBS}; use a batch, or a job in between; nothing was enqueued"
        )
    found = []
    for job in value:
        number = getattr(job, "id", job)
        if isinstance(number, bool) or not isinstance(number, int):
            raise UsageError(f"after: {job!r} is neither a job nor its number; nothing was enqueued")
        found.append(number)
    return tuple(found)


def read_enqueue_options(
    *,
    delay: Duration | None = None,
    at: datetime | None = None,
    priority: int | None = None,
    unique: str | None = None,
    on_conflict: OnConflict = "return",
    idempotency_key: str | None = None,
    idempotency_window: Duration | None = None,
    queue: str | None = None,
    expires: Duration | None = None,
    timeout: Duration | None = None,
    deadline: Duration | None = None,
    memory: int | str | None = None,
    meta: Mapping[str, Any] | None = None,
    conn: object = None,
    retries: int | None = None,
    concurrency_key: str | None = None,
    after: Sequence[HasJobId | int] = (),
    on_failed: OnFailed = "cancel",
    traceparent: str | None = None,
) -> CheckedEnqueueOptions:
    """Check and convert the options of `using(...)`."""
    if delay is not None and at is not None:
        raise UsageError("using(delay=..., at=...): give one of them, not both")
    if after and (delay is not None or at is not None):
        raise UsageError(
            "using(after=..., delay=...): it begins when those jobs ended; leave delay and at out"
        )
    if on_failed not in ON_FAILED:
        raise UsageError(f"on_failed={on_failed!r}: use {', '.join(ON_FAILED)}")
    if on_conflict not in ON_CONFLICT:
        raise UsageError(f"on_conflict={on_conflict!r}: use {', '.join(ON_CONFLICT)}")
    if on_conflict != "return" and unique is None:
        raise UsageError(f"on_conflict={on_conflict!r} without unique=: give the unique key it is about")
    return CheckedEnqueueOptions(
        delay=read_duration(delay, what="delay", positive=False),
        at=read_datetime(at, what="at"),
        priority=None if priority is None else read_priority(priority, what="priority"),
        unique=read_key(unique, what="unique"),
        on_conflict=on_conflict,
        idempotency_key=read_key(idempotency_key, what="idempotency_key"),
        idempotency_window=read_idempotency_window(idempotency_window, idempotency_key),
        queue=None if queue is None else read_cli_name(queue, what="queue", limit=bounds.MAX_NAME_BYTES),
        expires=read_duration(expires, what="expires"),
        timeout=read_duration(timeout, what="timeout"),
        deadline=read_duration(deadline, what="deadline"),
        memory=read_memory(memory, what="memory"),
        meta_json=read_meta(meta if traceparent is None else _add_traceparent(meta, traceparent)),
        conn=conn,
        max_attempts=None if retries is None else read_retries(retries, what="retries"),
        concurrency_key=read_concurrency_key(concurrency_key),
        after=read_after(after),
        on_failed=on_failed,
    )
