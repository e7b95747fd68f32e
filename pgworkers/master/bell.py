"""What wakes a task of the master: somebody who rings, or the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pgworkers.alarm import Alarm
from pgworkers.prompt import Prompt


class Bell:
    """One task waits, anybody rings. A bell that was rung while nobody waited is not waited for."""

    def __init__(self) -> None:
        self._rung = False
        self._waits: Prompt | None = None
        self._soon: asyncio.Handle | None = None
        self._alarm = Alarm(self._time)

    def touch(self) -> None:
        """As good as rung; the task goes on when somebody rings it now."""
        self._rung = True

    def ring(self) -> None:
        """The task goes on in the next turn of the loop: whoever rings is in the middle of something."""
        self._rung = True
        if self._waits is not None and self._soon is None:
            self._soon = self._waits.get_loop().call_soon(self.ring_now)

    def ring_now(self) -> None:
        """If it was rung, the task goes on within this call."""
        if self._rung and self._waits is not None:
            self._waits.set()

    async def rung(self, pause: Callable[[], float]) -> None:
        """Until it is rung, or so many seconds have passed."""
        if not self._rung:
            loop = asyncio.get_running_loop()
            self._alarm.set(loop, loop.time() + pause())
            self._waits = Prompt(loop)
            try:
                await self._waits
            finally:
                self._waits = None
                self._alarm.off()
                if self._soon is not None:
                    self._soon.cancel()
                    self._soon = None
        self._rung = False

    def _time(self) -> None:
        self._rung = True
        self.ring_now()
