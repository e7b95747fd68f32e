"""The text of `jobs show`: what a job is, its state and why, and each attempt in order. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from pgworkers.cli.formatting import (
    compact_json,
    local_time,
    relative_time,
    shorten,
    show_arguments,
    show_duration,
    show_progress_value,
    terminal_safe,
)
from pgworkers.cli.jobs.reasons import attempts_before_retry, reason_not_claimed, reason_scheduled
from pgworkers.errors import StoredArgumentsError
from pgworkers.job.model import CRASH_VERDICTS, JobState, Verdict
from pgworkers.job.operations import Operation
from pgworkers.job.queries import AttemptView, JobSituation, JobView
from pgworkers.observe import tracing
from pgworkers.observe.escape import shell_command
from pgworkers.observe.log_messages import rest_of_reason
from pgworkers.units import format_size

#: Verdicts whose error needs what they mean before it.
VERDICTS_WITH_USER_ERROR = (Verdict.ERROR, Verdict.DISCARDED, Verdict.EXIT, Verdict.BAD_RESULT)
#: Each rung of the stop ladder, as something that happened.
RUNG_DESCRIPTIONS = {
    "ask": "asked to stop",
    "raise": "JobStopped raised",
    "signal": "signalled without effect",
    "dump": "stack written",
    "kill": "killed",
}
#: What was done to a job from outside, as something that happened.
OPERATION_PAST_TENSE = {
    "cancel": "cancelled",
    "discard": "discarded",
    "purge": "purged",
    "retry": "retried",
    "forget": "forgotten",
    "deadline": "deadline",
}
CANCELLED_PREFIX = "cancelled: "  #: how the error begins of a job that falls with one that it comes after
UNFIT_ARGUMENTS_PREFIX = StoredArgumentsError.__name__  #: how the error of such an attempt begins
#: What each verdict means to a person who did not read the design.
VERDICT_MEANINGS = {
    Verdict.SUCCEEDED: "it returned",
    Verdict.ERROR: "the handler raised",
    Verdict.TIMEOUT: "it ran past its time and was stopped",
    Verdict.CANCELLED: "a cancel was requested",
    Verdict.MEMORY_LIMIT: "it used more memory than it may",
    Verdict.OOM: "the kernel killed the worker: out of memory",
    Verdict.CRASH: "a signal ended the worker",
    Verdict.EXIT: "the handler ended its process",
    Verdict.INTERRUPTED: "it was handed back; this cost no attempt",
    Verdict.HOST_LOST: "its host stopped renewing",
    Verdict.LEASE_LOST: "another host had taken it over",
    Verdict.SNOOZED: "it asked to be run later; this cost no attempt",
    Verdict.THROTTLED: "it asked its queue to cool down; this cost no attempt",
    Verdict.DISCARDED: "it was given up",
    Verdict.EXPIRED: "it was not started in time",
    Verdict.UNFIT: "no worker can have it",
    Verdict.BAD_RESULT: "the handler returned, but its result cannot be kept; it is not tried again",
}


def tell_story(
    job: JobView,
    attempts: Sequence[AttemptView],
    now: datetime,
    around: JobSituation | None = None,
    operations: Sequence[Operation] = (),
) -> Iterator[str]:
    """The story, line by line."""
    around = around or JobSituation()
    before = attempts_before_retry(job, attempts)
    given = terminal_safe(shorten(show_arguments(job.args), 2000))
    yield f"#{job.id} {terminal_safe(job.task)}" + (
        f" {given}" if isinstance(job.args, str) else f"({given})"
    )
    yield f"{job.state}: {explain_state(job, attempts[before:], now, around, operations)}"
    yield ""
    yield from _job_facts(job, now, around)
    for operation in operations:
        done = OPERATION_PAST_TENSE.get(operation.verb, operation.verb)
        yield f"  {done:<11}{_when(operation.at, now)} {_operator_sentence(operation)}"
    if job.state == JobState.READY and around.traceback:
        yield ""
        yield f"why no worker starts on {terminal_safe(around.failing_host or '?')}:"
        yield from (
            f"    {row}".rstrip()
            for row in terminal_safe(around.traceback.rstrip(), should_keep_lines=True).splitlines()
        )
    for at, attempt in enumerate(attempts):
        yield ""
        yield from _attempt_lines(attempt, now, _attempt_name(attempts, at, before))
    if job.state == JobState.SUCCEEDED:
        yield ""
        yield f"result: {terminal_safe(compact_json(job.result))}"


def explain_state(
    job: JobView,
    attempts: Sequence[AttemptView],
    now: datetime,
    around: JobSituation,
    operations: Sequence[Operation] = (),
) -> str:
    """Why the job is in its state, in one sentence."""
    last = attempts[-1] if attempts else None
    spent = f"attempt {job.attempt} of {job.max_attempts}"
    match job.state:
        case JobState.SCHEDULED if last is not None and job.attempt:
            when, why = relative_time(job.run_at, now), _ended(last.verdict, last.error)
            return f"will be tried again {when}, after {why}, {spent} spent"
        case JobState.SCHEDULED:
            return reason_scheduled(around) or f"waits for its time, {relative_time(job.run_at, now)}"
        case JobState.READY:
            stuck = reason_not_claimed(job, around)
            waits = f"waits in {terminal_safe(job.queue)} for a worker"
            since = (
                f"after {_ended(last.verdict, last.error)}" if last is not None else _since(job.run_at, now)
            )
            return f"{waits}, {since}" if stuck is None else f"waits, {since}: {stuck}"
        case JobState.CLAIMED | JobState.RUNNING:
            asked = _last_operation(operations, "cancel")
            by = f" {_operator_sentence(asked)}" if asked is not None else ""
            cancel = f", and was asked to stop{by}" if job.cancel_at is not None else ""
            if job.state == JobState.CLAIMED:
                return (
                    f"its host took it {relative_time(job.started_at, now)} for {spent}, and has not reported a worker "
                    f"that has it{cancel}"
                )
            still = (
                f", suspended; {shell_command('jobs resume', job.id)} lets it go on"
                if around.is_suspended
                else ""
            )
            return f"{spent} started {relative_time(job.started_at, now)}{cancel}{still}"
        case JobState.SUCCEEDED:
            return f"{_duration_prefix(job.duration)}on {spent}, {relative_time(job.finished_at, now)}"
        case JobState.DEAD:
            return f"{_death(job, last)}, {relative_time(job.finished_at, now)}"
        case _:
            begun = "" if last is not None or job.attempt else "before it began, "
            return f"{begun}{_cancelled(job, operations)}, {relative_time(job.finished_at, now)}"


def _cancelled(job: JobView, operations: Sequence[Operation]) -> str:
    """By which login and why, or because of which other job."""
    if (job.error or "").startswith(CANCELLED_PREFIX):
        return f"because {terminal_safe((job.error or '').removeprefix(CANCELLED_PREFIX))}"
    asked = _last_operation(operations, "cancel", "purge")
    return VERDICT_MEANINGS[Verdict.CANCELLED] if asked is None else _operator_sentence(asked)


def _last_operation(operations: Sequence[Operation], *verbs: str) -> Operation | None:
    return next((one for one in reversed(operations) if one.verb in verbs), None)


def _operator_sentence(operation: Operation) -> str:
    """`by operator (anna@laptop): wrong input`"""
    who = f" ({terminal_safe(operation.os_user)})" if operation.os_user else ""
    return f"by {terminal_safe(operation.login)}{who}" + (
        f": {terminal_safe(operation.reason)}" if operation.reason else ""
    )


def _death(job: JobView, last: AttemptView | None) -> str:
    """Why the job is dead: a decision or a limit, and the last error."""
    verdict = job.verdict or (last.verdict if last else "")
    reason = terminal_safe(shorten(rest_of_reason(verdict, job.error).lstrip(":; "))) if job.error else ""
    # Our own sentences say what the verdict means, and more; the text of user code needs the meaning in front of it.
    means = _ended(verdict, job.error) if verdict in VERDICTS_WITH_USER_ERROR or not reason else verdict
    words = f"{means}: {reason}" if reason else means
    if verdict in (Verdict.DISCARDED, Verdict.EXPIRED, Verdict.UNFIT, Verdict.BAD_RESULT):
        return words
    if "not tried again: it was running in " in reason:
        return words  # its supervisor or host died each time
    if verdict in CRASH_VERDICTS and job.attempt < job.max_attempts:
        return f"it took its worker down too often (crashes: {job.crashes}), the last time {words}"
    if job.attempt >= job.max_attempts:
        return f"out of attempts ({job.attempt} of {job.max_attempts}), the last one {words}"
    return f"{words}, on attempt {job.attempt} of {job.max_attempts}"


def _ended(verdict: str, error: str | None = None) -> str:
    """`error (the handler raised)`"""
    if verdict == Verdict.ERROR and (error or "").startswith(UNFIT_ARGUMENTS_PREFIX):
        return f"{verdict} (its arguments do not fit the task; the handler was not run)"
    try:
        return f"{verdict} ({VERDICT_MEANINGS[Verdict(verdict)]})"
    except ValueError:
        return terminal_safe(verdict)


def _duration_prefix(duration: float | None) -> str:
    return "" if duration is None else f"in {show_duration(duration)} "


def _since(when: datetime | None, now: datetime) -> str:
    return f"since {relative_time(when, now).removesuffix(' ago')}"


def _job_facts(job: JobView, now: datetime, around: JobSituation) -> Iterator[str]:
    """What is known about the job, one fact a line, the unknown ones left out."""
    facts = {
        "queue": f"{terminal_safe(job.queue)}, priority {job.priority}",
        "created": _when(job.created_at, now),
        "login": terminal_safe(job.enqueued_by),
        "due": "" if job.run_at == job.created_at else _when(job.run_at, now),
        "claimed" if job.state == JobState.CLAIMED else "started": _when(job.started_at, now),
        "finished": _when(job.finished_at, now),
        "attempts": f"{job.attempt} of {job.max_attempts}, crashes {job.crashes}, lease {job.lease}",
        "spent": _show_usage(job.duration, job.cpu_seconds, job.peak_rss),
        "host": _host(job, around),
        "worker": terminal_safe(f"{around.worker} pid {around.pid}") if around.worker else "",
        "progress": terminal_safe(show_progress_value(job.progress)),
        "checkpoint": _json(job.checkpoint),
        "unique": terminal_safe(job.unique_key or ""),
        "trace": tracing.traceparent_of(job.meta) or "",
        "meta": _json(_meta_without_trace(job.meta)),
    }
    for name, value in facts.items():
        if value:
            yield f"  {name:<11}{value}"


def _attempt_name(attempts: Sequence[AttemptView], at: int, before: int) -> str:
    """`attempt 2`; one that cost nothing is run again under the same number: `attempt 2, run 1`, `attempt 2, run 2`."""
    number, retried = attempts[at].attempt, at < before
    same = [i for i, one in enumerate(attempts) if one.attempt == number and (i < before) == retried]
    run = f", run {same.index(at) + 1}" if len(same) > 1 else ""
    return f"attempt {number}{run}" + (" (before it was retried)" if retried else "")


def _attempt_lines(attempt: AttemptView, now: datetime, which: str) -> Iterator[str]:
    """One attempt that did not succeed."""
    spent = _show_usage(attempt.duration, attempt.cpu_seconds, attempt.peak_rss)
    yield f"{which}: {_ended(attempt.verdict, attempt.error)}, {relative_time(attempt.finished_at, now)}"
    facts = {
        "started": _when(attempt.started_at, now),
        "spent": spent,
        "exit": terminal_safe(_exit(attempt)),
        "worker": terminal_safe(attempt.worker or ""),
        "version": terminal_safe(attempt.version or ""),
        "progress": terminal_safe(show_progress_value(attempt.progress)),
        "stopping": _rungs_sentence(attempt.rungs),
        "error": terminal_safe(shorten(attempt.error or "", 2000)),
    }
    for name, value in facts.items():
        if value:
            yield f"  {name:<11}{value}"
    for name, text in (
        ("traceback", attempt.traceback),
        ("stack", attempt.stack),
        ("output", attempt.output),
    ):
        if text and text.strip():
            yield f"  {name}:"
            yield from (
                f"    {row}".rstrip()
                for row in terminal_safe(text.rstrip(), should_keep_lines=True).splitlines()
            )


def _host(job: JobView, around: JobSituation) -> str:
    """`render-1 (8c5e…)`; the name is known for as long as the host's row is."""
    if job.host is None:
        return ""
    return f"{terminal_safe(around.host)} ({job.host})" if around.host else str(job.host)


def _when(when: datetime | None, now: datetime) -> str:
    return "" if when is None else f"{local_time(when)} ({relative_time(when, now)})"


def _show_usage(duration: float | None, cpu: float | None, peak: int | None) -> str:
    """`4.2s, cpu 4.1s, peak 312MB`"""
    parts = [
        "" if duration is None else show_duration(duration),
        "" if cpu is None else f"cpu {show_duration(cpu)}",
        "" if peak is None else f"peak {format_size(peak)}",
    ]
    return ", ".join(filter(None, parts))


def _exit(attempt: AttemptView) -> str:
    """`SIGSEGV (Segmentation fault)`; of a SIGKILL, who sent it."""
    status = attempt.exit_status or ""
    if status == "SIGKILL":
        if any(_rung_name(rung) == "kill" for rung in _rung_records(attempt.rungs)):
            return f"{status}, sent by pgworkers"
        return f"{status}, sent by the kernel" if attempt.verdict == Verdict.OOM else status
    number = getattr(signal, status, None) if status.startswith("SIG") else None
    return f"{status} ({signal.strsignal(number)})" if isinstance(number, signal.Signals) else status


def _rungs_sentence(rungs: Any) -> str:
    """`asked to stop, JobStopped raised after 5s, stack written after 10s, killed after 10s`"""
    return ", ".join(
        RUNG_DESCRIPTIONS.get(_rung_name(rung), terminal_safe(_rung_name(rung)))
        + (f" after {show_duration(rung['after'])}" if rung.get("after") else "")
        for rung in _rung_records(rungs)
    )


def _rung_records(rungs: Any) -> list[dict[str, Any]]:
    return [rung for rung in rungs if isinstance(rung, dict)] if isinstance(rungs, list) else []


def _rung_name(rung: dict[str, Any]) -> str:
    return str(rung.get("rung", "?"))


def _meta_without_trace(meta: Any) -> Any:
    """The meta without the trace, which has a line of its own."""
    if tracing.traceparent_of(meta) is None:
        return meta
    return {
        key: value
        for key, value in meta.items()
        if key not in (tracing.TRACEPARENT_KEY, tracing.TRACESTATE_KEY)
    } or None


def _json(value: Any) -> str:
    return "" if value is None else terminal_safe(compact_json(value))
