"""Retry: whether and when a job runs again (pure arithmetic), and the statement that says so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pgworkers.clock import MAX_SECONDS
from pgworkers.job.claim import Fence
from pgworkers.job.postmortem import Postmortem, columns, in_order, unwritten
from pgworkers.job.state import CRASHES, FREE, MAX_LOSSES, State, Verdict
from pgworkers.postgres.arrays import Texts
from pgworkers.postgres.statements import Query, Statement
from pgworkers.specs import BackoffSpec

_RETRY = Statement.beside(__file__, "retry")
#: How much longer a job waits after each further death of a supervisor that it was running in.
LOSS_DELAY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Dead:
    """No further attempt; `state` is the terminal one."""

    state: State = State.DEAD


@dataclass(frozen=True, slots=True)
class AgainIn:
    """Another attempt after `seconds`; `free`: this one is given back."""

    seconds: float
    free: bool


class Again(Postmortem, frozen=True, kw_only=True, gc=False):
    """An attempt that ended, of a job that goes on."""

    after: float
    free: bool = False


def decide(
    verdict: Verdict,
    *,
    attempt: int,
    max_attempts: int,
    crashes: int,
    max_crashes: int,
    backoff: BackoffSpec,
    after: float | None,
    rand: float,
    past_deadline: bool,
    policy: bool | float = True,
    lost: bool = False,
    losses: int = 0,
) -> Dead | AgainIn:
    """What becomes of a job whose attempt ended with `verdict`.

    `attempt` counts this attempt, `crashes` are those before it (both as claimed). `after` is what the handler asked
    for; `rand` in [0, 1) spreads the delay. `policy` is what the task says of this verdict: False, no further attempt; a
    number, the delay before it. It can shorten a job's life, not lengthen it: the budgets hold. `lost`: its supervisor
    died. That is no crash of the job, and `losses` says how often in a row it happened before.
    """
    if verdict is Verdict.SUCCEEDED:
        raise ValueError("a job that succeeded is not retried")
    if verdict is Verdict.CANCELLED:
        return Dead(State.CANCELLED)
    if verdict in (Verdict.DISCARDED, Verdict.EXPIRED, Verdict.UNFIT, Verdict.BAD_RESULT):
        return Dead()
    if lost:
        delay = LOSS_DELAY_SECONDS * losses * (1.0 + 0.2 * rand)
        return Dead() if losses + 1 >= MAX_LOSSES else AgainIn(within(delay), free=True)
    if verdict in FREE or verdict is Verdict.LEASE_LOST:
        # Not the job's doing. A lost lease is refused by the fence anyway, unless the host gave up too early.
        return AgainIn(within(after or 0.0), free=True)
    if verdict in CRASHES and crashes + 1 >= max_crashes:
        return Dead()
    if attempt >= max_attempts or past_deadline or policy is False:
        return Dead()
    if after is None and policy is not True:
        return AgainIn(within(policy), free=False)
    return AgainIn(within(after) if after is not None else delay_after(backoff, attempt, rand), free=False)


def delay_after(backoff: BackoffSpec, attempt: int, rand: float) -> float:
    """Seconds to wait after the attempt numbered `attempt` (the first is 1); never beyond the cap, never an overflow."""
    nth = max(0, attempt - 1)
    match backoff.kind:
        case "fixed":
            delay = backoff.base
        case "list" if backoff.delays:
            delay = backoff.delays[min(nth, len(backoff.delays) - 1)]
        case _:  # exponential; also a function's stand-in when the worker died before it could ask it
            delay = min(_exponential(backoff, nth), backoff.cap)
    spread = 1.0 + backoff.jitter * (2.0 * rand - 1.0)
    capped = (
        min(delay * spread, backoff.cap) if backoff.kind in ("exponential", "function") else delay * spread
    )
    return within(capped)


def within(delay: float) -> float:
    """A delay that an interval can hold."""
    if math.isnan(delay):
        return 0.0
    return min(max(delay, 0.0), MAX_SECONDS)


def _exponential(backoff: BackoffSpec, nth: int) -> float:
    try:
        return backoff.base * backoff.factor**nth
    except OverflowError:
        return backoff.cap


def retry(host: str, agains: Sequence[Again]) -> Query[dict[Fence, str]]:
    """Let these jobs run again. Answers "missing" for each that was not written (`unwritten` knows why)."""
    rows: list[Again] = in_order(agains)
    params = columns(rows) | {
        "host": host,
        "verdicts": Texts([str(again.verdict) for again in rows]),
        "afters": [within(again.after) for again in rows],
        "frees": [again.free for again in rows],
        "losts": [again.lost for again in rows],
    }
    return Query(_RETRY, params, lambda found: unwritten(rows, [row[0] for row in found]))
