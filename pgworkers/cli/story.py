"""One job told as a story: what it is, how it stands and why, and each attempt in order. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from pgworkers.cli.reasons import closed, hindrance, waiting_for
from pgworkers.cli.wording import ago, arguments, compact, lasting, moment, plain, progress, short
from pgworkers.clock import show_size
from pgworkers.errors import UnfitArguments
from pgworkers.job.operation import Operation
from pgworkers.job.show import AttemptView, JobView
from pgworkers.job.standing import Standing
from pgworkers.job.state import CRASHES, State, Verdict
from pgworkers.observe import tracing
from pgworkers.observe.escape import command
from pgworkers.observe.lines import rest

#: Verdicts whose error needs what they mean before it.
SAID_BY_USERS = (Verdict.ERROR, Verdict.DISCARDED, Verdict.EXIT, Verdict.BAD_RESULT)
#: Each rung of the stop ladder, as something that happened.
RUNGS = {
    "ask": "asked to stop",
    "raise": "JobStopped raised",
    "signal": "signalled without effect",
    "dump": "stack written",
    "kill": "killed",
}
#: What was done to a job from outside, as something that happened.
PAST = {
    "cancel": "cancelled",
    "discard": "discarded",
    "purge": "purged",
    "retry": "retried",
    "forget": "forgotten",
    "deadline": "deadline",
}
FOLLOWED = "cancelled: "  #: how the error begins of a job that falls with one that it comes after
UNFIT = UnfitArguments.__name__  #: how the error of such an attempt begins
#: What each verdict means to a person who did not read the design.
MEANINGS = {
    Verdict.SUCCEEDED: "it returned",
    Verdict.ERROR: "the handler raised",
    Verdict.TIMEOUT: "it ran past its time and was stopped",
    Verdict.CANCELLED: "somebody cancelled it",
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


def tell(
    job: JobView,
    attempts: Sequence[AttemptView],
    now: datetime,
    around: Standing | None = None,
    operations: Sequence[Operation] = (),
) -> Iterator[str]:
    """The story, line by line."""
    around = around or Standing()
    before = closed(job, attempts)
    given = plain(short(arguments(job.args), 2000))
    yield f"#{job.id} {plain(job.task)}" + (f" {given}" if isinstance(job.args, str) else f"({given})")
    yield f"{job.state}: {why(job, attempts[before:], now, around, operations)}"
    yield ""
    yield from _facts(job, now, around)
    for operation in operations:
        yield f"  {PAST.get(operation.verb, operation.verb):<11}{_when(operation.at, now)} {_by(operation)}"
    if job.state == State.READY and around.traceback:
        yield ""
        yield f"why no worker starts on {plain(around.failing or '?')}:"
        yield from (
            f"    {row}".rstrip() for row in plain(around.traceback.rstrip(), lines=True).splitlines()
        )
    for at, attempt in enumerate(attempts):
        yield ""
        yield from _attempt(attempt, now, _which(attempts, at, before))
    if job.state == State.SUCCEEDED:
        yield ""
        yield f"result: {plain(compact(job.result))}"


def why(
    job: JobView,
    attempts: Sequence[AttemptView],
    now: datetime,
    around: Standing,
    operations: Sequence[Operation] = (),
) -> str:
    """Why the job is in its state, in one sentence."""
    last = attempts[-1] if attempts else None
    spent = f"attempt {job.attempt} of {job.max_attempts}"
    match job.state:
        case State.SCHEDULED if last is not None and job.attempt:
            return f"will be tried again {ago(job.run_at, now)}, after {_ended(last.verdict, last.error)}, {spent} spent"
        case State.SCHEDULED:
            return waiting_for(around) or f"waits for its time, {ago(job.run_at, now)}"
        case State.READY:
            stuck = hindrance(job, around)
            waits = f"waits in {plain(job.queue)} for a worker"
            since = (
                f"after {_ended(last.verdict, last.error)}" if last is not None else _since(job.run_at, now)
            )
            return f"{waits}, {since}" if stuck is None else f"waits, {since}: {stuck}"
        case State.CLAIMED | State.RUNNING:
            asked = _last(operations, "cancel")
            by = f" {_by(asked)}" if asked is not None else ""
            cancel = f", and was asked to stop{by}" if job.cancel_at is not None else ""
            if job.state == State.CLAIMED:
                return (
                    f"its host took it {ago(job.started_at, now)} for {spent}, and has not told of a worker that has "
                    f"it{cancel}"
                )
            still = f", suspended; {command('jobs resume', job.id)} lets it go on" if around.suspended else ""
            return f"{spent} started {ago(job.started_at, now)}{cancel}{still}"
        case State.SUCCEEDED:
            return f"{_in(job.duration)}on {spent}, {ago(job.finished_at, now)}"
        case State.DEAD:
            return f"{_death(job, last)}, {ago(job.finished_at, now)}"
        case _:
            begun = "" if last is not None or job.attempt else "before it began, "
            return f"{begun}{_cancelled(job, operations)}, {ago(job.finished_at, now)}"


def _cancelled(job: JobView, operations: Sequence[Operation]) -> str:
    """By which login and why, or because of which other job."""
    if (job.error or "").startswith(FOLLOWED):
        return f"because {plain((job.error or '').removeprefix(FOLLOWED))}"
    asked = _last(operations, "cancel", "purge")
    return MEANINGS[Verdict.CANCELLED] if asked is None else _by(asked)


def _last(operations: Sequence[Operation], *verbs: str) -> Operation | None:
    return next((one for one in reversed(operations) if one.verb in verbs), None)


def _by(operation: Operation) -> str:
    """`by operator (anna@laptop): wrong input`"""
    who = f" ({plain(operation.os_user)})" if operation.os_user else ""
    return f"by {plain(operation.login)}{who}" + (f": {plain(operation.reason)}" if operation.reason else "")


def _death(job: JobView, last: AttemptView | None) -> str:
    """What it died of: whose decision, or which budget, and the last words."""
    verdict = job.verdict or (last.verdict if last else "")
    said = plain(short(rest(verdict, job.error).lstrip(":; "))) if job.error else ""
    # Our own sentences say what the verdict means, and more; what user code said needs the meaning before it.
    means = _ended(verdict, job.error) if verdict in SAID_BY_USERS or not said else verdict
    words = f"{means}: {said}" if said else means
    if verdict in (Verdict.DISCARDED, Verdict.EXPIRED, Verdict.UNFIT, Verdict.BAD_RESULT):
        return words
    if "not tried again: it was running in " in said:
        return words  # its supervisor or host died each time
    if verdict in CRASHES and job.attempt < job.max_attempts:
        return f"it took its worker down too often (crashes: {job.crashes}), the last time {words}"
    if job.attempt >= job.max_attempts:
        return f"out of attempts ({job.attempt} of {job.max_attempts}), the last one {words}"
    return f"{words}, on attempt {job.attempt} of {job.max_attempts}"


def _ended(verdict: str, error: str | None = None) -> str:
    """`error (the handler raised)`"""
    if verdict == Verdict.ERROR and (error or "").startswith(UNFIT):
        return f"{verdict} (its arguments do not fit the task; the handler was not run)"
    try:
        return f"{verdict} ({MEANINGS[Verdict(verdict)]})"
    except ValueError:
        return plain(verdict)


def _in(duration: float | None) -> str:
    return "" if duration is None else f"in {lasting(duration)} "


def _since(when: datetime | None, now: datetime) -> str:
    return f"since {ago(when, now).removesuffix(' ago')}"


def _facts(job: JobView, now: datetime, around: Standing) -> Iterator[str]:
    """What is known about the job, one fact a line, the unknown ones left out."""
    facts = {
        "queue": f"{plain(job.queue)}, priority {job.priority}",
        "created": _when(job.created_at, now),
        "login": plain(job.enqueued_by),
        "due": "" if job.run_at == job.created_at else _when(job.run_at, now),
        "claimed" if job.state == State.CLAIMED else "started": _when(job.started_at, now),
        "finished": _when(job.finished_at, now),
        "attempts": f"{job.attempt} of {job.max_attempts}, crashes {job.crashes}, lease {job.lease}",
        "spent": _spent(job.duration, job.cpu_seconds, job.peak_rss),
        "host": _host(job, around),
        "worker": plain(f"{around.worker} pid {around.pid}") if around.worker else "",
        "progress": plain(progress(job.progress)),
        "checkpoint": _json(job.checkpoint),
        "unique": plain(job.unique_key or ""),
        "trace": tracing.of(job.meta) or "",
        "meta": _json(_other(job.meta)),
    }
    for name, value in facts.items():
        if value:
            yield f"  {name:<11}{value}"


def _which(attempts: Sequence[AttemptView], at: int, before: int) -> str:
    """`attempt 2`; one that cost nothing is run again under the same number: `attempt 2, run 1`, `attempt 2, run 2`."""
    number, retried = attempts[at].attempt, at < before
    same = [i for i, one in enumerate(attempts) if one.attempt == number and (i < before) == retried]
    run = f", run {same.index(at) + 1}" if len(same) > 1 else ""
    return f"attempt {number}{run}" + (" (before it was retried)" if retried else "")


def _attempt(attempt: AttemptView, now: datetime, which: str) -> Iterator[str]:
    """One attempt that did not succeed."""
    spent = _spent(attempt.duration, attempt.cpu_seconds, attempt.peak_rss)
    yield f"{which}: {_ended(attempt.verdict, attempt.error)}, {ago(attempt.finished_at, now)}"
    facts = {
        "started": _when(attempt.started_at, now),
        "spent": spent,
        "exit": plain(_exit(attempt)),
        "worker": plain(attempt.worker or ""),
        "version": plain(attempt.version or ""),
        "progress": plain(progress(attempt.progress)),
        "stopping": _ladder(attempt.rungs),
        "error": plain(short(attempt.error or "", 2000)),
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
            yield from (f"    {row}".rstrip() for row in plain(text.rstrip(), lines=True).splitlines())


def _host(job: JobView, around: Standing) -> str:
    """`render-1 (8c5e…)`; the name is known for as long as the host's row is."""
    if job.host is None:
        return ""
    return f"{plain(around.host)} ({job.host})" if around.host else str(job.host)


def _when(when: datetime | None, now: datetime) -> str:
    return "" if when is None else f"{moment(when)} ({ago(when, now)})"


def _spent(duration: float | None, cpu: float | None, peak: int | None) -> str:
    """`4.2s, cpu 4.1s, peak 312MB`"""
    parts = [
        "" if duration is None else lasting(duration),
        "" if cpu is None else f"cpu {lasting(cpu)}",
        "" if peak is None else f"peak {show_size(peak)}",
    ]
    return ", ".join(filter(None, parts))


def _exit(attempt: AttemptView) -> str:
    """`SIGSEGV (Segmentation fault)`; of a SIGKILL, who sent it."""
    status = attempt.exit_status or ""
    if status == "SIGKILL":
        if any(_rung(rung) == "kill" for rung in _listed(attempt.rungs)):
            return f"{status}, sent by pgworkers"
        return f"{status}, sent by the kernel" if attempt.verdict == Verdict.OOM else status
    number = getattr(signal, status, None) if status.startswith("SIG") else None
    return f"{status} ({signal.strsignal(number)})" if isinstance(number, signal.Signals) else status


def _ladder(rungs: Any) -> str:
    """`asked to stop, JobStopped raised after 5s, stack written after 10s, killed after 10s`"""
    return ", ".join(
        RUNGS.get(_rung(rung), plain(_rung(rung)))
        + (f" after {lasting(rung['after'])}" if rung.get("after") else "")
        for rung in _listed(rungs)
    )


def _listed(rungs: Any) -> list[dict[str, Any]]:
    return [rung for rung in rungs if isinstance(rung, dict)] if isinstance(rungs, list) else []


def _rung(rung: dict[str, Any]) -> str:
    return str(rung.get("rung", "?"))


def _other(meta: Any) -> Any:
    """The meta without the trace, which has a line of its own."""
    if tracing.of(meta) is None:
        return meta
    return {key: value for key, value in meta.items() if key not in (tracing.PARENT, tracing.STATE)} or None


def _json(value: Any) -> str:
    return "" if value is None else plain(compact(value))
