"""Ends that cannot be written now: set aside, so that they hold up no other, and sent again later.

An operator who left a transaction open must not stop the host from writing the ends of its other jobs. A batch that waited
in vain is sorted into those whose rows are free and those that must wait; nobody waits for a lock twice. Nor must a trigger
of the user's that raises: what it refuses is sent again after ever longer pauses, for as long as this host lives. After that
the lease runs out, and the job is rescued as one of a lost host.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from pgworkers.clock import monotonic
from pgworkers.job.claim import Fence
from pgworkers.job.locked import locked
from pgworkers.master.line import Asker

#: Seconds between two looks at what was set aside.
AGAIN = 0.5

#: Seconds until a refused end is sent again: the first pause, and the longest.
FIRST = 1.0
MOST = 60.0


class HasFence(Protocol):
    @property
    def fence(self) -> Fence: ...


K = TypeVar("K", bound=HasFence)
V = TypeVar("V")


class Aside(Generic[K, V]):
    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._look = 0.0
        self.waiting: list[tuple[K, V]] = []  # also while they are looked at: they are ours

    async def sort(self, batch: list[tuple[K, V]]) -> list[tuple[K, V]]:
        """Set aside what is locked; answers the rest."""
        free, held = await self._sorted(batch)
        self.waiting += held
        return free

    async def back(self) -> list[tuple[K, V]]:
        """What is free again, if it is time to look."""
        if not self.waiting or monotonic() < self._look:
            return []
        free, self.waiting = await self._sorted(self.waiting)
        return free

    async def _sorted(self, batch: list[tuple[K, V]]) -> tuple[list[tuple[K, V]], list[tuple[K, V]]]:
        """Those whose rows are free, and those whose are not."""
        held = await self._asker.ask(locked(one.fence.id for one, _ in batch))
        self._look = monotonic() + AGAIN
        free = [pair for pair in batch if pair[0].fence.id not in held]
        return free, [pair for pair in batch if pair[0].fence.id in held]


class Refused(Generic[K, V]):
    """What the database refused, each with the moment when it is sent again."""

    def __init__(self) -> None:
        self._waiting: dict[Fence, tuple[float, K, V]] = {}
        self._pauses: dict[Fence, float] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def known(self) -> bool:
        """Was any of what is not written yet refused before?"""
        return bool(self._pauses)

    def fences(self) -> list[Fence]:
        return list(self._waiting)

    def put(self, one: K, end: V) -> float:
        """Keep it; after how many seconds it is sent again."""
        fence = one.fence
        pause = min(MOST, 2 * self._pauses[fence]) if fence in self._pauses else FIRST
        self._pauses[fence] = pause
        self._waiting[fence] = (monotonic() + pause, one, end)
        return pause

    def back(self) -> list[tuple[K, V]]:
        """What is to be sent again now."""
        now = monotonic()
        due = [fence for fence, (at, _, _) in self._waiting.items() if at <= now]
        return [self._waiting.pop(fence)[1:] for fence in due]

    def forget(self, fence: Fence) -> None:
        """It is written, or is no longer ours."""
        self._pauses.pop(fence, None)
