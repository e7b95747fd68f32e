"""The model of a job: its states, the moves between them, the verdicts of an attempt, and the records of a job.

The states are an enum in SQL, too (`job_state`); a test compares them, and another compares `JOB_STATE_MOVES` with the
diagram in the docs. No row is `claimed`: readers see it in place of `running` while no worker is known to have the job.

`NewJob` is a job before it is enqueued, `ClaimedJob` one that a host has claimed, and a `Fence` names one claim of one job.
Children are jobs that a handler enqueues with the end of its own job: the statement that writes that end inserts them.

Nothing here imports psycopg: workers and apps load this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from pgworkers.errors import UsageError
from pgworkers.secret_arguments import hide_secrets_in_json


class JobState(StrEnum):
    SCHEDULED = "scheduled"  #: waits for its time
    READY = "ready"  #: may be claimed
    CLAIMED = "claimed"  #: only shown: a host holds its lease, and no worker is known to have it
    RUNNING = "running"  #: a host holds its lease
    SUCCEEDED = "succeeded"  #: terminal
    DEAD = "dead"  #: terminal: it failed for good, was discarded, expired, or cannot be claimed
    CANCELLED = "cancelled"  #: terminal: a cancel was requested


#: How the error of an attempt begins whose handler raised `Retry`: it did not fail.
RETRY_REQUESTED_PREFIX = "asked to be retried"

#: A host holds its lease.
HELD_STATES = frozenset({JobState.CLAIMED, JobState.RUNNING})
LIVE_STATES = frozenset({JobState.SCHEDULED, JobState.READY}) | HELD_STATES
TERMINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.DEAD, JobState.CANCELLED})

#: (from, to) -> the usual verb for the move. Some moves have several, see docs/reference/states.md.
JOB_STATE_MOVES: dict[tuple[JobState, JobState], str] = {
    (JobState.SCHEDULED, JobState.READY): "promote",
    (JobState.READY, JobState.RUNNING): "claim",
    (JobState.RUNNING, JobState.SUCCEEDED): "finish",
    (JobState.RUNNING, JobState.DEAD): "finish",
    (JobState.RUNNING, JobState.CANCELLED): "finish",
    (JobState.RUNNING, JobState.SCHEDULED): "retry",
    (JobState.RUNNING, JobState.READY): "release",
    (JobState.SCHEDULED, JobState.CANCELLED): "cancel",
    (JobState.READY, JobState.CANCELLED): "cancel",
    (JobState.SCHEDULED, JobState.DEAD): "discard",
    (JobState.READY, JobState.DEAD): "discard",
    (JobState.DEAD, JobState.READY): "requeue",
    (JobState.CANCELLED, JobState.READY): "requeue",
}


class Verdict(StrEnum):
    """Why an attempt ended."""

    SUCCEEDED = "succeeded"
    ERROR = "error"  #: the handler raised
    TIMEOUT = "timeout"  #: past the timeout of its attempt or the deadline of the job
    CANCELLED = "cancelled"  #: a cancel was requested
    MEMORY_LIMIT = "memory_limit"  #: over its own limit
    OOM = "oom"  #: the kernel took the worker
    CRASH = "crash"  #: a signal ended the worker
    EXIT = "exit"  #: the handler called sys.exit or os._exit
    INTERRUPTED = "interrupted"  #: drain, operator kill or the death of its supervisor; costs nothing
    HOST_LOST = "host_lost"  #: the host stopped renewing
    LEASE_LOST = "lease_lost"  #: another host owns the job now
    SNOOZED = "snoozed"  #: the handler asked to be run later; costs nothing
    THROTTLED = "throttled"  #: the handler asked for its queue to cool down; costs nothing
    DISCARDED = "discarded"  #: the handler, or an operator, gave it up, or its order could not be read
    EXPIRED = "expired"  #: not started in time
    UNFIT = "unfit"  #: its row cannot be claimed, or not be sent to a worker
    BAD_RESULT = "bad_result"  #: the handler returned what cannot be kept: too large, or not JSON


#: Verdicts that count against max_crashes: the process died, not only the handler.
CRASH_VERDICTS = frozenset({Verdict.CRASH, Verdict.OOM, Verdict.EXIT})
#: A job that was running in this many consecutive deaths of its supervisor or host is dead: it probably causes them.
MAX_CONSECUTIVE_LOSSES = 10
#: Verdicts that give the attempt back.
FREE_VERDICTS = frozenset({Verdict.INTERRUPTED, Verdict.SNOOZED, Verdict.THROTTLED})

OnConflict = Literal["return", "replace", "raise"]
R = TypeVar("R")
OnFailed = Literal["cancel", "run", "wait"]


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A job to enqueue. None: what the task declares. Durations are seconds, memory is bytes."""

    task: str
    args_json: str = "{}"
    queue: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    delay: float | None = None
    unique_key: str | None = None
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
    is_held: bool = False  # waits until it is released
    batch_id: int | None = None  # only by COPY
    idempotency_key: str | None = None
    idempotency_window: float | None = None  # None: a day

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """What `repr` shows of a job: the options that are set, and arguments without the values of secrets."""
        found = [(name, getattr(self, name)) for name in self.__struct_fields__]
        shown = [
            (name, hide_secrets_in_json(value) if name == "args_json" else value) for name, value in found
        ]
        return [(name, value) for name, value in shown if value is not None]

    def __repr__(self) -> str:
        return f"NewJob({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class PreparedJob(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A checked job that is not inserted yet."""

    job: NewJob


def unwrap_prepared(prepared: PreparedJob[Any]) -> NewJob:
    """What is inserted; UsageError for anything that no task has prepared."""
    try:
        return prepared.job
    except AttributeError:
        shown = f"{type(prepared).__name__} {prepared!r:.80}"
        raise UsageError(
            f"{shown} is not a prepared job; give task.prepare(...) for each; nothing was enqueued"
        ) from None


#: Of one job: more would make its end a long statement. `app.enqueue_many` takes any number.
MAX_CHILDREN_PER_JOB = 1000
MAX_JOB_CHILDREN_CHARACTERS = 4 << 20

#: What `pgworkers.enqueue_children` reads; the two texts are JSON themselves.
_CHILD_FIELDS = (
    "queue", "priority", "run_at", "delay", "max_attempts", "max_crashes", "timeout", "memory", "deadline", "expires",
    "concurrency_key",
)  # fmt: skip
_encode_json = msgspec.json.Encoder().encode


def refuse_as_child(new: NewJob) -> None:
    """UsageError for what must not come with an end: to wait for a lock, or to fail, would hold up other ends."""
    for option, value, why in (
        ("unique", new.unique_key, "its unique key may be held by an open transaction"),
        ("idempotency_key", new.idempotency_key, "its key may be held by an open transaction"),
        ("after", new.after or None, "the jobs it comes after may be gone by then"),
    ):
        if value is not None:
            raise UsageError(
                f"ctx.enqueue: {new.task} with {option}= cannot be enqueued with the end of a job: {why}; nothing was "
                f"enqueued; use task.using({option}=...).enqueue(...)"
            )


def child_characters(new: NewJob) -> int:
    """Characters, about."""
    return len(new.args_json) + len(new.meta_json or "") + 200


def encode_children(children: Iterable[NewJob]) -> bytes:
    """A JSON list, without what is left to the task."""
    return _encode_json([_child_fields(new) for new in children])


def _child_fields(new: NewJob) -> dict[str, Any]:
    fields = {name: value for name in _CHILD_FIELDS if (value := getattr(new, name)) is not None}
    fields |= {"task": new.task, "args": msgspec.Raw(new.args_json.encode())}
    if new.meta_json is not None:
        fields["meta"] = msgspec.Raw(new.meta_json.encode())
    return fields


class Fence(NamedTuple):
    """What every write of an execution names: the job, its lease, and when the server gave the claim.

    After an asynchronous failover ids and leases may be given again, to other jobs. The moment is not.
    """

    id: int
    lease: int
    claimed_at_us: int  # microseconds since 1970, by the server's clock


class ClaimedJob(NamedTuple):
    """A job this host now holds the lease of.

    JSON stays text: the master passes it through unread.
    """

    id: int
    lease: int
    queue: str
    task: str
    args: str
    attempt: int  # already counted: the first is 1
    crashes: int  # before this attempt
    max_attempts: int
    max_crashes: int
    timeout_seconds: float | None  # seconds for this attempt; None: what the task says
    memory_bytes: int | None
    seconds_to_deadline: float | None  # seconds until the deadline of the whole job; negative when it is past
    checkpoint: str | None
    meta: str | None
    errors: list[str]
    ready_seconds: float  # seconds it was ready
    is_cancel_requested: bool
    priority: int = 0
    is_limited: bool = False  # behind a concurrency limit: another may wait for its place
    consecutive_losses: int = 0  # deaths of its supervisor or host in a row, before this attempt
    deadline_epoch: float | None = (
        None  # the deadline of the whole job by the database's clock, as a renewal reads it
    )
    claimed_at_us: int = 0  # microseconds since 1970, by the clock of the server that gave the claim

    @property
    def fence(self) -> Fence:
        return Fence(self.id, self.lease, self.claimed_at_us)
