"""`BoxClock`: the time of a box. It is frozen until the test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pgworkers.errors import UsageError
from pgworkers.units import parse_duration


class BoxClock:
    """The time that decides in a box which jobs are due, expired or past their deadline."""

    def __init__(self, now: datetime | None = None) -> None:
        self._now = _aware(now or datetime.now(UTC))

    @property
    def now(self) -> datetime:
        """The time in UTC."""
        return self._now

    def move(self, by: float | str | timedelta) -> datetime:
        """Move the clock forward: `box.clock.move("5m")`. Returns the new time."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else parse_duration(by, what="clock.move")
        if seconds < 0:
            raise UsageError(f"clock.move: {by!r} is negative; a box's clock only moves forward")
        self._now += timedelta(seconds=seconds)
        return self._now

    def move_to(self, at: datetime) -> datetime:
        """Move the clock forward to this time. Returns it."""
        at = _aware(at)
        if at < self._now:
            raise UsageError(f"clock.move_to: {at} is before {self._now}; a box's clock only moves forward")
        self._now = at
        return at

    def __repr__(self) -> str:
        return f"<BoxClock {self._now.isoformat()}>"


def _aware(at: datetime) -> datetime:
    if at.tzinfo is None:
        raise UsageError(f"{at!r} has no time zone; write datetime(..., tzinfo=UTC)")
    return at.astimezone(UTC)
