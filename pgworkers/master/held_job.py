"""A job that this host holds, from its claim until its result is written."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

import msgspec

from pgworkers.clock import boottime, monotonic
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.job.hosts import ChangedDeadline
from pgworkers.job.model import ClaimedJob, Fence
from pgworkers.specs import TaskSpec

if TYPE_CHECKING:
    from pgworkers.master.worker_channel import WorkerChannel


class HeldJob(msgspec.Struct, eq=False):
    job: ClaimedJob
    task: TaskSpec
    claimed_at_monotonic: float = msgspec.field(default_factory=monotonic)
    worker: WorkerChannel | None = None  # the worker that has its order; None: it waits in the buffer
    expected_seconds: float = inf  # inf: unknown
    began_at: float | None = None  # when its worker could start it
    has_emitted_start: bool = False  # it has started, and that was emitted
    stop_reason: StopReason | None = None  # why it must stop; None: it may go on
    is_stalled: bool = False
    may_delay_write: bool = False  # its result may wait a few milliseconds for others
    on_written: Callable[[], None] | None = None  # called when its result is written
    suspended_seconds: float = 0.0  # seconds it was suspended
    extended_seconds: float = 0.0  # seconds its handler asked for beyond its timeout
    moved_deadline: float | None = None  # its deadline, on CLOCK_BOOTTIME, if an operator moved it
    suspended_before_move: float = 0.0  # seconds it had been suspended when that happened

    @property
    def key(self) -> tuple[int, int]:
        """Job and lease: they identify an execution among the processes of this host."""
        return self.job.id, self.job.lease

    @property
    def fence(self) -> Fence:
        """What every write to the database is guarded by."""
        return self.job.fence

    @property
    def event_fields(self) -> tuple[int, int, str, str, int]:
        """The first fields of every event about a job: job, lease, queue, task, attempt."""
        job = self.job
        return job.id, job.lease, job.queue, job.task, job.attempt

    def timeout_seconds(self) -> float | None:
        """Seconds this attempt may take once it has begun."""
        return self.job.timeout_seconds if self.job.timeout_seconds is not None else self.task.timeout

    def job_deadline_ns(self) -> int:
        """When the whole job must be gone, in nanoseconds of CLOCK_BOOTTIME; 0: no such time."""
        if self.moved_deadline is not None:
            return max(1, int(self.moved_deadline * 1e9))
        left = self.job.seconds_to_deadline
        if left is None:
            return 0
        return max(1, int((boottime() + left - (monotonic() - self.claimed_at_monotonic)) * 1e9))

    def seconds_left(self, now: float) -> float | None:
        """Seconds until the deadline of a job that has begun, as far as this process knows."""
        if self.began_at is None:
            return None
        if self.moved_deadline is not None:
            return self.moved_deadline + self._total_suspended(now) - self.suspended_before_move - boottime()
        own = self.timeout_seconds()
        deadlines = [self.began_at + own + self.extended_seconds] if own is not None else []
        if self.job.seconds_to_deadline is not None:
            deadlines.append(self.claimed_at_monotonic + self.job.seconds_to_deadline)
        return min(deadlines) + self._total_suspended(now) - now if deadlines else None

    def _total_suspended(self, now: float) -> float:
        """Seconds it was suspended, up to now."""
        worker = self.worker
        return self.suspended_seconds + (
            now - worker.since if worker is not None and worker.is_suspended else 0.0
        )

    def update_deadline(self, found: ChangedDeadline) -> bool:
        """Apply the deadline that a renewal has read. True: it was moved or removed.

        Without a deadline of the whole job, the attempt's own timeout counts again.
        """
        if found.deadline_epoch == self.job.deadline_epoch:
            return False
        left = (
            None
            if found.seconds_to_deadline is None or found.seconds_to_deadline == inf
            else max(0.0, found.seconds_to_deadline)
        )
        now = monotonic()
        self.job = self.job._replace(
            deadline_epoch=found.deadline_epoch,
            seconds_to_deadline=None if left is None else left + now - self.claimed_at_monotonic,
        )
        self.moved_deadline = None if left is None else boottime() + left
        self.suspended_before_move = self._total_suspended(now)
        return True

    def attempt_deadline_ns(self) -> int:
        """When this attempt must have ended, in nanoseconds of CLOCK_BOOTTIME; 0: no limit."""
        if self.moved_deadline is not None:
            return self.job_deadline_ns()
        left = self.seconds_left(monotonic()) if self.began_at is not None else self.timeout_seconds()
        return 0 if left is None else max(1, int((boottime() + left) * 1e9))

    def is_past_deadline(self) -> bool:
        if self.moved_deadline is not None:
            return boottime() >= self.moved_deadline
        left = self.job.seconds_to_deadline
        return left is not None and monotonic() - self.claimed_at_monotonic >= left
