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
from pgworkers.schedule.fields import SECOND, whole

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Shift:
    """The clock of a zone is changed at `at`, from one offset to another."""

    at: datetime
    before: timedelta
    after: timedelta

    @property
    def forward(self) -> bool:
        return self.after > self.before

    @property
    def reached(self) -> datetime:
        """The wall time at which the old offset ends."""
        return naive(self.at + self.before)

    @property
    def resumed(self) -> datetime:
        """The wall time with which the new offset begins."""
        return naive(self.at + self.after)


@lru_cache(maxsize=512)
def zone_of(name: str) -> ZoneInfo:
    """UsageError when there is no such zone. Names that mean another place on another machine are refused."""
    if isinstance(name, str) and name not in ("localtime", "posixrules", "Factory"):
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
    raise UsageError(f"there is no time zone {name!r}; write a name such as Europe/Berlin or UTC")


def naive(moment: datetime) -> datetime:
    return moment.replace(tzinfo=None)


def wall(at: datetime, zone: ZoneInfo) -> datetime:
    """What the clocks show."""
    return at.astimezone(zone).replace(tzinfo=None, fold=0)


def instant(shown: datetime, zone: ZoneInfo, *, again: bool = False) -> datetime:
    """When the clocks show this; `again`: the second time, if there are two."""
    return shown.replace(tzinfo=zone, fold=int(again)).astimezone(UTC)


def is_again(at: datetime, zone: ZoneInfo) -> bool:
    """The clocks show a time that they have shown before."""
    return at.astimezone(zone).fold == 1


def offset(at: datetime, zone: ZoneInfo) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta()


def shift_around(shown: datetime, zone: ZoneInfo) -> Shift | None:
    """The change that makes this wall time ambiguous or skips it; None: it happens just once."""
    shown = whole(shown)
    before = shown.replace(tzinfo=zone, fold=0).utcoffset() or timedelta()
    after = shown.replace(tzinfo=zone, fold=1).utcoffset() or timedelta()
    if before == after:
        return None
    moment = shown.replace(tzinfo=UTC)
    return _between(moment - max(before, after), moment - min(before, after), zone)


def shifts(start: datetime, end: datetime, zone: ZoneInfo) -> Iterator[Shift]:
    """Every change after `start` and not after `end`: looked for day by day, found by halving."""
    while start < end:
        stop = min(start + _DAY, end)
        if offset(start, zone) != offset(stop, zone):
            yield _between(start, stop, zone)
        start = stop


def _between(low: datetime, high: datetime, zone: ZoneInfo) -> Shift:
    """The change between two whole seconds with different offsets."""
    before, after = offset(low, zone), offset(high, zone)
    while high - low > SECOND:
        middle = whole(low + (high - low) // 2)
        if offset(middle, zone) == before:
            low = middle
        else:
            high = middle
    return Shift(high, before, after)
