"""Results that cannot be written now, and when each is sent again. Reads the clock, and is pure otherwise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from pgworkers.clock import monotonic
from pgworkers.job.model import Fence

#: Seconds until a result whose row is locked is sent again: the first pause, and the longest. The claim of another host that
#: read the job as ready locks its row for a moment.
MIN_LOCKED_RETRY_SECONDS = 0.01
MAX_LOCKED_RETRY_SECONDS = 0.5

#: The same for a result that is refused.
MIN_REFUSED_RETRY_SECONDS = 1.0
MAX_REFUSED_RETRY_SECONDS = 60.0


class HasFence(Protocol):
    @property
    def fence(self) -> Fence: ...


K = TypeVar("K", bound=HasFence)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class DeferredResult(Generic[K, V]):
    due_at: float  # when it is sent again
    job: K
    result: V


class DeferredResults(Generic[K, V]):
    """Results that cannot be written now, each with the time at which it is sent again."""

    def __init__(self) -> None:
        self._waiting: dict[Fence, DeferredResult[K, V]] = {}
        self._pauses: dict[Fence, float] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def has_retries(self) -> bool:
        """True if any result that is not written yet was deferred before."""
        return bool(self._pauses)

    def seconds_until_due(self) -> float | None:
        """Seconds until the next one is due; None: there is none."""
        if not self._waiting:
            return None
        return max(0.0, min(one.due_at for one in self._waiting.values()) - monotonic())

    def fences(self) -> list[Fence]:
        return list(self._waiting)

    def defer_locked(self, job: K, result: V) -> float:
        """Keep a result whose row another session has locked. Returns the seconds until it is sent again."""
        return self._defer(job, result, MIN_LOCKED_RETRY_SECONDS, MAX_LOCKED_RETRY_SECONDS)

    def defer_refused(self, job: K, result: V) -> float:
        """Keep a result that the database refused. Returns the seconds until it is sent again."""
        return self._defer(job, result, MIN_REFUSED_RETRY_SECONDS, MAX_REFUSED_RETRY_SECONDS)

    def _defer(self, job: K, result: V, first: float, most: float) -> float:
        fence = job.fence
        pause = min(most, max(first, 2 * self._pauses.get(fence, 0.0)))
        self._pauses[fence] = pause
        self._waiting[fence] = DeferredResult(monotonic() + pause, job, result)
        return pause

    def get(self, fence: Fence) -> K | None:
        found = self._waiting.get(fence)
        return found.job if found is not None else None

    def replace(self, job: K) -> None:
        """Change what is deferred, but not when it is sent again."""
        self._waiting[job.fence] = replace(self._waiting[job.fence], job=job)

    def pop(self, fence: Fence) -> K | None:
        """Remove and return what is deferred, whether it is due or not."""
        found = self._waiting.pop(fence, None)
        return found.job if found is not None else None

    def pop_due(self) -> list[tuple[K, V]]:
        """Remove and return the results that are due."""
        now = monotonic()
        due = [(fence, one) for fence, one in self._waiting.items() if one.due_at <= now]
        for fence, _ in due:
            del self._waiting[fence]
        return [(one.job, one.result) for _, one in due]

    def forget(self, fence: Fence) -> None:
        """Forget a result that is written, or whose job this host has lost."""
        self._pauses.pop(fence, None)
