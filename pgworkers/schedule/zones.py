"""What a wall time means in a zone: one instant, two (the clock is put back) or none (it is put forward). Pure.

Zones come from the system's database where it has one, else from the `tzdata` package, which pgworkers depends on
because slim images have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pgworkers.errors import UsageError

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ClockChange:
    """The clock of a zone is changed at `at`, from one offset to another."""

    at: datetime
    before: timedelta
    after: timedelta

    @property
    def is_forward(self) -> bool:
        return self.after > self.before

    @property
    def wall_before(self) -> datetime:
        """The wall time at which the old offset ends."""
        return without_zone(self.at + self.before)

    @property
    def wall_after(self) -> datetime:
        """The wall time with which the new offset begins."""
        return without_zone(self.at + self.after)


@lru_cache(maxsize=512)
def load_zone(name: str) -> ZoneInfo:
    """UsageError when there is no such zone. Names that mean another place on another machine are refused."""
    if isinstance(name, str) and name not in ("localtime", "posixrules", "Factory"):
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
    raise UsageError(f"there is no time zone {name!r}; write a name such as Europe/Berlin or UTC")


def without_zone(moment: datetime) -> datetime:
    return moment.replace(tzinfo=None)


def wall_time(at: datetime, zone: ZoneInfo) -> datetime:
    """What the clocks show."""
    return at.astimezone(zone).replace(tzinfo=None, fold=0)


def instant(shown: datetime, zone: ZoneInfo, *, in_second_pass: bool = False) -> datetime:
    """When the clocks show this; `in_second_pass`: the second time, if there are two."""
    return shown.replace(tzinfo=zone, fold=int(in_second_pass)).astimezone(UTC)


def is_second_pass(at: datetime, zone: ZoneInfo) -> bool:
    """The clocks show a time that they have shown before."""
    return at.astimezone(zone).fold == 1


def utc_offset(at: datetime, zone: ZoneInfo) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta()


def clock_change_at(shown: datetime, zone: ZoneInfo) -> ClockChange | None:
    """The change that makes this wall time ambiguous or skips it; None: it happens just once."""
    shown = whole_second(shown)
    before = shown.replace(tzinfo=zone, fold=0).utcoffset() or timedelta()
    after = shown.replace(tzinfo=zone, fold=1).utcoffset() or timedelta()
    if before == after:
        return None
    moment = shown.replace(tzinfo=UTC)
    return _clock_change_between(moment - max(before, after), moment - min(before, after), zone)


def clock_changes(start: datetime, end: datetime, zone: ZoneInfo) -> Iterator[ClockChange]:
    """Every change after `start` and not after `end`: looked for day by day, found by halving."""
    while start < end:
        stop = min(start + _DAY, end)
        if utc_offset(start, zone) != utc_offset(stop, zone):
            yield _clock_change_between(start, stop, zone)
        start = stop


def _clock_change_between(low: datetime, high: datetime, zone: ZoneInfo) -> ClockChange:
    """The change between two whole seconds with different offsets."""
    before, after = utc_offset(low, zone), utc_offset(high, zone)
    while high - low > ONE_SECOND:
        middle = whole_second(low + (high - low) // 2)
        if utc_offset(middle, zone) == before:
            low = middle
        else:
            high = middle
    return ClockChange(high, before, after)


def whole_second(moment: datetime) -> datetime:
    """Without the fraction of its second."""
    return moment.replace(microsecond=0)


ONE_SECOND = timedelta(seconds=1)
