"""A job to be: plain data, so that preparing one loads nothing of the database."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

import msgspec

from pgworkers.errors import UsageError

OnConflict = Literal["return", "replace", "raise"]
R = TypeVar("R")
OnFailed = Literal["cancel", "run", "wait"]


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A job to be. None: what the task says. Durations are seconds, memory is bytes."""

    task: str
    args_json: str = "{}"
    queue: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    delay: float | None = None
    unique: str | None = None
    on_conflict: OnConflict = "return"
    max_attempts: int | None = None
    max_crashes: int | None = None
    timeout: float | None = None
    memory: int | None = None
    deadline: float | None = None
    expires: float | None = None
    concurrency_key: str | None = None
    meta_json: str | None = None
    after: tuple[int, ...] = ()  # waits until these jobs ended
    on_failed: OnFailed = "cancel"  # what it means when one of them did not succeed
    held: bool = False  # waits until it is released
    batch: int | None = None  # only by COPY
    idempotency_key: str | None = None
    idempotency_window: float | None = None  # None: a day


class Prepared(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A checked job that is not inserted yet."""

    new: NewJob


def new_job(prepared: Prepared[Any]) -> NewJob:
    """What is inserted; UsageError for anything that no task has prepared."""
    try:
        return prepared.new
    except AttributeError:
        shown = f"{type(prepared).__name__} {prepared!r:.80}"
        raise UsageError(
            f"{shown} is not a prepared job; give task.prepare(...) for each; nothing was enqueued"
        ) from None
