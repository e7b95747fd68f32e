"""When a host does its housekeeping, and which processes it measures: pure."""

from __future__ import annotations

from pgworkers.master.housekeeping import (
    BUSY_INTERVAL_SECONDS,
    QUIET_INTERVAL_SECONDS,
    housekeeping_pause_seconds,
)
from pgworkers.master.process_usage import IDLE_REMEASURE_SECONDS, RemeasurePolicy


def test_the_pulse_is_slow_only_while_nothing_happens() -> None:
    assert housekeeping_pause_seconds(True, None) == QUIET_INTERVAL_SECONDS
    assert housekeeping_pause_seconds(False, None) == BUSY_INTERVAL_SECONDS < QUIET_INTERVAL_SECONDS


def test_the_watchdog_is_notified_three_times_within_its_timeout_even_when_idle() -> None:
    assert housekeeping_pause_seconds(True, 1.5) == 0.5
    assert housekeeping_pause_seconds(True, 30.0) == QUIET_INTERVAL_SECONDS
    assert housekeeping_pause_seconds(False, 0.3) == 0.3 / 3


def test_an_idle_worker_is_measured_twice_and_then_skipped_for_a_while() -> None:
    resting = RemeasurePolicy()
    assert resting.due({7: 3}, 0.0) == [7]
    assert resting.due({7: 3}, 5.0) == [7], "the first look may still speak of the work before"
    assert resting.due({7: 3}, 10.0) == []
    assert resting.due({7: 3}, 5.0 + IDLE_REMEASURE_SECONDS) == [7], "a thread of its own may have grown"
    assert resting.due({7: 3}, 10.0 + IDLE_REMEASURE_SECONDS) == [], "and it is trusted again"


def test_a_worker_that_ran_a_job_meanwhile_is_measured_again() -> None:
    resting = RemeasurePolicy()
    for now in (0.0, 5.0, 10.0):
        resting.due({7: 3}, now)
    assert resting.due({7: 4}, 15.0) == [7], "it rests again, after another job"
    assert resting.due({7: 4}, 20.0) == [7]
    assert resting.due({7: 4}, 25.0) == []
    assert resting.due({7: None}, 30.0) == [7], "it works"
    assert resting.due({7: None}, 35.0) == [7], "and is looked at each time while it does"


def test_a_new_or_returning_worker_is_measured() -> None:
    resting = RemeasurePolicy()
    for now in (0.0, 5.0):
        resting.due({7: 3}, now)
    assert resting.due({7: 3, 8: 0}, 10.0) == [8]
    assert resting.due({8: 0}, 15.0) == [8]
    assert resting.due({7: 3}, 20.0) == [7], "what was said of those who left is forgotten"
