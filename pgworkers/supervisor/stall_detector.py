"""Decide whether a worker is stuck: it neither sends heartbeats nor uses CPU.

A worker that is stuck for longer than its job allows is stopped: job_limits.py requests that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pgworkers.ipc.scoreboard import SlotState
from pgworkers.linux import proc
from pgworkers.settings import Settings
from pgworkers.supervisor.messages import StallChanged
from pgworkers.worker.heartbeat import IDLE_BEAT_FACTOR

if TYPE_CHECKING:
    from pgworkers.supervisor.worker_record import WorkerRecord


def check_worker(worker: WorkerRecord, settings: Settings, now: float) -> StallChanged | None:
    """The change, if the worker has just stalled or just resumed."""
    slot = worker.slot
    is_idle = slot.state == SlotState.IDLE
    stall_after = stall_after_seconds(settings.heartbeat_interval * (IDLE_BEAT_FACTOR if is_idle else 1))
    sign = slot.beat_count + slot.started_at  # starting a job is a sign of life as well
    if is_idle and worker.life_signs.is_recent(now, sign, stall_after):
        return None
    found = proc.read_stat(worker.pid)
    if found is None or found.state == "Z" or worker.suspended_at:
        return None
    if not slot.beat_count and found.state not in "Tt":
        return None  # it has no heartbeat yet
    has_stalled = worker.life_signs.update(now, sign, found.cpu_ticks, stall_after, is_idle=is_idle)
    if has_stalled is None:
        return None
    running = slot.read_job()
    return StallChanged(
        slot=worker.index,
        incarnation=worker.incarnation,
        job=running.job,
        lease=running.lease,
        is_stalled=has_stalled,
    )


def stall_after_seconds(heartbeat: float) -> float:
    """How long a worker may neither beat nor use CPU before it counts as stalled."""
    return max(2.0, 3 * heartbeat)


def has_stalled_too_long(now: float, life_signs: LifeSigns, limit: int) -> bool:
    """True if a stalled worker has shown no sign of life for longer than its job allows.

    `limit` in nanoseconds. 0: the job may stall for ever.
    """
    return limit > 0 and life_signs.is_stalled and now - life_signs.last_sign_at >= limit / 1e9


class LifeSigns(msgspec.Struct, eq=False):
    """The last sign of life of one worker: its beat, or else its CPU time.

    A C extension that holds the GIL stops the beat but uses CPU; a handler that sleeps uses none but its
    heartbeat thread beats. Neither is stalled. A worker that does neither is stopped, swapped out or
    deadlocked.
    """

    beat_count: int = -1
    cpu_ticks: int = -1  # -1: not asked for since the last beat
    last_sign_at: float = 0.0
    is_stalled: bool = False

    def is_recent(self, now: float, beat_count: int, stall_after: float) -> bool:
        """True if the beat of an idle worker is not overdue. Then its CPU time need not be read."""
        if beat_count != self.beat_count and not self.is_stalled:
            self.beat_count, self.cpu_ticks, self.last_sign_at = beat_count, -1, now
        return not self.is_stalled and now - self.last_sign_at < stall_after / 2

    def update(
        self, now: float, beat_count: int, cpu_ticks: int, stall_after: float, *, is_idle: bool = False
    ) -> bool | None:
        """True: it has just stalled. False: it has just resumed. None: no change."""
        if self.cpu_ticks < 0 and beat_count == self.beat_count:
            self.cpu_ticks = cpu_ticks
            if not is_idle:
                self.last_sign_at = now  # it was idle until now, and its last beat may be old
        if (beat_count, cpu_ticks) != (self.beat_count, self.cpu_ticks):
            self.beat_count, self.cpu_ticks, self.last_sign_at = beat_count, cpu_ticks, now
            if self.is_stalled:
                self.is_stalled = False
                return False
        elif not self.is_stalled and now - self.last_sign_at >= stall_after:
            self.is_stalled = True
            return True
        return None
