"""One timer of the loop for many waits.

Nearly all waits are over before their time is: to make a timer for each, and to take it away again, would be most of what
waiting costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """Calls when the time has come that was set last. The timer of an earlier time is left to come, and looks then."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._until: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        self._until = until
        if self._timer is None or self._timer.when() > until:
            self._start(loop, until)

    def off(self) -> None:
        """It is not waited for any more."""
        self._until = None

    def stop(self) -> None:
        """And the loop forgets it."""
        self._until = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(until, self._came, loop)

    def _came(self, loop: asyncio.AbstractEventLoop) -> None:
        until, self._timer = self._until, None
        if until is None:
            return
        if loop.time() < until:
            self._start(loop, until)
        else:
            self._until = None
            self._then()
