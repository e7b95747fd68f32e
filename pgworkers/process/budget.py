"""The restart budget of a child that keeps dying (OTP's intensity and period, with a growing pause). Pure.

A child that had come as far as ready is replaced at once, but not more than ten times a second. One that died
before it was ready is replaced at once `intensity` times within `period`; after that the pause doubles up to `cap`. The
budget never gives up: a fixed deploy must be able to start without an operator.
"""

from __future__ import annotations

from collections import deque

RATE = 0.1


class Budget:
    def __init__(self, intensity: int, period: float, cap: float) -> None:
        self._intensity = intensity
        self._period = period
        self._cap = cap
        self._failures: deque[float] = deque()
        self._pause = 0.0
        self._last = float("-inf")

    @property
    def deaths(self) -> int:
        """Failed starts within the period."""
        return len(self._failures)

    def died(self, now: float, was_ready: bool) -> float:
        """Seconds until the next start."""
        since, self._last = now - self._last, now
        if was_ready:
            self._failures.clear()
            self._pause = 0.0
            return 0.0 if since >= RATE else RATE
        while self._failures and now - self._failures[0] > self._period:
            self._failures.popleft()
        self._failures.append(now)
        if len(self._failures) < self._intensity and self._pause == 0.0:
            # Even the first ones are spaced, so that `intensity` starts spread over a fair part of the period.
            return min(self._cap, 0.5 * 2 ** (len(self._failures) - 1))
        self._pause = min(self._cap, max(self._pause * 2, self._period / self._intensity))
        return self._pause
