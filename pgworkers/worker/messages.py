"""What the master and a worker say to each other over their socketpair.

Frames are a fixed binary header (`ipc/frames.py`) and a body: JSON, but for the commonest report. Argument, result
and checkpoint texts pass through unparsed as `msgspec.Raw`: the master never looks inside them.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec
from msgspec import Raw

from pgworkers.ipc import frames
from pgworkers.job.model import Verdict

NULL = Raw(b"null")

#: Why a ladder was climbed -> the verdict of an attempt that it ended.
VERDICT_OF_STOP_REASON = {
    "cancel": Verdict.CANCELLED,
    "deadline": Verdict.TIMEOUT,
    "memory": Verdict.MEMORY_LIMIT,
    "drain": Verdict.INTERRUPTED,
    "kill": Verdict.INTERRUPTED,
    "lease": Verdict.LEASE_LOST,
    "stall": Verdict.TIMEOUT,
}
VERDICT_OF_OUTCOME = {
    "done": Verdict.SUCCEEDED,
    "error": Verdict.ERROR,
    "retry": Verdict.ERROR,
    "snooze": Verdict.SNOOZED,
    "throttled": Verdict.THROTTLED,
    "discard": Verdict.DISCARDED,
    "unfit": Verdict.ERROR,
    "bad_result": Verdict.BAD_RESULT,
    "exit": Verdict.EXIT,
}


class FrameKind(IntEnum):
    """The type byte of a frame."""

    ORDER = 1  #: master -> worker: run this
    READY = 2  #: worker -> master: hooks have run, orders may come (job and lease are 0, empty body)
    REPORT = 3  #: worker -> master: how it ended
    PROGRESS = 4  #: worker -> master, from the heartbeat thread
    SUCCESS = 5  #: worker -> master: it ended well and there is nothing more to say (`encode_success`)
    METRICS = 6  #: worker -> master: what `ctx.metrics` was told, with a beat or before the end
    START_FAILED = 8  #: worker -> master: a start hook failed; it leaves (`StartFailed`; job and lease are 0)
    BUSY_THREADS = 7  #: worker -> master: threads that a job left use CPU while there is none (no job, no lease, no body)


class Order(msgspec.Struct, array_like=True):
    """One job for one worker. Job id and lease are in the frame's header; the arguments follow (`encode_order_header`)."""

    task: str
    queue: str
    attempt: int  # the first is 1
    crashes: int
    timeout: float | None  # seconds from its begin until the deadline of the attempt
    memory: int | None
    checkpoint: Raw  # JSON text, `null` when there is none
    meta: Raw  # likewise
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

    progress: Raw = NULL
    checkpoint: Raw = NULL
    extended: float = 0.0  # seconds that this attempt was given beyond its deadline


class Report(msgspec.Struct, array_like=True):
    """How an attempt ended, as the worker saw it. A worker that dies sends none: its supervisor tells."""

    outcome: str  # done, error, retry, snooze, throttled, discard, unfit, bad_result, exit, stopped
    duration: float
    cpu: float  # seconds, children included
    peak_rss: int  # bytes
    result: Raw = NULL  # done: JSON text (msgspec cannot decode `Raw | None`)
    error: str | None = None  # one line: "ValueError: no such file"
    traceback: str | None = None
    retry_after: float | None = None  # retry, snooze, throttled, or computed by a back-off function
    reason: str | None = None  # stopped: cancel, deadline, memory, drain, lease, kill
    rungs: list[tuple[str, float]] = []  # stopped: (rung, seconds after the wish)
    output: str | None = None  # the end of stdout and stderr, unless done
    progress: Raw = NULL  # since the last PROGRESS; `null`: unchanged
    checkpoint: Raw = NULL  # likewise
    has_started: bool = True  # False: stopped before the handler began
    is_last: bool = False  # the worker leaves after this job (max_jobs, max_rss)
    stop_seconds: float = 0.0  # stopped: seconds from the wish to the end
    memory_limit: int = 0  # stopped for memory: bytes that it may have
    memory_used: int = 0  # likewise: what the supervisor saw, children included
    killed_children: list[str] = []  # children that the handler left, unless done
    enqueued_jobs: Raw = NULL  # done: a list of the jobs that begin to exist with its end

    def is_plain_success(self) -> bool:
        """Would a DONE frame say it all?"""
        return (
            self.outcome == "done"
            and not self.is_last
            and self.progress is NULL
            and self.checkpoint is NULL
            and self.enqueued_jobs is NULL
        )

    @property
    def verdict(self) -> Verdict:
        if self.outcome == "stopped":
            return VERDICT_OF_STOP_REASON.get(self.reason or "", Verdict.INTERRUPTED)
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
_SUCCESS_FRAME = struct.Struct(f"{frames.HEADER_FORMAT}qqq")
_SUCCESS_KIND = int(FrameKind.SUCCESS)  # with every job: to ask an enum takes longer
_pack_success, _unpack_success = _SUCCESS_FRAME.pack, _SUCCESS_BODY.unpack_from


def encode_success(job: int, lease: int, report: Report) -> bytes:
    """A SUCCESS frame, for a report with `is_plain_success()`. Its times are whole microseconds."""
    duration, cpu = round(report.duration * 1e6), round(report.cpu * 1e6)
    result = bytes(report.result)
    return (
        _pack_success(
            _SUCCESS_BODY.size + len(result), _SUCCESS_KIND, job, lease, duration, cpu, report.peak_rss
        )
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
