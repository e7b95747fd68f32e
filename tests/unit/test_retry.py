"""Whether and when a job runs again: pure arithmetic."""

from __future__ import annotations

import math

import pytest

from pgworkers.clock import MAX_SECONDS
from pgworkers.job.retry import AgainIn, Dead, decide, delay_after
from pgworkers.job.state import CRASHES, FREE, MAX_LOSSES, State, Verdict
from pgworkers.specs import BackoffSpec

EXACT = BackoffSpec(jitter=0.0)


def decided(verdict: Verdict, **more: object) -> Dead | AgainIn:
    facts: dict[str, object] = {
        "attempt": 1,
        "max_attempts": 10,
        "crashes": 0,
        "max_crashes": 3,
        "backoff": EXACT,
        "after": None,
        "rand": 0.5,
        "past_deadline": False,
    }
    return decide(verdict, **{**facts, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("verdict", [Verdict.ERROR, Verdict.TIMEOUT, Verdict.MEMORY_LIMIT])
def test_a_failure_follows_the_curve_until_its_attempts_are_spent(verdict: Verdict) -> None:
    assert decided(verdict) == AgainIn(2.0, free=False)
    assert decided(verdict, attempt=4) == AgainIn(16.0, free=False)
    assert decided(verdict, attempt=9) == AgainIn(512.0, free=False)
    assert decided(verdict, attempt=10) == Dead()
    assert decided(verdict, attempt=11) == Dead()
    assert decided(verdict, crashes=99) == AgainIn(2.0, free=False), "no crash: that budget is not asked"


@pytest.mark.parametrize("verdict", sorted(CRASHES))
def test_a_crash_has_its_own_budget_besides_the_attempts(verdict: Verdict) -> None:
    assert decided(verdict) == AgainIn(2.0, free=False)
    assert decided(verdict, crashes=1) == AgainIn(2.0, free=False)
    assert decided(verdict, crashes=2) == Dead(), "the third one"
    assert decided(verdict, max_attempts=1) == Dead()
    assert decided(verdict, max_crashes=1) == Dead()


@pytest.mark.parametrize("verdict", sorted(FREE))
def test_what_is_free_never_ends_a_job(verdict: Verdict) -> None:
    spent = {"attempt": 10, "crashes": 9, "past_deadline": True}
    assert decided(verdict, **spent) == AgainIn(0.0, free=True)
    assert decided(verdict, after=30.0, **spent) == AgainIn(30.0, free=True)


def test_what_the_handler_asked_for_wins_over_the_curve_but_not_over_the_budget() -> None:
    assert decided(Verdict.ERROR, after=7.0) == AgainIn(7.0, free=False)
    assert decided(Verdict.ERROR, after=0.0) == AgainIn(0.0, free=False)
    assert decided(Verdict.ERROR, after=7.0, attempt=10) == Dead()
    assert decided(Verdict.ERROR, after=math.inf) == AgainIn(MAX_SECONDS, free=False)
    assert decided(Verdict.ERROR, after=-3.0) == AgainIn(0.0, free=False)


def test_terminal_verdicts() -> None:
    assert decided(Verdict.DISCARDED) == Dead()
    assert decided(Verdict.EXPIRED) == Dead()
    assert decided(Verdict.CANCELLED) == Dead(State.CANCELLED)
    assert decided(Verdict.ERROR, past_deadline=True) == Dead()
    with pytest.raises(ValueError, match="succeeded"):
        decided(Verdict.SUCCEEDED)


def test_every_verdict_but_success_has_a_decision() -> None:
    for verdict in set(Verdict) - {Verdict.SUCCEEDED}:
        assert isinstance(decided(verdict), Dead | AgainIn)


def test_the_default_curve_doubles_to_an_hour() -> None:
    assert [delay_after(EXACT, attempt, 0.0) for attempt in (1, 2, 3, 11, 12, 13)] == [
        2,
        4,
        8,
        2048,
        3600,
        3600,
    ]


@pytest.mark.parametrize("attempt", [0, -5, 44, 1000, 10**6, 2**62])
@pytest.mark.parametrize(
    "spec",
    [BackoffSpec(), BackoffSpec(factor=1e308), BackoffSpec(base=1e300, cap=1e308), BackoffSpec("fixed")],
)
def test_no_attempt_overflows(spec: BackoffSpec, attempt: int) -> None:
    assert 0 <= delay_after(spec, attempt, 0.999) <= MAX_SECONDS


def test_jitter_spreads_around_the_curve_and_stays_under_the_cap() -> None:
    spec = BackoffSpec(jitter=0.5)
    assert delay_after(spec, 1, 0.0) == 1.0
    assert delay_after(spec, 1, 0.5) == 2.0
    assert 2.9 < delay_after(spec, 1, 0.999) < 3.0
    assert delay_after(spec, 30, 0.999) == 3600.0


def test_fixed_list_and_function() -> None:
    assert delay_after(BackoffSpec("fixed", base=30.0, jitter=0.0), 7, 0.3) == 30.0
    listed = BackoffSpec("list", delays=(1.0, 10.0, 7200.0), jitter=0.0)
    assert [delay_after(listed, attempt, 0.3) for attempt in (1, 2, 3, 4, 99)] == [1, 10, 7200, 7200, 7200]
    assert delay_after(BackoffSpec("function", jitter=0.0), 2, 0.3) == 4.0, (
        "the worker died before it could ask it"
    )


@pytest.mark.parametrize(
    "verdict", [Verdict.ERROR, Verdict.TIMEOUT, Verdict.MEMORY_LIMIT, Verdict.OOM, Verdict.CRASH]
)
def test_a_policy_can_end_a_job_or_delay_it_but_not_lengthen_its_life(verdict: Verdict) -> None:
    assert decided(verdict, policy=False) == Dead()
    assert decided(verdict, policy=90.0) == AgainIn(90.0, free=False)
    assert decided(verdict, policy=0.0) == AgainIn(0.0, free=False), "at once is not never"
    assert decided(verdict, policy=90.0, after=5.0) == AgainIn(5.0, free=False), "the handler knows better"
    assert decided(verdict, policy=90.0, attempt=10) == Dead()
    assert decided(Verdict.CRASH, policy=90.0, crashes=2) == Dead()


@pytest.mark.parametrize("verdict", sorted(FREE))
def test_no_policy_is_asked_about_what_is_not_the_jobs_doing(verdict: Verdict) -> None:
    assert decided(verdict, policy=False) == AgainIn(0.0, free=True)


def test_a_lost_supervisor_costs_nothing_until_it_happened_too_often_in_a_row() -> None:
    spent = {"attempt": 10, "crashes": 9, "lost": True}
    assert decided(Verdict.INTERRUPTED, **spent) == AgainIn(0.0, free=True)
    assert decided(Verdict.INTERRUPTED, **spent, losses=3, rand=0.0) == AgainIn(1.5, free=True)
    assert isinstance(decided(Verdict.INTERRUPTED, **spent, losses=MAX_LOSSES - 2), AgainIn)
    assert decided(Verdict.INTERRUPTED, **spent, losses=MAX_LOSSES - 1) == Dead()
