"""The messages between the master and a worker, over their socketpair.

Frames are a fixed binary header (`ipc/frames.py`) and a body. The body of an ORDER is a length, a JSON header and the JSON
arguments. The body of a SUCCESS is three numbers and the JSON result. All other bodies are JSON. Arguments, results and
checkpoints pass through unparsed as `msgspec.Raw`: the master never looks inside them.
"""

from __future__ import annotations

import struct
from enum import IntEnum, StrEnum

import msgspec
from msgspec import Raw

from pgworkers.ipc import frames
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.job.model import Verdict

JSON_NULL = Raw(b"null")


class Outcome(StrEnum):
    """How an attempt ended, as the worker saw it."""

    DONE = "done"
    ERROR = "error"  #: an exception
    FINAL_ERROR = "final_error"  #: an exception that the task does not retry (`retry_on=`)
    RETRY = "retry"  #: raised Retry
    SNOOZE = "snooze"  #: raised Snooze
    THROTTLED = "throttled"  #: raised Throttled
    DISCARD = "discard"  #: raised Discard, or the order cannot be read
    BAD_ARGUMENTS = "bad_arguments"  #: the stored arguments do not fit the task
    BAD_RESULT = "bad_result"  #: the result cannot be stored
    EXIT = "exit"  #: raised SystemExit
    STOPPED = "stopped"  #: ended by a stop request, or before it began


# Read with every job. Python 3.11 takes long to look up a member of an enum, so it is done once.
_DONE, _STOPPED = Outcome.DONE, Outcome.STOPPED

#: Why an attempt was stopped -> its verdict.
VERDICT_OF_STOP_REASON = {
    StopReason.NONE: Verdict.INTERRUPTED,
    StopReason.CANCEL: Verdict.CANCELLED,
    StopReason.DEADLINE: Verdict.TIMEOUT,
    StopReason.MEMORY: Verdict.MEMORY_LIMIT,
    StopReason.DRAIN: Verdict.INTERRUPTED,
    StopReason.KILL: Verdict.INTERRUPTED,
    StopReason.LEASE: Verdict.LEASE_LOST,
    StopReason.STALL: Verdict.TIMEOUT,
}


def verdict_of_stop(reason: StopReason | None) -> Verdict:
    """The verdict of an attempt that was stopped. None: it ended with its host."""
    return Verdict.INTERRUPTED if reason is None else VERDICT_OF_STOP_REASON[reason]


VERDICT_OF_OUTCOME = {
    Outcome.DONE: Verdict.SUCCEEDED,
    Outcome.ERROR: Verdict.ERROR,
    Outcome.FINAL_ERROR: Verdict.ERROR,
    Outcome.RETRY: Verdict.ERROR,
    Outcome.SNOOZE: Verdict.SNOOZED,
    Outcome.THROTTLED: Verdict.THROTTLED,
    Outcome.DISCARD: Verdict.DISCARDED,
    Outcome.BAD_ARGUMENTS: Verdict.ERROR,
    Outcome.BAD_RESULT: Verdict.BAD_RESULT,
    Outcome.EXIT: Verdict.EXIT,
}


class FrameKind(IntEnum):
    """The type byte of a frame."""

    ORDER = 1  #: master -> worker: run this
    READY = 2  #: worker -> master: hooks have run, orders may come (job and lease are 0, empty body)
    REPORT = 3  #: worker -> master: how it ended
    PROGRESS = 4  #: worker -> master, from the heartbeat thread
    SUCCESS = 5  #: worker -> master: it ended well and there is nothing more to say (`encode_success`)
    METRICS = 6  #: worker -> master: values of `ctx.metrics`, with a heartbeat or before the report
    START_FAILED = 8  #: worker -> master: a start hook failed; it leaves (`StartFailed`; job and lease are 0)
    BUSY_THREADS = 7  #: worker -> master: threads that a job left use CPU while there is none (no job, no lease, no body)


class Order(msgspec.Struct, array_like=True, kw_only=True):
    """One job for one worker.

    Job id and lease are in the frame's header; the arguments follow (`encode_order_header`).
    """

    task: str
    queue: str
    attempt: int  # the first is 1
    crashes: int
    timeout: float | None  # seconds from its begin until the deadline of the attempt
    memory: int | None
    checkpoint: Raw  # JSON text, `null` when there is none
    meta: Raw  # JSON text, `null` when there is none
    errors: list[str]
    exclusive: bool = False
    stall_timeout: float | None = None
    deadline: int = 0  # of the whole job, nanoseconds of CLOCK_BOOTTIME; 0: none


class StartFailed(msgspec.Struct, array_like=True):
    """Why a worker cannot start."""

    error: str
    traceback: str


class Progress(msgspec.Struct, array_like=True):
    """What changed since the last beat; the JSON text `null`: unchanged."""

    progress: Raw = JSON_NULL
    checkpoint: Raw = JSON_NULL
    extended: float = 0.0  # seconds that this attempt was given beyond its deadline


class Report(msgspec.Struct, array_like=True):
    """How an attempt ended, as the worker saw it.

    A worker that dies sends none: its supervisor reports the death.
    """

    outcome: Outcome
    duration: float
    cpu: float  # seconds, children included
    peak_rss: int  # bytes
    result: Raw = JSON_NULL  # done: JSON text (msgspec cannot decode `Raw | None`)
    error: str | None = None  # one line: "ValueError: no such file"
    traceback: str | None = None
    retry_after: float | None = None  # retry, snooze, throttled, or computed by a back-off function
    reason: StopReason | None = None  # stopped: why
    rungs: list[tuple[str, float]] = []  # stopped: (rung, seconds after the stop request)
    output: str | None = None  # the end of stdout and stderr, unless done
    progress: Raw = JSON_NULL  # since the last PROGRESS; `null`: unchanged
    checkpoint: Raw = JSON_NULL  # since the last PROGRESS; `null`: unchanged
    has_started: bool = True  # False: stopped before the handler began
    is_last: bool = (
        False  # the worker leaves: max_jobs, max_rss, not cleaned, a task of the event loop is stuck
    )
    stop_seconds: float = 0.0  # stopped: seconds from the stop request to the end
    memory_limit: int = 0  # stopped for memory: bytes that it may have
    memory_used: int = 0  # stopped for memory: what the supervisor measured, children included
    killed_children: list[str] = []  # children that the handler left, unless done
    enqueued_jobs: Raw = JSON_NULL  # done: a list of the jobs that begin to exist with its end

    @property
    def is_success(self) -> bool:
        return self.outcome == _DONE

    @property
    def is_stopped(self) -> bool:
        return self.outcome == _STOPPED

    def is_plain_success(self) -> bool:
        """True if a SUCCESS frame says everything."""
        return (
            self.is_success
            and not self.is_last
            and self.progress is JSON_NULL
            and self.checkpoint is JSON_NULL
            and self.enqueued_jobs is JSON_NULL
        )

    @property
    def verdict(self) -> Verdict:
        if self.is_stopped:
            return verdict_of_stop(self.reason)
        return VERDICT_OF_OUTCOME.get(self.outcome, Verdict.ERROR)


_LENGTH = struct.Struct("<I")
_length = _LENGTH.unpack_from


def encode_order_header(order: Order) -> bytes:
    """The body of an ORDER frame up to the arguments, which jobs of one task mostly have in common."""
    text = msgspec.json.encode(order)
    return _LENGTH.pack(_LENGTH.size + len(text)) + text


def decode_order_header(header: bytes) -> Order:
    return _decode_order(header[_LENGTH.size :])


def split_order(body: bytes) -> tuple[bytes, bytes]:
    """The body of an ORDER frame as its head and the arguments."""
    end = _length(body)[0]
    return body[:end], body[end:]


_decode_order = msgspec.json.Decoder(Order).decode

_SUCCESS_BODY = struct.Struct("<qqq")
_SUCCESS_KIND = FrameKind.SUCCESS
_SUCCESS_FRAME = struct.Struct(f"{frames.HEADER_FORMAT}qqq")
_pack_success, _unpack_success = _SUCCESS_FRAME.pack, _SUCCESS_BODY.unpack_from


def encode_success(job: int, lease: int, *, duration: int, cpu: int, peak_rss: int, result: bytes) -> bytes:
    """A SUCCESS frame, for a report with `is_plain_success()`. Its times are microseconds."""
    return (
        _pack_success(_SUCCESS_BODY.size + len(result), _SUCCESS_KIND, job, lease, duration, cpu, peak_rss)
        + result
    )


def check_success(body: bytes) -> None:
    """Raise FrameError for a body that `decode_success` cannot read."""
    if len(body) < _SUCCESS_BODY.size:
        raise frames.FrameError(f"a report of {len(body)} bytes is too short")


def decode_success(body: bytes) -> tuple[float, float, int, bytes]:
    """Duration and CPU seconds, peak RSS in bytes, the result as JSON text."""
    duration, cpu, peak_rss = _unpack_success(body)
    return duration / 1e6, cpu / 1e6, peak_rss, body[24:]
