"""The two nights of the year, against a brute force over every second or minute that knows only zoneinfo and the rule.

The reference shares nothing with the code: it reads the expression by itself, walks UTC, looks at what the clocks show
and applies the documented rule literally. croniter is not asked.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from pgworkers.schedule.cron import Calendar, cron_calendar

STEP = timedelta(minutes=1)

#: zone, the day around which to look: both nights of each, and a day that never was.
NIGHTS = [
    ("Europe/Berlin", "2025-03-30"),
    ("Europe/Berlin", "2025-10-26"),
    ("America/New_York", "2025-03-09"),
    ("America/New_York", "2025-11-02"),
    ("Australia/Lord_Howe", "2025-10-05"),
    ("Australia/Lord_Howe", "2025-04-06"),
    ("Pacific/Apia", "2011-12-30"),
    ("Pacific/Apia", "2011-09-24"),
    ("Pacific/Apia", "2012-04-01"),
]
EXPRESSIONS = [
    "30 2 * * *",
    "0 2 * * *",
    "0 3 * * *",
    "15 1 * * *",
    "45 1 * * *",
    "59 1 * * *",
    "0 0 * * *",
    "0 12 * * *",
    "*/10 1-3 * * *",
    "*/7 0,2,4 * * *",
    "0 12 30 12 *",
    "5 2 * * 0",
    "*/5 * * * *",
    "30 * * * *",
    "* * * * *",
    "7 * * * 0",
]


def numbers(field: str, low: int, high: int) -> set[int]:
    """`*`, `*/5`, `1-3`, `0,2,4` and plain numbers."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def matcher(expression: str) -> Callable[[datetime], bool]:
    minute, hour, day, month, weekday = expression.split()
    minutes, hours, months = numbers(minute, 0, 59), numbers(hour, 0, 23), numbers(month, 1, 12)
    days, weekdays = numbers(day, 1, 31), numbers(weekday, 0, 6)
    both = "*" in (day, weekday)

    def matches(wall: datetime) -> bool:
        if wall.minute not in minutes or wall.hour not in hours or wall.month not in months:
            return False
        by_day, by_weekday = wall.day in days, wall.isoweekday() % 7 in weekdays
        return by_day and by_weekday if both else by_day or by_weekday

    return matches


def reference(expression: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    """The rule, minute by minute: first showing, or the first instant after the gap; with every hour, any showing."""
    matches, tz = matcher(expression), ZoneInfo(zone)
    every_hour = numbers(expression.split()[1], 0, 23) == set(range(24))
    fired: list[datetime] = []
    at = start
    shown_before = (start - STEP).astimezone(tz).replace(tzinfo=None)
    furthest = shown_before  # the latest wall time that was shown so far
    while at < end:
        shown = at.astimezone(tz).replace(tzinfo=None)
        if every_hour:
            due = matches(shown)
        else:
            due = matches(shown) and shown > furthest
            skipped = furthest + STEP
            while skipped < shown:  # never shown: the clocks were put forward over them
                due = due or matches(skipped)
                skipped += STEP
        if due:
            fired.append(at)
        furthest = max(furthest, shown)
        at += STEP
    return fired


def forwards(calendar: Calendar, start: datetime, end: datetime) -> list[datetime]:
    found: list[datetime] = []
    at = calendar.next_after(start - STEP)
    while at is not None and at < end:
        found.append(at)
        at = calendar.next_after(at)
    return found


def backwards(calendar: Calendar, start: datetime, end: datetime) -> list[datetime]:
    found: list[datetime] = []
    at = calendar.latest_at(end - timedelta(microseconds=1))
    while at is not None and at >= start:
        found.append(at)
        at = calendar.latest_at(at - timedelta(microseconds=1))
    return found[::-1]


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize(("zone", "day"), NIGHTS)
def test_both_nights(zone: str, day: str, expression: str) -> None:
    middle = datetime.fromisoformat(day).replace(hour=2, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    start, end = middle - timedelta(hours=40), middle + timedelta(hours=40)
    expected = reference(expression, zone, start, end)
    calendar = cron_calendar(expression, zone)
    assert forwards(calendar, start, end) == expected
    assert backwards(calendar, start, end) == expected
    probes = [start + timedelta(minutes=43 * n, seconds=n % 3, microseconds=n % 2) for n in range(111)]
    for probe in probes:
        assert calendar.next_after(probe) == next(
            (t for t in expected if t > probe), calendar.next_after(probe)
        )
        assert calendar.count(start, probe) == sum(start < t <= probe for t in expected), probe
        assert calendar.count(probe, end) == sum(probe < t < end for t in expected) + (
            calendar.latest_at(end) == end
        ), probe


#: What people ask about, in words that need no program: local time -> the instants of that day, in UTC.
TABLE = [
    (
        "Europe/Berlin",
        "30 2 * * *",
        "2025-03-30",
        ["01:00"],
    ),  # 02:30 is skipped: at 03:00 CEST, the first instant after
    ("Europe/Berlin", "0 3 * * *", "2025-03-30", ["01:00"]),
    ("Europe/Berlin", "*/20 2-3 * * *", "2025-03-30", ["01:00", "01:20", "01:40"]),
    ("Europe/Berlin", "30 2 * * *", "2025-10-26", ["00:30"]),  # the first 02:30 only
    ("America/New_York", "30 2 * * *", "2025-03-09", ["07:00"]),
    ("America/New_York", "30 1 * * *", "2025-11-02", ["05:30"]),
    ("Australia/Lord_Howe", "15 2 * * *", "2025-10-04", ["15:30"]),  # 02:15 on the 5th is skipped: 02:30 +11
    (
        "Australia/Lord_Howe",
        "45 1 * * *",
        "2025-04-05",
        ["14:45"],
    ),  # 01:45 on the 6th comes twice: the +11 one
    (
        "Pacific/Apia",
        "0 12 30 12 *",
        "2011-12-30",
        ["10:00"],
    ),  # the 30th never was: midnight of the 31st, +14
]


@pytest.mark.parametrize(("zone", "expression", "day", "expected"), TABLE)
def test_the_answers_people_expect(zone: str, expression: str, day: str, expected: list[str]) -> None:
    start = datetime.fromisoformat(day).replace(tzinfo=UTC)
    found = forwards(cron_calendar(expression, zone), start, start + timedelta(days=1))
    assert [at.strftime("%H:%M") for at in found] == expected


def test_croniter_alone_would_fire_twice() -> None:
    """The broken twin: without the rule a fixed time fires in both passes of the autumn hour."""
    start = datetime(2025, 10, 26, tzinfo=UTC)
    matches, zone = matcher("30 2 * * *"), ZoneInfo("Europe/Berlin")
    minutes = (start + n * STEP for n in range(24 * 60))
    naive = [at for at in minutes if matches(at.astimezone(zone).replace(tzinfo=None))]
    assert len(naive) == 2
    assert (
        forwards(cron_calendar("30 2 * * *", "Europe/Berlin"), start, start + timedelta(days=1)) == naive[:1]
    )


def test_seconds_in_the_night_the_clock_goes_back() -> None:
    """Chosen hours to the second: 3,600 in the hour shown twice, not 7,200; and no long walk to find the next one."""
    calendar = cron_calendar("* * 2 * * *", "Europe/Berlin")
    start = datetime(2025, 10, 26, tzinfo=UTC)
    assert calendar.count(start - timedelta(seconds=1), start + timedelta(hours=3)) == 3600
    last = start + timedelta(seconds=3599)
    assert calendar.latest_at(start + timedelta(hours=1, minutes=30)) == last
    assert calendar.next_after(last) == datetime(2025, 10, 27, 1, tzinfo=UTC)
    flowing = cron_calendar("* * * * * *", "Europe/Berlin")
    assert flowing.count(start, start + timedelta(hours=3)) == 3 * 3600
