"""When a schedule is due: `next_after`, `latest_at` and `count`, without walking from tick to tick. Pure.

The rule for the two nights of the year:

- A schedule with chosen hours (`30 2 * * *`, `0 */6 * * *`) follows the clock on the wall. A time that is shown twice
  fires the first time only. A time that is never shown fires once, at the first instant after the gap, together with
  all others that fell into it.
- A schedule of every hour (`*/5 * * * *`, `30 * * * *`) follows elapsed time: it fires whenever the clocks show a
  matching time, in both passes of the autumn hour, and nothing is made up for the spring one. Else it would be
  silent for an hour.
- `every="5m"` is elapsed time from its anchor and knows no zone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo

from pgworkers.errors import UsageError
from pgworkers.schedule import fields as cron_fields
from pgworkers.schedule.fields import SECOND, Fields, whole
from pgworkers.schedule.zones import (
    instant,
    is_again,
    naive,
    offset,
    shift_around,
    shifts,
    wall,
    zone_of,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Calendar(Protocol):
    """Ticks as a pure function of time. All datetimes are aware; answers are in UTC."""

    def next_after(self, at: datetime) -> datetime | None:
        """The first tick after `at`; None: there is none."""

    def latest_at(self, at: datetime) -> datetime | None:
        """The last tick not after `at`."""

    def count(self, after: datetime, until: datetime) -> int:
        """How many ticks lie in (after, until]."""


@dataclass(frozen=True, slots=True)
class Interval:
    """`anchor` + n times `every`."""

    every: timedelta
    anchor: datetime = EPOCH

    def next_after(self, at: datetime) -> datetime | None:
        try:
            return (self.anchor + (self._number(at) + 1) * self.every).astimezone(UTC)
        except OverflowError:
            return None

    def latest_at(self, at: datetime) -> datetime | None:
        return (self.anchor + self._number(at) * self.every).astimezone(UTC)

    def count(self, after: datetime, until: datetime) -> int:
        return max(0, self._number(until) - self._number(after))

    def _number(self, at: datetime) -> int:
        return (at - self.anchor) // self.every


@dataclass(frozen=True, slots=True)
class OnTheWall:
    """Chosen hours: each wall time fires once."""

    fields: Fields
    zone: ZoneInfo

    def next_after(self, at: datetime) -> datetime | None:
        found = self.fields.next_at(self._passed(at))
        return None if found is None else self._fires(found)

    def latest_at(self, at: datetime) -> datetime | None:
        found = self.fields.last_at(self._passed(at) - SECOND)
        return None if found is None else self._fires(found)

    def count(self, after: datetime, until: datetime) -> int:
        start, end = whole(after) + SECOND, whole(until) + SECOND
        if end <= start:
            return 0
        found, reached = 0, self._passed(after)
        for shift in [*shifts(start - SECOND, end - SECOND, self.zone), None]:
            stop = shift.reached if shift else naive(end + offset(end - SECOND, self.zone))
            found += self.fields.count(reached, stop)
            reached = max(reached, stop)
            if shift is not None and shift.resumed > reached:
                in_gap = self.fields.count(reached, shift.resumed) > 0
                found += in_gap and not self.fields.matches(shift.resumed)
                reached = shift.resumed
        return found

    def _passed(self, at: datetime) -> datetime:
        """The first wall time that has not had its turn at `at`."""
        shown = wall(at, self.zone)
        if is_again(at, self.zone) and (shift := shift_around(shown, self.zone)) is not None:
            return shift.reached
        return whole(shown) + SECOND

    def _fires(self, shown: datetime) -> datetime:
        shift = shift_around(shown, self.zone)
        return shift.at if shift is not None and shift.forward else instant(shown, self.zone)


@dataclass(frozen=True, slots=True)
class AllTheTime:
    """Every hour: fires whenever the clocks show a matching time."""

    fields: Fields
    zone: ZoneInfo

    def next_after(self, at: datetime) -> datetime | None:
        shown = wall(at, self.zone)
        found = self.fields.next_at(whole(shown) + SECOND)
        shift = shift_around(shown, self.zone)
        if shift is not None and found is not None:  # the clocks show a time that comes twice
            again = is_again(at, self.zone)
            if found < shift.reached:
                return instant(found, self.zone, again=again)
            if not again:  # the first pass is over: look at the second
                found = self.fields.next_at(shift.resumed)
                if found is not None and found < shift.reached:
                    return instant(found, self.zone, again=True)
        if found is None:
            return None
        shift = shift_around(found, self.zone)
        if shift is not None and shift.forward:
            found = self.fields.next_at(shift.resumed)
        return None if found is None else instant(found, self.zone)

    def latest_at(self, at: datetime) -> datetime | None:
        shown = whole(wall(at, self.zone))
        found = self.fields.last_at(shown)
        shift = shift_around(shown, self.zone)
        if shift is not None and found is not None:
            again = is_again(at, self.zone)
            if found >= shift.resumed:
                return instant(found, self.zone, again=again)
            if again:  # nothing yet in the second pass: look at the first
                found = self.fields.last_at(shift.reached - SECOND)
                if found is not None and found >= shift.resumed:
                    return instant(found, self.zone)
        if found is None:
            return None
        shift = shift_around(found, self.zone)
        if shift is not None and shift.forward:
            found = self.fields.last_at(shift.reached - SECOND)
        return None if found is None else instant(found, self.zone, again=True)

    def count(self, after: datetime, until: datetime) -> int:
        start, end = whole(after) + SECOND, whole(until) + SECOND
        if end <= start:
            return 0
        found = 0
        for shift in [*shifts(start, end - SECOND, self.zone), None]:
            stop = shift.at if shift else end
            by = offset(start, self.zone)
            found += self.fields.count(naive(start + by), naive(stop + by))
            start = stop
        return found


@lru_cache(maxsize=4096)
def cron(text: str, tz: str = "UTC") -> Calendar:
    """The calendar of a cron expression; UsageError when it or its zone cannot work."""
    fields, zone = cron_fields.parse(text), zone_of(tz)
    return AllTheTime(fields, zone) if fields.every_hour else OnTheWall(fields, zone)


def every(seconds: float, anchor: datetime | None = None) -> Calendar:
    """The calendar of an interval, to the millisecond; its ticks lie on the anchor, else on the Unix epoch."""
    period = timedelta(milliseconds=round(seconds * 1000))
    if period < SECOND:
        raise UsageError(f"every={seconds}s is too often; give at least 1s")
    return Interval(period, EPOCH if anchor is None else anchor)
