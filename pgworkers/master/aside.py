"""Ends that cannot be written now: set aside, so that they hold up no other, and sent again later.

An operator who left a transaction open must not stop the host from writing the ends of its other jobs: a row that another
session has locked is skipped, and tried again soon. Nor must a trigger of the user's that raises: what it refuses is sent
again after ever longer pauses, for as long as this host lives. After that the lease runs out, and the job is rescued as one
of a lost host.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from pgworkers.clock import monotonic
from pgworkers.job.claim import Fence

#: Seconds until an end whose row is locked is sent again: the first pause, and the longest. The claim of another host that
#: read the job as ready locks its row for a moment.
LOCKED_FIRST = 0.01
LOCKED_MOST = 0.5

#: The same for an end that is refused.
FIRST = 1.0
MOST = 60.0


class HasFence(Protocol):
    @property
    def fence(self) -> Fence: ...


K = TypeVar("K", bound=HasFence)
V = TypeVar("V")


class Aside(Generic[K, V]):
    """What the database does not take now, each with the moment when it is sent again."""

    def __init__(self) -> None:
        self._waiting: dict[Fence, tuple[float, K, V]] = {}
        self._pauses: dict[Fence, float] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def knows(self) -> bool:
        """True if any of what is not written yet was set aside before."""
        return bool(self._pauses)

    def due_in(self) -> float | None:
        """Seconds until the next one is to be sent again; None: there is none."""
        if not self._waiting:
            return None
        return max(0.0, min(at for at, _, _ in self._waiting.values()) - monotonic())

    def fences(self) -> list[Fence]:
        return list(self._waiting)

    def put_locked(self, one: K, end: V) -> float:
        """Keep it until another session may have let go of its row; after how many seconds it is sent again."""
        return self._put(one, end, LOCKED_FIRST, LOCKED_MOST)

    def put_refused(self, one: K, end: V) -> float:
        """Keep what the database refused; after how many seconds it is sent again."""
        return self._put(one, end, FIRST, MOST)

    def _put(self, one: K, end: V, first: float, most: float) -> float:
        fence = one.fence
        pause = min(most, max(first, 2 * self._pauses.get(fence, 0.0)))
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
