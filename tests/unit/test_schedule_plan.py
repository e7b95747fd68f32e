"""Plans: which ticks fire, as a function of the definition, the last tick considered and now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgworkers.schedule.plan import (
    MAX_TICKS_PER_PLAN,
    ON_TIME_TOLERANCE,
    TickPlan,
    Timing,
    plan_ticks,
    tick_jitter,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def minutes(first: int, last: int) -> tuple[datetime, ...]:
    return tuple(NOON + n * MINUTE for n in range(first, last + 1))


def decide(missed: str, since: datetime, now: datetime, **more: Any) -> TickPlan:
    return plan_ticks(Timing(cron="* * * * *", missed=missed, **more), since, now)


@pytest.mark.parametrize("missed", ["latest", "all", "skip"])
def test_a_tick_on_time_fires_whatever_the_policy(missed: str) -> None:
    now = NOON + MINUTE + timedelta(seconds=2)
    assert decide(missed, NOON, now) == TickPlan(minutes(1, 1), 0, NOON + MINUTE, NOON + 2 * MINUTE)


@pytest.mark.parametrize("missed", ["latest", "all", "skip"])
def test_nothing_is_due(missed: str) -> None:
    now = NOON + timedelta(seconds=59)
    assert decide(missed, NOON, now) == TickPlan((), 0, NOON, NOON + MINUTE)
    assert decide(missed, NOON, NOON - 10 * MINUTE).ticks == (), "the clock went back"


@pytest.mark.parametrize(
    ("missed", "ticks", "skipped"),
    [("latest", minutes(10, 10), 9), ("all", minutes(1, 10), 0), ("skip", (), 10)],
)
def test_ten_minutes_missed(missed: str, ticks: tuple[datetime, ...], skipped: int) -> None:
    now = NOON + 10 * MINUTE + timedelta(seconds=30)
    assert decide(missed, NOON, now) == TickPlan(ticks, skipped, NOON + 10 * MINUTE, NOON + 11 * MINUTE)


def test_latest_is_one_job_even_if_the_newest_is_on_time() -> None:
    now = NOON + 10 * MINUTE + timedelta(seconds=1)
    assert decide("latest", NOON, now).ticks == minutes(10, 10)
    assert decide("skip", NOON, now).ticks == minutes(10, 10)


def test_a_slow_pass_over_seconds_misses_none() -> None:
    timing = Timing(cron="* * * * * *")
    made = plan_ticks(timing, NOON, NOON + ON_TIME_TOLERANCE)
    assert len(made.ticks) == 5
    assert made.skipped_ticks == 0


def test_all_comes_in_portions_the_oldest_first_and_not_beyond_the_window() -> None:
    now = NOON + 1000 * MINUTE + timedelta(seconds=30)
    first = decide("all", NOON, now, missed_window_seconds=600 * 60.0)
    assert first.ticks == minutes(401, 400 + MAX_TICKS_PER_PLAN)
    assert first.skipped_ticks == 400
    assert first.next_tick == NOON + (401 + MAX_TICKS_PER_PLAN) * MINUTE
    rest, since, fired = 0, first.planned_until, len(first.ticks)
    while (made := decide("all", since, now, missed_window_seconds=600 * 60.0)).ticks:
        rest, since, fired = rest + made.skipped_ticks, made.planned_until, fired + len(made.ticks)
    assert (rest, fired, since) == (0, 600, NOON + 1000 * MINUTE)


def test_three_years_of_seconds() -> None:
    now = NOON + timedelta(days=1095, microseconds=700_000)
    for missed, fired in (("latest", 1), ("skip", 5), ("all", MAX_TICKS_PER_PLAN)):
        made = plan_ticks(Timing(cron="* * * * * *", missed=missed, tz="Europe/Berlin"), NOON, now)
        assert len(made.ticks) == fired
        if missed != "all":
            assert made.skipped_ticks == 1095 * 86400 - fired
        assert made.next_tick is not None


def test_start_is_in_and_end_is_out() -> None:
    late = NOON + 60 * MINUTE
    made = decide("all", NOON - 60 * MINUTE, late, start=NOON, end=NOON + 3 * MINUTE)
    assert made == TickPlan(minutes(0, 2), 0, NOON + 2 * MINUTE, None)
    assert decide("all", NOON, NOON + MINUTE, start=late) == TickPlan((), 0, NOON, late)
    assert decide("all", made.planned_until, late, start=NOON, end=NOON + 3 * MINUTE).ticks == ()


def test_an_interval_counts_from_its_start() -> None:
    start = NOON + timedelta(seconds=17)
    made = plan_ticks(Timing(every=90.0, missed="all", start=start), NOON, NOON + 5 * MINUTE)
    assert made.ticks == tuple(start + timedelta(seconds=90 * n) for n in range(4))


def test_jitter_is_the_same_everywhere_and_spreads() -> None:
    found = [tick_jitter("a", "", NOON + n * MINUTE, 60.0) for n in range(500)]
    assert found == [tick_jitter("a", "", NOON + n * MINUTE, 60.0) for n in range(500)]
    assert all(0 <= one < 60 for one in found)
    assert len(set(found)) == 500
    assert tick_jitter("a", "x", NOON, 60.0) != tick_jitter("a", "", NOON, 60.0)
    assert tick_jitter("a", "", NOON, 0.0) == 0.0
    local = NOON.astimezone(datetime.fromisoformat("2026-01-01T00:00+05:00").tzinfo)
    assert tick_jitter("a", "", local, 60.0) == found[0]
