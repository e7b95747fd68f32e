"""Which ticks fire now. Pure: the definition, the last tick considered and the database's `now()` decide.

A tick is on time when it is at most `ON_TIME` late: a second or two of a busy leader are not "missed". What happens to the
others is the schedule's policy:

- `latest`: if any was missed, one job for the newest of all that are due; what is on time fires as usual otherwise.
- `all`: each of them, the oldest first, `PER_PASS` at a time, none older than the window.
- `skip`: only what is on time.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta

from pgworkers.errors import UsageError
from pgworkers.schedule.expression import Calendar, cron, every

ON_TIME = timedelta(seconds=5)
PER_PASS = 100
_INSTANT = timedelta(microseconds=1)

MISSED = ("latest", "all", "skip")
OVERLAP = ("allow", "skip", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What a definition says about time. Either `cron` or `every`."""

    cron: str | None = None
    every: float | None = None  # seconds
    tz: str = "UTC"
    start: datetime | None = None  # no tick before it
    end: datetime | None = None  # no tick at or after it
    missed: str = "latest"
    window: float = 86400.0  # seconds; how far back `all` goes

    def calendar(self) -> Calendar:
        """UsageError when it cannot work."""
        if (self.cron is None) == (self.every is None):
            raise UsageError('give either a cron expression or every="5m", not both and not neither')
        if self.missed not in MISSED:
            raise UsageError(f"missed={self.missed!r}: use {', '.join(MISSED)}")
        if self.cron is not None:
            return cron(self.cron, self.tz)
        assert self.every is not None
        return every(self.every, self.start)

    def next_after(self, at: datetime) -> datetime | None:
        """The first tick after `at` that lies between start and end."""
        if self.start is not None:
            at = max(at, self.start - _INSTANT)
        found = self.calendar().next_after(at)
        return None if found is None or (self.end is not None and found >= self.end) else found

    def next_ones(self, at: datetime, count: int) -> list[datetime]:
        found: list[datetime] = []
        while len(found) < count and (one := self.next_after(found[-1] if found else at)) is not None:
            found.append(one)
        return found


@dataclass(frozen=True, slots=True)
class Plan:
    """Ticks to fire, how many were passed by, the last tick considered, and the one after it (None: none will come)."""

    ticks: tuple[datetime, ...]
    skipped: int
    considered: datetime
    next: datetime | None


def plan(timing: Timing, considered: datetime, now: datetime, limit: int = PER_PASS) -> Plan:
    """What to do about the ticks after `considered` that are due at `now`."""
    calendar = timing.calendar()
    low = considered if timing.start is None else max(considered, timing.start - _INSTANT)
    high = now if timing.end is None else min(now, timing.end - _INSTANT)
    newest = calendar.latest_at(high) if high > low else None
    if newest is None or newest <= low:
        return Plan((), 0, considered, timing.next_after(max(considered, low)))
    match timing.missed:
        case "latest":
            first = calendar.next_after(low)
            missed = first is not None and now - first > ON_TIME
            floor = newest - _INSTANT if missed else low
        case "skip":
            floor = max(low, now - ON_TIME)
        case _:
            floor = max(low, now - max(timedelta(seconds=timing.window), ON_TIME))
    ticks = _take(calendar, floor, newest, limit)
    skipped = calendar.count(low, floor) if floor > low else 0
    done = ticks[-1] if len(ticks) == limit else newest
    return Plan(tuple(ticks), skipped, done, timing.next_after(done))


def _take(calendar: Calendar, after: datetime, until: datetime, limit: int) -> list[datetime]:
    found: list[datetime] = []
    while len(found) < limit:
        one = calendar.next_after(found[-1] if found else after)
        if one is None or one > until:
            break
        found.append(one)
    return found


def jitter_of(name: str, scope: str, at: datetime, most: float) -> float:
    """Seconds in [0, most) that the job of this tick waits: the same on whichever host it is computed."""
    if most <= 0:
        return 0.0
    text = f"{name}\0{scope}\0{at.timestamp():.6f}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return int.from_bytes(digest) / 2.0**64 * most
