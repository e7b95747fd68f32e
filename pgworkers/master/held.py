"""A job this host holds the lease of, from the claim until its end is handed to the finisher."""

from __future__ import annotations

from dataclasses import dataclass, field

from pgworkers.clock import monotonic
from pgworkers.job.claim import Claimed
from pgworkers.specs import TaskSpec


@dataclass(slots=True, eq=False)
class Held:
    claimed: Claimed
    spec: TaskSpec
    since: float = field(default_factory=monotonic)
    started: float | None = None  # when the order was sent
    wish: str | None = None  # why it must end: cancel, drain, lease, kill
    stalled: bool = False

    @property
    def key(self) -> tuple[int, int]:
        return self.claimed.id, self.claimed.lease

    @property
    def named(self) -> tuple[int, int, str, str, int]:
        """Job, lease, queue, task, attempt: what every fact about a job begins with."""
        job = self.claimed
        return job.id, job.lease, job.queue, job.task, job.attempt

    def timeout(self) -> float | None:
        """Seconds this attempt may take: its own timeout, or what is left of the whole job's deadline."""
        own = self.claimed.timeout if self.claimed.timeout is not None else self.spec.timeout
        left = self.claimed.remaining
        if left is None:
            return own
        left = max(0.0, left - (monotonic() - self.since))
        return left if own is None else min(own, left)

    def past_deadline(self) -> bool:
        left = self.claimed.remaining
        return left is not None and monotonic() - self.since >= left
