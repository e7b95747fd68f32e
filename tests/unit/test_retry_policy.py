"""Whether and when a job runs again: pure arithmetic."""

from __future__ import annotations

import math

import pytest

from pgworkers.bounds import MAX_DURATION_SECONDS
from pgworkers.job.model import CRASH_VERDICTS, FREE_VERDICTS, MAX_CONSECUTIVE_LOSSES, JobState, Verdict
from pgworkers.job.retry_policy import EndJob, RetryAfter, backoff_delay, decide_retry
from pgworkers.specs import BackoffKind, BackoffSpec

EXACT = BackoffSpec(jitter=0.0)


def decided(verdict: Verdict, **more: object) -> EndJob | RetryAfter:
    given: dict[str, object] = {
        "attempt": 1,
        "max_attempts": 10,
        "crashes": 0,
        "max_crashes": 3,
        "backoff": EXACT,
        "requested_delay": None,
        "random_fraction": 0.5,
        "is_past_deadline": False,
    }
    return decide_retry(verdict, **{**given, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("verdict", [Verdict.ERROR, Verdict.TIMEOUT, Verdict.MEMORY_LIMIT])
def test_a_failure_follows_the_curve_until_its_attempts_are_spent(verdict: Verdict) -> None:
    assert decided(verdict) == RetryAfter(2.0, is_free=False)
    assert decided(verdict, attempt=4) == RetryAfter(16.0, is_free=False)
    assert decided(verdict, attempt=9) == RetryAfter(512.0, is_free=False)
    assert decided(verdict, attempt=10) == EndJob()
    assert decided(verdict, attempt=11) == EndJob()
    assert decided(verdict, crashes=99) == RetryAfter(2.0, is_free=False), (
        "no crash: that budget is not asked"
    )


@pytest.mark.parametrize("verdict", sorted(CRASH_VERDICTS))
def test_crashes_have_a_budget_separate_from_attempts(verdict: Verdict) -> None:
    assert decided(verdict) == RetryAfter(2.0, is_free=False)
    assert decided(verdict, crashes=1) == RetryAfter(2.0, is_free=False)
    assert decided(verdict, crashes=2) == EndJob(), "the third one"
    assert decided(verdict, max_attempts=1) == EndJob()
    assert decided(verdict, max_crashes=1) == EndJob()


@pytest.mark.parametrize("verdict", sorted(FREE_VERDICTS))
def test_what_is_free_never_ends_a_job(verdict: Verdict) -> None:
    spent = {"attempt": 10, "crashes": 9, "is_past_deadline": True}
    assert decided(verdict, **spent) == RetryAfter(0.0, is_free=True)
    assert decided(verdict, requested_delay=30.0, **spent) == RetryAfter(30.0, is_free=True)


def test_what_the_handler_asked_for_wins_over_the_curve_but_not_over_the_budget() -> None:
    assert decided(Verdict.ERROR, requested_delay=7.0) == RetryAfter(7.0, is_free=False)
    assert decided(Verdict.ERROR, requested_delay=0.0) == RetryAfter(0.0, is_free=False)
    assert decided(Verdict.ERROR, requested_delay=7.0, attempt=10) == EndJob()
    assert decided(Verdict.ERROR, requested_delay=math.inf) == RetryAfter(MAX_DURATION_SECONDS, is_free=False)
    assert decided(Verdict.ERROR, requested_delay=-3.0) == RetryAfter(0.0, is_free=False)


def test_terminal_verdicts() -> None:
    assert decided(Verdict.DISCARDED) == EndJob()
    assert decided(Verdict.EXPIRED) == EndJob()
    assert decided(Verdict.CANCELLED) == EndJob(JobState.CANCELLED)
    assert decided(Verdict.ERROR, is_past_deadline=True) == EndJob()
    with pytest.raises(ValueError, match="succeeded"):
        decided(Verdict.SUCCEEDED)


def test_every_verdict_but_success_has_a_decision() -> None:
    for verdict in set(Verdict) - {Verdict.SUCCEEDED}:
        assert isinstance(decided(verdict), EndJob | RetryAfter)


def test_the_default_curve_doubles_to_three_hours() -> None:
    assert [backoff_delay(EXACT, attempt, 0.0) for attempt in (1, 2, 3, 13, 14, 15)] == [
        2,
        4,
        8,
        8192,
        10800,
        10800,
    ]


@pytest.mark.parametrize("attempt", [0, -5, 44, 1000, 10**6, 2**62])
@pytest.mark.parametrize(
    "spec",
    [
        BackoffSpec(),
        BackoffSpec(factor=1e308),
        BackoffSpec(base=1e300, cap=1e308),
        BackoffSpec(BackoffKind.FIXED),
    ],
)
def test_no_attempt_overflows(spec: BackoffSpec, attempt: int) -> None:
    assert 0 <= backoff_delay(spec, attempt, 0.999) <= MAX_DURATION_SECONDS


def test_jitter_spreads_around_the_curve_and_stays_under_the_cap() -> None:
    spec = BackoffSpec(jitter=0.5)
    assert backoff_delay(spec, 1, 0.0) == 1.0
    assert backoff_delay(spec, 1, 0.5) == 2.0
    assert 2.9 < backoff_delay(spec, 1, 0.999) < 3.0
    assert backoff_delay(spec, 30, 0.999) == 10800.0


def test_fixed_list_and_function() -> None:
    assert backoff_delay(BackoffSpec(BackoffKind.FIXED, base=30.0, jitter=0.0), 7, 0.3) == 30.0
    listed = BackoffSpec(BackoffKind.LIST, delays=(1.0, 10.0, 7200.0), jitter=0.0)
    assert [backoff_delay(listed, attempt, 0.3) for attempt in (1, 2, 3, 4, 99)] == [1, 10, 7200, 7200, 7200]
    assert backoff_delay(BackoffSpec(BackoffKind.FUNCTION, jitter=0.0), 2, 0.3) == 4.0, (
        "the worker died before it could ask it"
    )


@pytest.mark.parametrize(
    "verdict", [Verdict.ERROR, Verdict.TIMEOUT, Verdict.MEMORY_LIMIT, Verdict.OOM, Verdict.CRASH]
)
def test_a_policy_can_end_a_job_or_delay_it_but_not_lengthen_its_life(verdict: Verdict) -> None:
    assert decided(verdict, policy=False) == EndJob()
    assert decided(verdict, policy=90.0) == RetryAfter(90.0, is_free=False)
    assert decided(verdict, policy=0.0) == RetryAfter(0.0, is_free=False), "at once is not never"
    assert decided(verdict, policy=90.0, requested_delay=5.0) == RetryAfter(5.0, is_free=False), (
        "the handler knows better"
    )
    assert decided(verdict, policy=90.0, attempt=10) == EndJob()
    assert decided(Verdict.CRASH, policy=90.0, crashes=2) == EndJob()


@pytest.mark.parametrize("verdict", sorted(FREE_VERDICTS))
def test_no_policy_is_asked_about_what_is_not_the_jobs_doing(verdict: Verdict) -> None:
    assert decided(verdict, policy=False) == RetryAfter(0.0, is_free=True)


def test_a_lost_supervisor_costs_nothing_until_it_happened_too_often_in_a_row() -> None:
    spent = {"attempt": 10, "crashes": 9, "is_supervisor_lost": True}
    assert decided(Verdict.INTERRUPTED, **spent) == RetryAfter(0.0, is_free=True)
    assert decided(Verdict.INTERRUPTED, **spent, consecutive_losses=3, random_fraction=0.0) == RetryAfter(
        1.5, is_free=True
    )
    assert isinstance(
        decided(Verdict.INTERRUPTED, **spent, consecutive_losses=MAX_CONSECUTIVE_LOSSES - 2), RetryAfter
    )
    assert decided(Verdict.INTERRUPTED, **spent, consecutive_losses=MAX_CONSECUTIVE_LOSSES - 1) == EndJob()
