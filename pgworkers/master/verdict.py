"""From what a worker reported, or how it died, to what is written about the attempt. Pure.

The worker says what its handler did; the supervisor says how a process died; this module is the only place that
turns either into a verdict and into the next state of the job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from pgworkers.job.claim import Claimed
from pgworkers.job.clean import json_text
from pgworkers.job.finish import End
from pgworkers.job.retry import Again, Dead, decide
from pgworkers.job.state import CRASHES, State, Verdict
from pgworkers.master import sentences
from pgworkers.master.held import Held
from pgworkers.supervisor.messages import Died
from pgworkers.worker.messages import OF_REASON, Report

# For every job: to ask an enum takes longer than to make what is asked for.
_SUCCEEDED, _DONE = Verdict.SUCCEEDED, State.SUCCEEDED


@dataclass(frozen=True, slots=True)
class Ending:
    """How one attempt ended, told the same way whoever told it."""

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
    after: float | None = None
    asked: bool = False  # the handler asked for another attempt (Retry): no policy is against it
    lost: bool = False  # its supervisor died
    hopeless: bool = False  # another attempt would end the same way
    started: bool = True


def of_report(report: Report, held: Held | None = None) -> Ending:
    """The ending a worker told itself. `held` lends its limits to the sentence."""
    error = report.error
    if report.outcome == "stopped":
        peak = max(report.peak_rss, report.used)
        error = sentences.of_stop(report.reason or "", held, peak, error, report.limit)
    if report.swept:
        error = f"{error or report.outcome}{sentences.of_children(report.swept)}"
    return Ending(
        report.verdict,
        report.duration,
        report.cpu,
        max(report.peak_rss, report.used),
        error=error,
        result=None if report.result is None else json_text(bytes(report.result)),
        traceback=report.traceback,
        output=report.output,
        progress=json_of(report.progress),
        checkpoint=json_of(report.checkpoint),
        rungs=_rungs(report.rungs),
        children=json_of(report.children),
        after=report.after,
        asked=report.outcome == "retry",
        hopeless=report.outcome == "unfit",
        started=report.started,
    )


def success(job: Claimed, duration: float, cpu: float, peak_rss: int, result: bytes, keep_args: bool) -> End:
    """What to write of an attempt that went well and left nothing but its result; the writer cleans that.

    Who ran it is written of attempts that failed.
    """
    return End(
        id=job.id,
        lease=job.lease,
        claimed_at=job.claimed_at,
        verdict=_SUCCEEDED,
        duration=duration,
        cpu=cpu,
        peak_rss=peak_rss,
        state=_DONE,
        result="null" if result == b"null" else result.decode("utf-8", "replace"),
        keep_args=keep_args,
    )


def of_death(died: Died, held: Held | None = None, *, broken: str = "") -> Ending:
    """The ending of a worker that died: the wish that killed it, else how it went.

    `broken`: we killed it, because what came from it made no sense.
    """
    if broken:
        verdict, error = Verdict.CRASH, sentences.of_forged(broken)
    elif died.lost:
        verdict, error = Verdict.INTERRUPTED, died.status
    elif died.reason is not None:
        verdict = OF_REASON.get(died.reason, Verdict.INTERRUPTED)
        error = sentences.of_stop(died.reason, held, max(died.peak_rss, died.used), None, died.limit)
    elif died.oom:
        verdict, error = Verdict.OOM, sentences.of_oom(died.peak_rss, died.limit)
    elif died.signal:
        verdict, error = Verdict.CRASH, f"the worker was ended by {died.status}"
        if died.status == "SIGKILL":
            error += " (nobody here sent it: possibly out of memory, or an operator)"
    else:
        verdict, error = Verdict.EXIT, f"the worker left with {died.status} in the middle of the job"
    if died.dumping:
        error += sentences.of_dump(died.status)
    if died.stuck:
        error += (
            f"; SIGKILL did not end all of its processes, they hang in the kernel: {', '.join(died.stuck)}"
        )
    if died.foreign:
        error += f"; its processes that belong to another user go on, as we may not end them: {', '.join(died.foreign)}"
    if died.closed:
        error += f"; {sentences.CLOSED}"
    error += sentences.of_children(died.left)
    return Ending(
        verdict,
        died.duration,
        died.cpu,
        max(died.peak_rss, died.used),
        error=error,
        stack=died.stack,
        exit_status=died.status,
        output=died.output,
        rungs=_rungs(died.rungs),
        lost=died.lost,
    )


def settle(held: Held, ending: Ending, rand: float, worker: str, version: str) -> End | Again:
    """What to write: the job's terminal state, or when it runs again."""
    job = held.claimed
    verdict = ending.verdict
    children = None
    if verdict is Verdict.SUCCEEDED:
        state, children = State.SUCCEEDED, ending.children
    elif verdict is Verdict.CANCELLED or held.wish == "cancel":
        # A wish that met a failing handler is still a wish: it skips the retry curve.
        state = State.CANCELLED
    else:
        decision = decide(
            verdict,
            attempt=job.attempt,
            max_attempts=job.max_attempts,
            crashes=job.crashes,
            max_crashes=job.max_crashes,
            backoff=held.spec.backoff,
            after=ending.after,
            rand=rand,
            past_deadline=held.past_deadline(),
            policy=_policy(held, ending),
            lost=ending.lost,
            losses=job.losses,
        )
        if not isinstance(decision, Dead):
            return Again(
                **_postmortem(held, ending, worker, version), after=decision.seconds, free=decision.free
            )
        state = State.DEAD
        if ending.lost:
            ending = replace(
                ending, verdict=Verdict.CRASH, error=sentences.of_last_loss(ending.error, job.losses + 1)
            )
        if verdict in CRASHES and job.attempt < job.max_attempts and job.crashes + 1 >= job.max_crashes:
            ending = replace(ending, error=sentences.of_last_crash(ending.error, job.crashes + 1))
    known = _postmortem(held, ending, worker, version)
    return End(**known, state=state, result=ending.result, children=children, keep_args=held.spec.keep_args)


def _postmortem(held: Held, ending: Ending, worker: str, version: str) -> dict[str, Any]:
    """What is kept of an attempt, however the job goes on."""
    return {
        "id": held.claimed.id,
        "lease": held.claimed.lease,
        "claimed_at": held.claimed.claimed_at,
        "verdict": ending.verdict,
        "crash": ending.verdict in CRASHES,
        "lost": ending.lost,
        "duration": ending.duration,
        "cpu": ending.cpu,
        "peak_rss": ending.peak_rss,
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


def _policy(held: Held, ending: Ending) -> bool | float:
    """May it run again, and after how long: False, True (by the curve) or seconds."""
    if ending.hopeless:
        return False
    return True if ending.asked else held.spec.retry_on.get(ending.verdict, True)


def json_of(raw: msgspec.Raw | None) -> str | None:
    """The text of what a handler left; None when it left nothing."""
    if raw is None or bytes(raw) == b"null":
        return None
    return json_text(bytes(raw))


def _rungs(rungs: list[tuple[str, float]]) -> str | None:
    if not rungs:
        return None
    return msgspec.json.encode([{"rung": rung, "after": round(after, 3)} for rung, after in rungs]).decode()
