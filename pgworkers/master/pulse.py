"""The host's pulse: everything that is looked at again and again, in one wake-up. Nothing here may wait.

A wake-up costs a process that sleeps more than what it does then, so there is one for all of it: the title, zombies, silent
supervisors, the service manager's watchdog, sums of log lines, and how late the loop is. It is quick while something
happens and slow while nothing does. What must not wait for it wakes the loop by itself: orders, reports, deaths, notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pgworkers.clock import monotonic
from pgworkers.facts import Facts
from pgworkers.sightings import LoopWoke

QUICK = 0.25
SLOW = 1.0


def pause(calm: bool, watchdog: float | None) -> float:
    """Seconds until the next beat; a watchdog is fed three times within its patience. Pure."""
    step = SLOW if calm else QUICK
    return step if watchdog is None else min(step, watchdog / 3)


class Pulse:
    def __init__(self, facts: Facts, calm: Callable[[], bool], watchdog: float | None) -> None:
        self._facts = facts
        self._calm = calm
        self._watchdog = watchdog
        self._rounds: list[Callable[[], None]] = []

    def add(self, look: Callable[[], None]) -> None:
        """Something that is done with every beat."""
        self._rounds.append(look)

    async def run(self) -> None:
        while True:
            for look in self._rounds:
                look()
            step = pause(self._calm(), self._watchdog)
            due = monotonic() + step
            await asyncio.sleep(step)
            self._facts.tell(LoopWoke(monotonic() - due))  # what blocks the loop delays every job
