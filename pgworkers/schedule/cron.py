"""A cron expression as sets of numbers, and the wall times that match them. Pure.

croniter parses. Finding times is done here, because croniter steps from tick to tick and has no rule for daylight saving
time. Due ticks are fired by master/scheduler.py. Fields: `[second] minute hour day month weekday`. With six of them the
seconds come first. Where both day and weekday are restricted, either may match, as in cron.

`next_after`, `latest_at` and `count` compute when a schedule is due, without walking from tick to tick.

The rule for the two nights of the year:

- A schedule with chosen hours (`30 2 * * *`, `0 */6 * * *`) follows the clock on the wall. A time that is shown twice
  fires the first time only. A time that is never shown fires once, at the first instant after the gap, together with
  all others that fell into it.
- A schedule of every hour (`*/5 * * * *`, `30 * * * *`) follows elapsed time: it fires whenever the clocks show a
  matching time, in both passes of the autumn hour, and nothing is made up for the spring one. Else it would be
  silent for an hour.
- `every="5m"` is elapsed time from its anchor, without a time zone.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from pgworkers.bounds import UNIX_EPOCH
from pgworkers.errors import UsageError
from pgworkers.schedule.zones import (
    ONE_SECOND,
    clock_change_at,
    clock_changes,
    instant,
    is_second_pass,
    load_zone,
    utc_offset,
    wall_time,
    whole_second,
    without_zone,
)

#: Nothing that cron can say is rarer than a February with five of a weekday, across a year 2100 without a leap day.
_SEARCH_YEARS = 50
#: A longer expression says nothing that a shorter one cannot, and takes long to read. The table has the same bound.
MAX_CRON_BYTES = 1000
_ALIASES = {"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}
_NAMES = re.compile(r"(?i)\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|sun|mon|tue|wed|thu|fri|sat)\b")
_FIELD = re.compile(r"[0-9*,/?#lL-]+")


@dataclass(frozen=True)
class CronFields:
    """What matches. `days` and `weekdays` are None when the field says `*`."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int] | None  # 0 stands for the last one of the month
    months: frozenset[int]
    weekdays: frozenset[int] | None  # 0 is Sunday
    nth: tuple[tuple[int, frozenset[int]], ...]  # weekday -> which of the month; 0 stands for the last one

    @property
    def is_every_hour(self) -> bool:
        return len(self.hours) == 24

    def matches(self, wall: datetime) -> bool:
        return self.next_at(wall) == wall

    def next_at(self, wall: datetime) -> datetime | None:
        """The first matching wall time that is not before `wall`; None: never."""
        if self._day_matches(wall.date()) and (found := self._time_from(wall.time())) is not None:
            return datetime.combine(wall.date(), found)
        first = time(self.hours[0], self.minutes[0], self.seconds[0])
        for year, month in _months_from(wall.year, wall.month, 1):
            for day in self._days_of(year, month):
                if (year, month, day) > (wall.year, wall.month, wall.day):
                    return datetime.combine(date(year, month, day), first)
        return None

    def last_at(self, wall: datetime) -> datetime | None:
        """The last matching wall time that is not after `wall`; None: never."""
        if self._day_matches(wall.date()) and (found := self._time_until(wall.time())) is not None:
            return datetime.combine(wall.date(), found)
        last = time(self.hours[-1], self.minutes[-1], self.seconds[-1])
        for year, month in _months_from(wall.year, wall.month, -1):
            for day in reversed(self._days_of(year, month)):
                if (year, month, day) < (wall.year, wall.month, wall.day):
                    return datetime.combine(date(year, month, day), last)
        return None

    def count(self, start: datetime, end: datetime) -> int:
        """How many wall times match in [start, end): days times times of day, never one by one."""
        if end <= start:
            return 0
        days = self._days_between(start.date(), end.date())
        per_day = len(self.hours) * len(self.minutes) * len(self.seconds)
        return days * per_day + self._times_before(end) - self._times_before(start)

    def _days_between(self, start: date, end: date) -> int:
        found = 0
        for year, month in _months_from(start.year, start.month, 1, years=end.year - start.year + 1):
            if (year, month) > (end.year, end.month):
                break
            low = start.day if (year, month) == (start.year, start.month) else 1
            high = end.day if (year, month) == (end.year, end.month) else 32
            found += sum(1 for day in self._days_of(year, month) if low <= day < high)
        return found

    def _times_before(self, wall: datetime) -> int:
        """Matching times of that day before this one."""
        if not self._day_matches(wall.date()):
            return 0
        hour = bisect_left(self.hours, wall.hour)
        found = hour * len(self.minutes) * len(self.seconds)
        if hour == len(self.hours) or self.hours[hour] != wall.hour:
            return found
        minute = bisect_left(self.minutes, wall.minute)
        found += minute * len(self.seconds)
        if minute == len(self.minutes) or self.minutes[minute] != wall.minute:
            return found
        return found + bisect_left(self.seconds, wall.second)

    def _time_from(self, at: time) -> time | None:
        for hour in self.hours[bisect_left(self.hours, at.hour) :]:
            if hour > at.hour:
                return time(hour, self.minutes[0], self.seconds[0])
            for minute in self.minutes[bisect_left(self.minutes, at.minute) :]:
                if minute > at.minute:
                    return time(hour, minute, self.seconds[0])
                second = bisect_left(self.seconds, at.second)
                if second < len(self.seconds):
                    return time(hour, minute, self.seconds[second])
        return None

    def _time_until(self, at: time) -> time | None:
        for hour in reversed(self.hours[: bisect_right(self.hours, at.hour)]):
            if hour < at.hour:
                return time(hour, self.minutes[-1], self.seconds[-1])
            for minute in reversed(self.minutes[: bisect_right(self.minutes, at.minute)]):
                if minute < at.minute:
                    return time(hour, minute, self.seconds[-1])
                second = bisect_right(self.seconds, at.second)
                if second:
                    return time(hour, minute, self.seconds[second - 1])
        return None

    def _day_matches(self, day: date) -> bool:
        return day.day in self._days_of(day.year, day.month)

    def _days_of(self, year: int, month: int) -> tuple[int, ...]:
        return _days_of(self, year, month)

    def _matches_in(self, year: int, month: int) -> tuple[int, ...]:
        if month not in self.months:
            return ()
        first, length = monthrange(year, month)  # first: 0 is Monday
        return tuple(
            day
            for day in range(1, length + 1)
            if self._day_fits(day, length, weekday=(first + day) % 7)  # 0 is Sunday
        )

    def _day_fits(self, day: int, length: int, *, weekday: int) -> bool:
        by_day = self.days is not None and (day in self.days or (day == length and 0 in self.days))
        by_weekday = self.weekdays is not None and weekday in self.weekdays
        if by_weekday and self.nth:
            chosen = dict(self.nth).get(weekday, frozenset())
            by_weekday = (day + 6) // 7 in chosen or (day + 7 > length and 0 in chosen)
        if self.days is None:
            return by_weekday or self.weekdays is None
        return by_day or by_weekday


@lru_cache(maxsize=4096)
def _days_of(fields: CronFields, year: int, month: int) -> tuple[int, ...]:
    return fields._matches_in(year, month)


def _months_from(year: int, month: int, step: int, *, years: int = _SEARCH_YEARS) -> list[tuple[int, int]]:
    first = year * 12 + month - 1
    found = (divmod(first + step * n, 12) for n in range(12 * years + 1))
    return [(y, m + 1) for y, m in found if 1 <= y <= 9998]


def parse_cron(text: str) -> CronFields:
    """Read a cron expression; UsageError says what is wrong with it."""
    from croniter import croniter

    if not isinstance(text, str):
        raise UsageError(f'{text!r} is not a cron expression; write five or six fields, e.g. "0 3 * * *"')
    if len(text.encode("utf-8", "surrogatepass")) > MAX_CRON_BYTES:
        raise UsageError(
            f"the cron expression {text[:40]!r}… is {len(text):,} characters long; {MAX_CRON_BYTES} bytes are allowed. "
            "Write ranges and steps (0-59/5) instead of lists"
        )
    parts = text.split()
    if text.strip().lower() in _ALIASES:
        text = text.strip().lower()
    elif len(parts) not in (5, 6):
        raise UsageError(
            f"cron {text!r} has {len(parts)} fields; write five (minute hour day month weekday) or six "
            "(second first), or every= for an interval"
        )
    else:
        for part in (
            parts
        ):  # croniter also takes random, hashed and nearest-weekday fields: not the same on every host
            if not _FIELD.fullmatch(_NAMES.sub("0", part)):
                raise UsageError(f"cron {text!r}: the field {part!r} is not understood")
    try:
        expanded, nth = croniter.expand(text, second_at_beginning=True)
    except (
        ValueError,
        KeyError,
        AttributeError,
        TypeError,
    ) as exc:  # croniter lets some of its own errors out
        raise UsageError(f"cron {text!r} is not understood: {exc}") from None
    found = _read_fields(expanded, nth)
    if found.next_at(datetime(2000, 1, 1)) is None:
        raise UsageError(f"cron {text!r} never happens: no month has such a day")
    return found


def _read_fields(expanded: list[list[Any]], nth: dict[int, set[Any]]) -> CronFields:
    def numbers(at: int, span: range) -> tuple[int, ...]:
        given = expanded[at]
        return tuple(span) if given == ["*"] else tuple(sorted({int(n) for n in given}))

    days, weekdays = expanded[2], expanded[4]
    return CronFields(
        seconds=numbers(5, range(60)) if len(expanded) == 6 else (0,),
        minutes=numbers(0, range(60)),
        hours=numbers(1, range(24)),
        days=None if days == ["*"] else frozenset(0 if day == "l" else int(day) for day in days),
        months=frozenset(numbers(3, range(1, 13))),
        weekdays=None if weekdays == ["*"] else frozenset(int(day) % 7 for day in weekdays),
        nth=tuple(
            (int(day) % 7, frozenset(0 if n == "l" else int(n) for n in which))
            for day, which in sorted(nth.items())
        ),
    )


class Calendar(Protocol):
    """Ticks as a pure function of time. All datetimes are aware; answers are in UTC."""

    def next_after(self, at: datetime) -> datetime | None:
        """The first tick after `at`; None: there is none."""

    def latest_at(self, at: datetime) -> datetime | None:
        """The last tick not after `at`."""

    def count(self, after: datetime, until: datetime) -> int:
        """How many ticks lie in (after, until]."""


@dataclass(frozen=True, slots=True)
class IntervalCalendar:
    """`anchor` + n times `every`."""

    every: timedelta
    anchor: datetime = UNIX_EPOCH

    def next_after(self, at: datetime) -> datetime | None:
        try:
            return (self.anchor + (self._index_at(at) + 1) * self.every).astimezone(UTC)
        except OverflowError:
            return None

    def latest_at(self, at: datetime) -> datetime | None:
        return (self.anchor + self._index_at(at) * self.every).astimezone(UTC)

    def count(self, after: datetime, until: datetime) -> int:
        return max(0, self._index_at(until) - self._index_at(after))

    def _index_at(self, at: datetime) -> int:
        return (at - self.anchor) // self.every


@dataclass(frozen=True, slots=True)
class WallClockCalendar:
    """Chosen hours: each wall time fires once."""

    fields: CronFields
    zone: ZoneInfo

    def next_after(self, at: datetime) -> datetime | None:
        found = self.fields.next_at(self._next_wall_time(at))
        return None if found is None else self._instant_of(found)

    def latest_at(self, at: datetime) -> datetime | None:
        found = self.fields.last_at(self._next_wall_time(at) - ONE_SECOND)
        return None if found is None else self._instant_of(found)

    def count(self, after: datetime, until: datetime) -> int:
        start, end = whole_second(after) + ONE_SECOND, whole_second(until) + ONE_SECOND
        if end <= start:
            return 0
        found, reached = 0, self._next_wall_time(after)
        for shift in [*clock_changes(start - ONE_SECOND, end - ONE_SECOND, self.zone), None]:
            stop = shift.wall_before if shift else without_zone(end + utc_offset(end - ONE_SECOND, self.zone))
            found += self.fields.count(reached, stop)
            reached = max(reached, stop)
            if shift is not None and shift.wall_after > reached:
                in_gap = self.fields.count(reached, shift.wall_after) > 0
                found += in_gap and not self.fields.matches(shift.wall_after)
                reached = shift.wall_after
        return found

    def _next_wall_time(self, at: datetime) -> datetime:
        """The first wall time that has not had its turn at `at`."""
        shown = wall_time(at, self.zone)
        if is_second_pass(at, self.zone) and (shift := clock_change_at(shown, self.zone)) is not None:
            return shift.wall_before
        return whole_second(shown) + ONE_SECOND

    def _instant_of(self, shown: datetime) -> datetime:
        shift = clock_change_at(shown, self.zone)
        return shift.at if shift is not None and shift.is_forward else instant(shown, self.zone)


@dataclass(frozen=True, slots=True)
class ElapsedTimeCalendar:
    """Every hour: fires whenever the clocks show a matching time."""

    fields: CronFields
    zone: ZoneInfo

    def next_after(self, at: datetime) -> datetime | None:
        shown = wall_time(at, self.zone)
        found = self.fields.next_at(whole_second(shown) + ONE_SECOND)
        shift = clock_change_at(shown, self.zone)
        if shift is not None and found is not None:  # the clocks show a time that comes twice
            in_second_pass = is_second_pass(at, self.zone)
            if found < shift.wall_before:
                return instant(found, self.zone, in_second_pass=in_second_pass)
            if not in_second_pass:  # the first pass is over: look at the second
                found = self.fields.next_at(shift.wall_after)
                if found is not None and found < shift.wall_before:
                    return instant(found, self.zone, in_second_pass=True)
        if found is None:
            return None
        shift = clock_change_at(found, self.zone)
        if shift is not None and shift.is_forward:
            found = self.fields.next_at(shift.wall_after)
        return None if found is None else instant(found, self.zone)

    def latest_at(self, at: datetime) -> datetime | None:
        shown = whole_second(wall_time(at, self.zone))
        found = self.fields.last_at(shown)
        shift = clock_change_at(shown, self.zone)
        if shift is not None and found is not None:
            in_second_pass = is_second_pass(at, self.zone)
            if found >= shift.wall_after:
                return instant(found, self.zone, in_second_pass=in_second_pass)
            if in_second_pass:  # nothing yet in the second pass: look at the first
                found = self.fields.last_at(shift.wall_before - ONE_SECOND)
                if found is not None and found >= shift.wall_after:
                    return instant(found, self.zone)
        if found is None:
            return None
        shift = clock_change_at(found, self.zone)
        if shift is not None and shift.is_forward:
            found = self.fields.last_at(shift.wall_before - ONE_SECOND)
        return None if found is None else instant(found, self.zone, in_second_pass=True)

    def count(self, after: datetime, until: datetime) -> int:
        start, end = whole_second(after) + ONE_SECOND, whole_second(until) + ONE_SECOND
        if end <= start:
            return 0
        found = 0
        for shift in [*clock_changes(start, end - ONE_SECOND, self.zone), None]:
            stop = shift.at if shift else end
            by = utc_offset(start, self.zone)
            found += self.fields.count(without_zone(start + by), without_zone(stop + by))
            start = stop
        return found


@lru_cache(maxsize=4096)
def cron_calendar(text: str, tz: str = "UTC") -> Calendar:
    """The calendar of a cron expression; UsageError when it or its zone cannot work."""
    fields, zone = parse_cron(text), load_zone(tz)
    return ElapsedTimeCalendar(fields, zone) if fields.is_every_hour else WallClockCalendar(fields, zone)


def interval_calendar(seconds: float, anchor: datetime | None = None) -> Calendar:
    """The calendar of an interval, to the millisecond; its ticks lie on the anchor, else on the Unix epoch."""
    period = timedelta(milliseconds=round(seconds * 1000))
    if period < ONE_SECOND:
        raise UsageError(f"every={seconds}s is too often; give at least 1s")
    return IntervalCalendar(period, UNIX_EPOCH if anchor is None else anchor)
