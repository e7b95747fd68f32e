"""Which ticks fire now. Pure: the definition, the last tick considered and the database's `now()` decide.

A tick is on time when it is at most `ON_TIME_TOLERANCE` late: a second or two of a busy leader are not "missed". What
happens to the others is the schedule's policy:

- `latest`: if a tick was missed, one job for the newest due tick. If none was missed, every due tick fires.
- `all`: each of them, the oldest first, `MAX_TICKS_PER_PLAN` at a time, none older than the window.
- `skip`: only what is on time.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta

from pgworkers.errors import UsageError
from pgworkers.schedule.cron import Calendar, cron_calendar, interval_calendar

ON_TIME_TOLERANCE = timedelta(seconds=5)
MAX_TICKS_PER_PLAN = 100
_MICROSECOND = timedelta(microseconds=1)

MISSED_POLICIES = ("latest", "all", "skip")
OVERLAP_POLICIES = ("allow", "skip", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What a definition says about time. Either `cron` or `every`."""

    cron: str | None = None
    every: float | None = None  # seconds
    tz: str = "UTC"
    start: datetime | None = None  # no tick before it
    end: datetime | None = None  # no tick at or after it
    missed: str = "latest"
    missed_window_seconds: float = 86400.0  # seconds; how far back `all` goes

    def calendar(self) -> Calendar:
        """UsageError when it cannot work."""
        if (self.cron is None) == (self.every is None):
            raise UsageError('give either a cron expression or every="5m", not both and not neither')
        if self.missed not in MISSED_POLICIES:
            raise UsageError(f"missed={self.missed!r}: use {', '.join(MISSED_POLICIES)}")
        if self.cron is not None:
            return cron_calendar(self.cron, self.tz)
        assert self.every is not None
        return interval_calendar(self.every, self.start)

    def next_after(self, at: datetime) -> datetime | None:
        """The first tick after `at` that lies between start and end."""
        if self.start is not None:
            at = max(at, self.start - _MICROSECOND)
        found = self.calendar().next_after(at)
        return None if found is None or (self.end is not None and found >= self.end) else found

    def next_ticks(self, at: datetime, count: int) -> list[datetime]:
        found: list[datetime] = []
        while len(found) < count and (one := self.next_after(found[-1] if found else at)) is not None:
            found.append(one)
        return found


@dataclass(frozen=True, slots=True)
class TickPlan:
    """Ticks to fire, how many were passed by, the last tick considered, and the one after it (None: none will come)."""

    ticks: tuple[datetime, ...]
    skipped_ticks: int
    planned_until: datetime
    next_tick: datetime | None


def plan_ticks(
    timing: Timing, considered: datetime, now: datetime, limit: int = MAX_TICKS_PER_PLAN
) -> TickPlan:
    """What to do about the ticks after `considered` that are due at `now`."""
    calendar = timing.calendar()
    low = considered if timing.start is None else max(considered, timing.start - _MICROSECOND)
    high = now if timing.end is None else min(now, timing.end - _MICROSECOND)
    newest = calendar.latest_at(high) if high > low else None
    if newest is None or newest <= low:
        return TickPlan((), 0, considered, timing.next_after(max(considered, low)))
    match timing.missed:
        case "latest":
            first = calendar.next_after(low)
            missed = first is not None and now - first > ON_TIME_TOLERANCE
            floor = newest - _MICROSECOND if missed else low
        case "skip":
            floor = max(low, now - ON_TIME_TOLERANCE)
        case _:
            floor = max(low, now - max(timedelta(seconds=timing.missed_window_seconds), ON_TIME_TOLERANCE))
    ticks = _take(calendar, floor, newest, limit)
    skipped = calendar.count(low, floor) if floor > low else 0
    done = ticks[-1] if len(ticks) == limit else newest
    return TickPlan(tuple(ticks), skipped, done, timing.next_after(done))


def _take(calendar: Calendar, after: datetime, until: datetime, limit: int) -> list[datetime]:
    found: list[datetime] = []
    while len(found) < limit:
        one = calendar.next_after(found[-1] if found else after)
        if one is None or one > until:
            break
        found.append(one)
    return found


def tick_jitter(name: str, scope: str, at: datetime, max_seconds: float) -> float:
    """Seconds in [0, most) that the job of this tick waits: the same on whichever host it is computed."""
    if max_seconds <= 0:
        return 0.0
    text = f"{name}\0{scope}\0{at.timestamp():.6f}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return int.from_bytes(digest) / 2.0**64 * max_seconds
