"""A job this host holds the lease of, from the claim until its end is handed to the finisher."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

import msgspec

from pgworkers.clock import boottime, monotonic
from pgworkers.job.claim import Claimed, Fence
from pgworkers.job.renew import Deadline
from pgworkers.specs import TaskSpec

if TYPE_CHECKING:
    from pgworkers.master.crew import Worker


class Held(msgspec.Struct, eq=False):
    claimed: Claimed
    spec: TaskSpec
    since: float = msgspec.field(default_factory=monotonic)
    worker: Worker | None = None  # who has its order; None: it waits in the buffer
    expected: float = inf  # seconds that it should take; unknown: for ever
    began: float | None = None  # when its worker could begin it
    told: bool = False  # it has begun, and the fact was told
    wish: str | None = None  # why it must end: cancel, drain, lease, kill
    stalled: bool = False
    patient: bool = False  # its end may wait a few milliseconds for others
    then: Callable[[], None] | None = None  # called when its end is written
    stood: float = 0.0  # seconds it was suspended
    extended: float = 0.0  # seconds its handler asked for beyond its timeout
    moved_to: float | None = None  # its deadline, on CLOCK_BOOTTIME, if an operator moved it
    stood_before_move: float = 0.0  # seconds it had been suspended when that happened

    @property
    def key(self) -> tuple[int, int]:
        """Job and lease: what the processes of this host call an execution."""
        return self.claimed[:2]

    @property
    def fence(self) -> Fence:
        """What every write to the database names."""
        return self.claimed.fence

    @property
    def named(self) -> tuple[int, int, str, str, int]:
        """Job, lease, queue, task, attempt: what every fact about a job begins with."""
        job = self.claimed
        return job.id, job.lease, job.queue, job.task, job.attempt

    def timeout(self) -> float | None:
        """Seconds this attempt may take once it has begun."""
        return self.claimed.timeout if self.claimed.timeout is not None else self.spec.timeout

    def deadline(self) -> int:
        """When the whole job must be gone, in nanoseconds of CLOCK_BOOTTIME; 0: no such time."""
        if self.moved_to is not None:
            return max(1, int(self.moved_to * 1e9))
        left = self.claimed.remaining
        if left is None:
            return 0
        return max(1, int((boottime() + left - (monotonic() - self.since)) * 1e9))

    def left(self, now: float) -> float | None:
        """Seconds until the deadline of a job that has begun, as far as this process knows."""
        if self.began is None:
            return None
        if self.moved_to is not None:
            return self.moved_to + self._stood(now) - self.stood_before_move - boottime()
        own = self.timeout()
        ends = [self.began + own + self.extended] if own is not None else []
        if self.claimed.remaining is not None:
            ends.append(self.since + self.claimed.remaining)
        return min(ends) + self._stood(now) - now if ends else None

    def _stood(self, now: float) -> float:
        """Seconds it was suspended, up to now."""
        worker = self.worker
        return self.stood + (
            now - worker.since if worker is not None and worker.state == "suspended" else 0.0
        )

    def read_deadline(self, found: Deadline) -> bool:
        """Note the deadline that a renewal read. True: it was moved or removed, and this counts from now on.

        Without a deadline of the whole job, the attempt's own timeout counts again.
        """
        if found.epoch == self.claimed.deadline_epoch:
            return False
        left = None if found.remaining is None or found.remaining == inf else max(0.0, found.remaining)
        now = monotonic()
        self.claimed = self.claimed._replace(
            deadline_epoch=found.epoch, remaining=None if left is None else left + now - self.since
        )
        self.moved_to = None if left is None else boottime() + left
        self.stood_before_move = self._stood(now)
        return True

    def attempt_deadline(self) -> int:
        """When this attempt must be gone, in nanoseconds of CLOCK_BOOTTIME; 0: no such time."""
        if self.moved_to is not None:
            return self.deadline()
        left = self.left(monotonic()) if self.began is not None else self.timeout()
        return 0 if left is None else max(1, int((boottime() + left) * 1e9))

    def past_deadline(self) -> bool:
        if self.moved_to is not None:
            return boottime() >= self.moved_to
        left = self.claimed.remaining
        return left is not None and monotonic() - self.since >= left
