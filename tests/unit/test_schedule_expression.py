"""Cron expressions: what is understood, what is refused, and that nothing walks."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from croniter import croniter

from pgworkers.bounds import UNIX_EPOCH
from pgworkers.errors import UsageError
from pgworkers.schedule.cron import cron_calendar, interval_calendar
from pgworkers.schedule.zones import load_zone

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("* * * * *", "2026-03-01 12:01"),
        ("*/15 * * * * *", "2026-03-01 12:00:15"),
        ("30 0 3 * * *", "2026-03-02 03:00:30"),
        ("0 3 * * *", "2026-03-02 03:00"),
        ("0 0 29 2 *", "2028-02-29 00:00"),
        ("0 0 L * *", "2026-03-31 00:00"),
        ("0 0 L 2 *", "2027-02-28 00:00"),
        ("0 9 * * mon-fri", "2026-03-02 09:00"),
        ("0 9 * * 5#2", "2026-03-13 09:00"),
        ("0 9 * * L5", "2026-03-27 09:00"),
        ("0 0 * 2 5#5", "2036-02-29 00:00"),  # a February with five Fridays
        ("0 0 13 * 5", "2026-03-06 00:00"),  # either: the 13th, or a Friday
        ("0 0 * * 7", "2026-03-08 00:00"),
        ("0 22-2 * * *", "2026-03-01 22:00"),
        ("@daily", "2026-03-02 00:00"),
        ("@hourly", "2026-03-01 13:00"),
        ("0 0 1 JAN,jul *", "2026-07-01 00:00"),
    ],
)
def test_next(text: str, expected: str) -> None:
    assert cron_calendar(text).next_after(NOON) == at(expected)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0 0 31 2 *", "never happens"),
        ("0 0 30 2 *", "never happens"),
        ("0 0 31 4,6,9,11 *", "never happens"),
        ("60 * * * *", "not understood"),
        ("* * * *", "4 fields"),
        ("* * * * * * 2030", "7 fields"),
        ("", "0 fields"),
        ("every day", "2 fields"),
        ("@reboot", "1 fields"),
        ("R * * * *", "'R'"),  # another minute on each host
        ("H * * * *", "'H'"),
        ("0 0 15W * *", "'15W'"),
        ("*/0 * * * *", "not understood"),
        ("0 0 * * 1,5#2", "not understood"),
        ("0 0 * * 5#6", "not understood"),
        ("a b c d e", "'a'"),
        ("- - - - -", "not understood"),
        ("# # # # #", "not understood"),
        (", * * * *", "not understood"),
        ("L * * * *", "not understood"),
    ],
)
def test_refused_where_it_is_written(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        cron_calendar(text)


@pytest.mark.parametrize(
    "name", ["Mars/Olympus", "", "../etc/passwd", "localtime", "Europe", "\0", "/etc/localtime"]
)
def test_zones_that_are_none(name: str) -> None:
    with pytest.raises(UsageError, match="no time zone"):
        load_zone(name)


@pytest.mark.parametrize("name", ["Europe/Kiev", "US/Eastern", "Asia/Calcutta", "UTC"])
def test_old_names_of_zones_still_work(name: str) -> None:
    assert cron_calendar("0 3 * * *", name).next_after(NOON) is not None


def test_agrees_with_croniter_where_no_clock_is_changed() -> None:
    dice = random.Random(63)
    for _ in range(300):
        text = " ".join(
            dice.choice(choice)
            for choice in (
                ["0", "*", "*/7", "5,35", "10-20/3"],
                ["*", "0", "*/6", "9-17", "22-3"],
                ["*", "*", "1", "L", "29-31", "*/10"],
                ["*", "*", "2", "1,6,12", "*/5"],
                ["*", "*", "1-5", "0", "sat"],
            )
        )
        start = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=dice.randrange(2_000_000))
        theirs = croniter(text, start)
        mine = cron_calendar(text)
        here = start
        for _ in range(5):
            expected = theirs.get_next(datetime)
            found = mine.next_after(here)
            assert found == expected, (text, here)
            assert mine.latest_at(expected) == expected
            assert mine.count(here, expected) == 1
            here = expected


def test_a_second_schedule_over_years_is_counted_not_walked() -> None:
    """Three years of seconds are 94 million steps; the questions are asked so often that walking could not end."""
    calendar = cron_calendar("* * * * * *", "Europe/Berlin")
    then, now = datetime(2023, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)
    for n in range(1000):
        moment = now + timedelta(days=n)
        assert calendar.latest_at(moment) == moment
        assert calendar.next_after(moment - timedelta(days=1000)) is not None
    assert calendar.count(then, now) == (now - then) // timedelta(seconds=1)
    assert cron_calendar("* * 3 * * *", "Europe/Berlin").count(then, now) == 1096 * 3600


def test_rare_ones_do_not_walk_either() -> None:
    leap = cron_calendar("0 0 29 2 *")
    assert leap.latest_at(NOON) == at("2024-02-29")
    assert leap.next_after(at("2096-02-29")) == at("2104-02-29")
    assert leap.count(at("2000-01-01"), at("2104-03-01")) == 26


def test_intervals_are_a_function_of_anchor_and_period() -> None:
    five = interval_calendar(300.0)
    assert five.next_after(at("2026-03-01 12:03:20")) == at("2026-03-01 12:05")
    assert five.next_after(at("2026-03-01 12:05")) == at("2026-03-01 12:10")
    assert five.latest_at(at("2026-03-01 12:05")) == at("2026-03-01 12:05")
    assert five.count(UNIX_EPOCH, NOON) == (NOON - UNIX_EPOCH) // timedelta(minutes=5)
    odd = interval_calendar(7.5, NOON)
    assert odd.next_after(NOON) == NOON + timedelta(seconds=7.5)
    assert odd.latest_at(NOON + timedelta(seconds=29)) == NOON + timedelta(seconds=22.5)
    with pytest.raises(UsageError, match="at least 1s"):
        interval_calendar(0.5)


def test_the_end_of_time_is_an_answer() -> None:
    assert interval_calendar(86400.0 * 365 * 90).next_after(datetime(9990, 1, 1, tzinfo=UTC)) is None
    assert cron_calendar("0 0 1 1 *").next_after(datetime(9998, 6, 1, tzinfo=UTC)) is None


def test_zones_are_found_where_the_system_has_none() -> None:
    """As in a slim image without /usr/share/zoneinfo: the tzdata package that pgworkers depends on has them."""
    code = (
        "import zoneinfo; assert zoneinfo.TZPATH == ();"
        "from pgworkers.schedule.cron import cron_calendar; print(cron_calendar('0 3 * * *', 'Australia/Lord_Howe'))"
    )
    environ = {**os.environ, "PYTHONTZPATH": ""}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    assert "Lord_Howe" in found.stdout, found.stderr
