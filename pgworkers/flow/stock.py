"""Tokens in hand: how many to take at once, which one to use next, which to give back. Pure but for its lock.

A caller that asks again soon after the last question takes twice as many the next time, up to what it is likely to use
within a tenth of a second; one that asks slowly takes one at a time. So a fast loop does not pay a round trip per token,
and a slow one never sits on tokens that others wait for.
"""

from __future__ import annotations

import threading
from collections import deque

#: Asking again within this time is asking fast; never more is taken ahead than the bucket refills in it.
HORIZON = 0.1
MOST = 64


class Stock:
    """The tokens one process holds of one bucket, each with the moment (of the monotonic clock) when it is due."""

    def __init__(self, rate: float) -> None:
        self._most = max(1, min(MOST, int(rate * HORIZON)))
        self._want = 1
        self._asked: float | None = None
        self._due: deque[float] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._due)

    def use(self, latest: float | None = None) -> float | None:
        """Take the next token that is due by `latest`; the moment it is due, or None: ask the bucket."""
        with self._lock:
            if self._due and (latest is None or self._due[0] <= latest):
                return self._due.popleft()
            return None

    def want(self, now: float) -> int:
        """How many to ask for now."""
        with self._lock:
            fast = self._asked is not None and now - self._asked <= HORIZON
            self._want = min(self._want * 2, self._most) if fast else 1
            self._asked = now
            return self._want

    def put(self, dues: list[float]) -> None:
        with self._lock:
            self._due = deque(sorted([*self._due, *dues]))

    def empty(self) -> int:
        """Forget every token; how many there were."""
        with self._lock:
            count = len(self._due)
            self._due.clear()
            self._want = 1
            return count
