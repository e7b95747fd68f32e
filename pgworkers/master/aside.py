"""Ends whose row somebody else keeps locked: set aside, so that they hold up no other, and looked at now and then.

An operator who left a transaction open must not stop the host from writing the ends of its other jobs. A batch that waited
in vain is sorted into those whose rows are free and those that must wait; nobody waits for a lock twice.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import psycopg

from pgworkers.clock import monotonic
from pgworkers.job.locked import locked
from pgworkers.master.line import Asker, LineDown

#: Seconds between two looks at what was set aside.
AGAIN = 0.5

_WAITED = (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable)


class HasKey(Protocol):
    @property
    def key(self) -> tuple[int, int]: ...


K = TypeVar("K", bound=HasKey)
V = TypeVar("V")


def waited_in_vain(error: LineDown) -> bool:
    """Did the statement fail because of a lock (or was only slow), and not because of the connection?"""
    return isinstance(error.__cause__, _WAITED)


class Aside(Generic[K, V]):
    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._look = 0.0
        self.waiting: list[tuple[K, V]] = []

    async def sort(self, batch: list[tuple[K, V]]) -> list[tuple[K, V]]:
        """Set aside what is locked; the rest."""
        held = await self._asker.ask(locked(one.key[0] for one, _ in batch))
        self.waiting += [pair for pair in batch if pair[0].key[0] in held]
        self._look = monotonic() + AGAIN
        return [pair for pair in batch if pair[0].key[0] not in held]

    async def back(self) -> list[tuple[K, V]]:
        """What is free again, if it is time to look."""
        if not self.waiting or monotonic() < self._look:
            return []
        batch, self.waiting = self.waiting, []
        try:
            return await self.sort(batch)
        except BaseException:
            self.waiting = batch + self.waiting
            raise
