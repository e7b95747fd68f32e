"""The database's time as this host reckons it, to judge others by: its clock may be set forward, and then nobody is lost.

A host is called lost when it has not renewed for its lease, by the database's clock. When that clock jumps forward by more
than a lease, everybody looks lost until they renew. So who judges goes by the earlier of two times: the database's own, and
this one, reckoned by the judge's own clock (BOOTTIME). Each renewal compares the two clocks, and the smallest difference
that was seen within the longest lease of the cluster counts: so long, and everybody who lives has renewed by the new time.
A clock that is set back is believed at once: leases last longer by the jump, which loses nothing.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime


class Reckoning:
    """Pure: its times are arguments, of CLOCK_BOOTTIME."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = (
            deque()
        )  # when, and how far the database's clock was from ours

    def renewed(self, sent: float, at: datetime, longest: float) -> None:
        """The database answered with its time. Counted from the sending, so a slow answer never makes us late."""
        while self._seen and sent - self._seen[0][0] > longest:
            self._seen.popleft()
        self._seen.append((sent, at.timestamp() - sent))

    def at(self, now: float) -> datetime | None:
        """None before the first renewal: nobody is judged by then, or by the database's clock alone."""
        if not self._seen:
            return None
        return datetime.fromtimestamp(now + min(away for _, away in self._seen), UTC)
