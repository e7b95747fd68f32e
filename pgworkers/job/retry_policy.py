"""Decide whether and when a job runs again. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pgworkers.bounds import MAX_DURATION_SECONDS
from pgworkers.job.model import (
    CRASH_VERDICTS,
    FREE_VERDICTS,
    MAX_CONSECUTIVE_LOSSES,
    JobState,
    Verdict,
)
from pgworkers.specs import BackoffKind, BackoffSpec

#: How much longer a job waits after each further death of a supervisor that it was running in.
DELAY_PER_LOSS_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class EndJob:
    """No further attempt; `state` is the terminal one."""

    state: JobState = JobState.DEAD


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Another attempt after `delay_seconds`; `is_free`: this one is given back."""

    delay_seconds: float
    is_free: bool


def decide_retry(
    verdict: Verdict,
    *,
    attempt: int,
    max_attempts: int,
    crashes: int,
    max_crashes: int,
    backoff: BackoffSpec,
    requested_delay: float | None,
    random_fraction: float,
    is_past_deadline: bool,
    policy: bool | float = True,
    is_supervisor_lost: bool = False,
    consecutive_losses: int = 0,
) -> EndJob | RetryAfter:
    """What becomes of a job whose attempt ended with `verdict`.

    `attempt` counts this attempt, `crashes` are those before it (both as claimed). `requested_delay` is what the handler
    asked for; `random_fraction` in [0, 1) spreads the delay. `policy` is what the task says of this verdict: False, no
    further attempt; a number, the delay before it. It can shorten a job's life, not lengthen it: the budgets hold.
    `is_supervisor_lost`: its supervisor died. That is not a crash of the job; `consecutive_losses` says how often in a
    row it happened before.
    """
    if verdict is Verdict.SUCCEEDED:
        raise ValueError("a job that succeeded is not retried")
    if verdict is Verdict.CANCELLED:
        return EndJob(JobState.CANCELLED)
    if verdict in (Verdict.DISCARDED, Verdict.EXPIRED, Verdict.UNFIT, Verdict.BAD_RESULT):
        return EndJob()
    if is_supervisor_lost:
        delay = DELAY_PER_LOSS_SECONDS * consecutive_losses * (1.0 + 0.2 * random_fraction)
        return (
            EndJob()
            if consecutive_losses + 1 >= MAX_CONSECUTIVE_LOSSES
            else RetryAfter(clamp_delay(delay), is_free=True)
        )
    if verdict in FREE_VERDICTS or verdict is Verdict.LEASE_LOST:
        # Not the job's doing. A lost lease is refused by the fence anyway, unless the host gave up too early.
        return RetryAfter(clamp_delay(requested_delay or 0.0), is_free=True)
    if verdict in CRASH_VERDICTS and crashes + 1 >= max_crashes:
        return EndJob()
    if attempt >= max_attempts or is_past_deadline or policy is False:
        return EndJob()
    if requested_delay is None and policy is not True:
        return RetryAfter(clamp_delay(policy), is_free=False)
    return RetryAfter(
        clamp_delay(requested_delay)
        if requested_delay is not None
        else backoff_delay(backoff, attempt, random_fraction),
        is_free=False,
    )


def backoff_delay(backoff: BackoffSpec, attempt: int, rand: float) -> float:
    """Seconds to wait after the attempt numbered `attempt` (the first is 1); never beyond the cap, never an overflow."""
    nth = max(0, attempt - 1)
    match backoff.kind:
        case BackoffKind.FIXED:
            delay = backoff.base
        case BackoffKind.LIST if backoff.delays:
            delay = backoff.delays[min(nth, len(backoff.delays) - 1)]
        case _:  # exponential; also a function's stand-in when the worker died before it could ask it
            delay = min(_exponential(backoff, nth), backoff.cap)
    spread = 1.0 + backoff.jitter * (2.0 * rand - 1.0)
    capped = (
        min(delay * spread, backoff.cap)
        if backoff.kind in (BackoffKind.EXPONENTIAL, BackoffKind.FUNCTION)
        else delay * spread
    )
    return clamp_delay(capped)


def clamp_delay(delay: float) -> float:
    """A delay that an interval can hold."""
    if math.isnan(delay):
        return 0.0
    return min(max(delay, 0.0), MAX_DURATION_SECONDS)


def _exponential(backoff: BackoffSpec, nth: int) -> float:
    try:
        return backoff.base * backoff.factor**nth
    except OverflowError:
        return backoff.cap
