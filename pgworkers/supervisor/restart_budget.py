"""The restart budget of children that keep dying (OTP's intensity and period, with a growing pause). Pure.

A child that had become ready is replaced at once, but not more than ten times a second. Each one that died before it was
ready doubles the pause, and there are never more than `intensity` such starts in one `period`. No pause is longer than
`cap`. The budget never gives up: a repaired deployment must start without an operator.
"""

from __future__ import annotations

from collections import deque

MIN_RESTART_SECONDS = 0.1


class RestartBudget:
    def __init__(self, intensity: int, period: float, cap: float) -> None:
        self._intensity = intensity
        self._period = period
        self._cap = cap
        self._failures: deque[float] = deque()
        self._failed_starts = 0
        self._last = float("-inf")
        self._unused_rounds = 0
        self._unused_until = float("-inf")

    @property
    def unused_rounds(self) -> int:
        """Successive rounds in which a child left at once without a job."""
        return self._unused_rounds

    def record_unused(self, now: float) -> float:
        """Seconds until the next start, after a child that left by itself, at once and without a job.

        The first may be replaced at once. Those that leave during a pause belong to one round. A `period` without any
        ends the row.
        """
        if now < self._unused_until:
            return self._unused_until - now
        if now - self._unused_until >= self._period:
            self._unused_rounds = 0
        self._unused_rounds += 1
        pause = (
            0.0
            if self._unused_rounds == 1
            else min(self._cap, MIN_RESTART_SECONDS * 2.0 ** min(self._unused_rounds - 2, 30))
        )
        self._unused_until = now + max(pause, MIN_RESTART_SECONDS)
        return pause

    @property
    def failed_starts(self) -> int:
        """Number of successive starts that failed."""
        return self._failed_starts

    def record_ready(self) -> None:
        """A child is ready: what was broken works again."""
        self._failures.clear()
        self._failed_starts = 0

    def record_death(self, now: float, was_ready: bool) -> float:
        """Seconds until the next start."""
        since, self._last = now - self._last, now
        if was_ready:
            return 0.0 if since >= MIN_RESTART_SECONDS else MIN_RESTART_SECONDS
        while self._failures and now - self._failures[0] >= self._period:
            self._failures.popleft()
        self._failures.append(now)
        self._failed_starts += 1
        # 1, 2, 4, 8 seconds for a period of 30: the first five starts fill it
        pause = self._period / 30 * 2.0 ** min(self._failed_starts - 1, 30)
        if len(self._failures) >= self._intensity:
            oldest = self._failures[-self._intensity]
            pause = max(pause, oldest + self._period - now)
        return min(self._cap, pause)
