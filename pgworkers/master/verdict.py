"""Turns a report or a death into an outcome, a sentence for people, and the next state of the job. No I/O and no clock.

The worker reports what its handler did; the supervisor reports how a process died. This module is the only place that turns
either into a verdict and into what is written about the attempt. One thing has several forms on its way:

    Report.outcome, or Died -> AttemptOutcome with a Verdict -> JobFinish or JobRetry -> the event AttemptEnded
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from pgworkers.ipc.scoreboard import StopReason
from pgworkers.job.finish import JobFinish, JobRetry
from pgworkers.job.model import CRASH_VERDICTS, ClaimedJob, JobState, Verdict
from pgworkers.job.retry_policy import EndJob, decide_retry
from pgworkers.job.sanitize import clean_json
from pgworkers.master.held_job import HeldJob
from pgworkers.supervisor.messages import Died
from pgworkers.units import format_duration, format_size
from pgworkers.worker.messages import Outcome, Report, verdict_of_stop

_SUCCEEDED, _SUCCEEDED_STATE = Verdict.SUCCEEDED, JobState.SUCCEEDED


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """How one attempt ended, in the same form for a report and for a death."""

    verdict: Verdict
    duration: float
    cpu: float
    peak_rss: int
    error: str | None = None
    result: str | None = None
    traceback: str | None = None
    stack: str | None = None
    exit_status: str | None = None
    output: str | None = None
    progress: str | None = None
    checkpoint: str | None = None
    rungs: str | None = None
    children: str | None = None
    retry_after_seconds: float | None = None
    is_retry_requested: bool = False  # the handler asked for another attempt (Retry): no policy is against it
    is_supervisor_lost: bool = False  # its supervisor died
    is_permanent: bool = False  # another attempt would end the same way
    has_started: bool = True


def from_report(report: Report, held: HeldJob | None = None) -> AttemptOutcome:
    """The outcome that a worker reported. The limits of `held` are named in the sentence."""
    error = report.error
    if report.is_stopped:
        peak = max(report.peak_rss, report.memory_used)
        error = stop_sentence(report.reason, held, peak, error, report.memory_limit)
    if report.killed_children:
        error = f"{error or report.outcome}{killed_children_clause(report.killed_children)}"
    return AttemptOutcome(
        verdict=report.verdict,
        duration=report.duration,
        cpu=report.cpu,
        peak_rss=max(report.peak_rss, report.memory_used),
        error=error,
        result=None if report.result is None else clean_json(bytes(report.result)),
        traceback=report.traceback,
        output=report.output,
        progress=json_text_of(report.progress),
        checkpoint=json_text_of(report.checkpoint),
        rungs=_rungs_json(report.rungs),
        children=json_text_of(report.enqueued_jobs),
        retry_after_seconds=report.retry_after,
        is_retry_requested=report.outcome is Outcome.RETRY,
        is_permanent=report.outcome in (Outcome.BAD_ARGUMENTS, Outcome.FINAL_ERROR),
        has_started=report.has_started,
    )


def success_end(
    job: ClaimedJob, duration: float, cpu: float, peak_rss: int, result: bytes, keep_args: bool
) -> JobFinish:
    """What to write of a success without anything but a result.

    The worker is recorded only for failed attempts.
    """
    return JobFinish(
        id=job.id,
        lease=job.lease,
        claimed_at_us=job.claimed_at_us,
        verdict=_SUCCEEDED,
        duration_seconds=duration,
        cpu_seconds=cpu,
        peak_rss_bytes=peak_rss,
        state=_SUCCEEDED_STATE,
        result="null" if result == b"null" else result.decode("utf-8", "replace"),
        should_keep_args=keep_args,
    )


def from_death(died: Died, held: HeldJob | None = None, *, protocol_error: str = "") -> AttemptOutcome:
    """The outcome of a job whose worker died: by the stop request that killed it, else by how it died.

    `protocol_error`: the master killed it, because of these frames.
    """
    if protocol_error:
        verdict, error = Verdict.CRASH, forged_frame_sentence(protocol_error)
    elif died.is_lost:
        verdict, error = Verdict.INTERRUPTED, died.status
    elif died.reason is not None:
        verdict = verdict_of_stop(died.reason)
        error = stop_sentence(
            died.reason, held, max(died.peak_rss, died.memory_used), None, died.memory_limit
        )
    elif died.is_oom:
        verdict, error = Verdict.OOM, oom_sentence(died.peak_rss, died.memory_limit)
    elif died.signal:
        verdict, error = Verdict.CRASH, f"the worker was ended by {died.status}"
        if died.status == "SIGKILL":
            error += " (no process of this host sent it: possibly out of memory, or an operator)"
    else:
        verdict, error = Verdict.EXIT, f"the worker left with {died.status} in the middle of the job"
    if died.is_dumping:
        error += dump_crash_clause(died.status)
    if died.stuck:
        error += (
            f"; SIGKILL did not end all of its processes, they hang in the kernel: {', '.join(died.stuck)}"
        )
    if died.foreign:
        error += f"; its processes that belong to another user go on, as we may not end them: {', '.join(died.foreign)}"
    if died.has_closed_channel:
        error += f"; {CLOSED_CHANNEL_TEXT}"
    error += killed_children_clause(died.killed_children)
    return AttemptOutcome(
        verdict=verdict,
        duration=died.duration,
        cpu=died.cpu,
        peak_rss=max(died.peak_rss, died.memory_used),
        error=error,
        stack=died.stack,
        exit_status=died.status,
        output=died.output,
        rungs=_rungs_json(died.rungs),
        is_supervisor_lost=died.is_lost,
    )


def decide_end(
    held: HeldJob, ending: AttemptOutcome, rand: float, worker: str, version: str
) -> JobFinish | JobRetry:
    """What to write: the job's terminal state, or when it runs again."""
    job = held.job
    verdict = ending.verdict
    children = None
    if verdict is Verdict.SUCCEEDED:
        state, children = JobState.SUCCEEDED, ending.children
    elif verdict is Verdict.CANCELLED or held.stop_reason is StopReason.CANCEL:
        # The handler failed while it was being cancelled: the cancel counts, so there is no retry.
        state = JobState.CANCELLED
    else:
        decision = decide_retry(
            verdict,
            attempt=job.attempt,
            max_attempts=job.max_attempts,
            crashes=job.crashes,
            max_crashes=job.max_crashes,
            backoff=held.task.backoff,
            requested_delay=ending.retry_after_seconds,
            random_fraction=rand,
            is_past_deadline=held.is_past_deadline(),
            policy=_retry_policy(held, ending),
            is_supervisor_lost=ending.is_supervisor_lost,
            consecutive_losses=job.consecutive_losses,
        )
        if not isinstance(decision, EndJob):
            return JobRetry(
                **_postmortem(held, ending, worker, version),
                delay_seconds=decision.delay_seconds,
                is_free=decision.is_free,
            )
        state = JobState.DEAD
        if ending.is_supervisor_lost:
            ending = replace(
                ending,
                verdict=Verdict.CRASH,
                error=last_loss_sentence(ending.error, job.consecutive_losses + 1),
            )
        if (
            verdict in CRASH_VERDICTS
            and job.attempt < job.max_attempts
            and job.crashes + 1 >= job.max_crashes
        ):
            ending = replace(ending, error=last_crash_sentence(ending.error, job.crashes + 1))
    known = _postmortem(held, ending, worker, version)
    return JobFinish(
        **known, state=state, result=ending.result, children=children, should_keep_args=held.task.keep_args
    )


def _postmortem(held: HeldJob, ending: AttemptOutcome, worker: str, version: str) -> dict[str, Any]:
    """What is kept of an attempt, whether it is retried or not."""
    return {
        "id": held.job.id,
        "lease": held.job.lease,
        "claimed_at_us": held.job.claimed_at_us,
        "verdict": ending.verdict,
        "is_crash": ending.verdict in CRASH_VERDICTS,
        "is_supervisor_lost": ending.is_supervisor_lost,
        "duration_seconds": ending.duration,
        "cpu_seconds": ending.cpu,
        "peak_rss_bytes": ending.peak_rss,
        "error": ending.error,
        "traceback": ending.traceback,
        "stack": ending.stack,
        "exit_status": ending.exit_status,
        "output": ending.output,
        "progress": ending.progress,
        "checkpoint": ending.checkpoint,
        "rungs": ending.rungs,
        "worker": worker,
        "version": version,
    }


def _retry_policy(held: HeldJob, ending: AttemptOutcome) -> bool | float:
    """Whether it may run again, and after how long: False, True (by the backoff curve) or seconds."""
    if ending.is_permanent:
        return False
    return True if ending.is_retry_requested else held.task.retry_verdicts.get(ending.verdict, True)


def json_text_of(raw: msgspec.Raw | None) -> str | None:
    """The JSON text that a handler left; None if it left nothing."""
    if raw is None or bytes(raw) == b"null":
        return None
    return clean_json(bytes(raw))


def _rungs_json(rungs: list[tuple[str, float]]) -> str | None:
    if not rungs:
        return None
    return msgspec.json.encode([{"rung": rung, "after": round(after, 3)} for rung, after in rungs]).decode()


OOM_TEXT = "killed by the kernel, which was out of memory"
CLOSED_CHANNEL_TEXT = (
    "its handler had closed descriptors that were not its own, including the channel to the master"
)
#: The exception that stops a handler. It adds nothing to the reason.
_STOP_EXCEPTION_PATTERN = re.compile(r"(JobStopped|CancelledError)\b")


def stop_sentence(
    reason: StopReason | None, held: HeldJob | None, peak: int, error: str | None, limit: int = 0
) -> str:
    """`stopped at its deadline: 10m for one attempt`.

    `error`: what the handler raised when it was stopped.

    `limit`: the bytes that it may have, and `peak` what it had.
    """
    sentence = _stop_reason_text(reason, held, peak, limit)
    if error and not _STOP_EXCEPTION_PATTERN.match(error):
        return f"{sentence}; it ended with {error}"
    return sentence


def dump_crash_clause(status: str) -> str:
    """For a worker that crashed while its stacks were dumped, which is not the fault of the job."""
    return f"; its interpreter crashed ({status}) while its stacks were written"


def forged_frame_sentence(error: str) -> str:
    """For a worker whose channel carried data that no worker sends."""
    return (
        f"the worker was killed: its channel to the master carried what no worker sends ({error}); "
        "something in its process has written to a descriptor that is not its own"
    )


def last_crash_sentence(error: str | None, crashes: int) -> str:
    """For a job that has attempts left and gets none because of its crashes."""
    times = "once" if crashes == 1 else f"{crashes} times"
    return f"{error or 'it crashed'}; not tried again: it took its worker down {times} (max_crashes)"


def last_loss_sentence(error: str | None, losses: int) -> str:
    """For a job that was running each time its supervisor or host died."""
    why = f"it was running in {losses} deaths of its supervisor or host in a row"
    return f"{error or 'its supervisor died'}; not tried again: {why}"


def oom_sentence(peak: int, limit: int) -> str:
    """For a job that the kernel killed: its limit was too high for the machine, or it had none."""
    allowed = f"{format_size(limit)} allowed" if limit else "no limit of its own (memory=)"
    return f"{OOM_TEXT}: peak {format_size(peak)}, {allowed}"


def killed_children_clause(names: Sequence[str]) -> str:
    """`; killed with it: ffmpeg (pid 812)`; nothing if it had left none."""
    return f"; killed with it: {', '.join(names)}" if names else ""


def _stop_reason_text(reason: StopReason | None, held: HeldJob | None, peak: int, limit: int) -> str:
    match reason:
        case StopReason.CANCEL:
            return "cancelled"
        case StopReason.DEADLINE:
            return f"stopped at its deadline{_deadline_text(held)}"
        case StopReason.MEMORY:
            limit = limit or ((held.job.memory_bytes or held.task.memory or 0) if held is not None else 0)
            allowed = f", {format_size(limit)} allowed" if limit else ""
            return f"stopped over its memory limit: peak {format_size(peak)}{allowed}"
        case StopReason.STALL:
            longest = held.task.stall_timeout if held is not None else None
            period = f" for {format_duration(longest)}" if longest else ""
            return f"stopped: it showed no sign of life{period} (stall_timeout)"
        case StopReason.LEASE:
            return "stopped: another host holds the lease, or may soon"
        case StopReason.KILL:
            return "interrupted: killed at once, by an operator or because its supervisor had to leave"
        case _:
            return "interrupted: the host was asked to stop"


def _deadline_text(held: HeldJob | None) -> str:
    if held is None:
        return ""
    if held.is_past_deadline():
        return " for the whole job"
    own = held.timeout_seconds()
    more = f", extended by {format_duration(held.extended_seconds)}" if held.extended_seconds else ""
    return f": {format_duration(own)} for one attempt{more}" if own is not None else ""
