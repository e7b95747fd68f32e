"""The limits of a running job: deadline, memory, lease and `stall_timeout`.

The supervisor checks them on every tick. The numbers are in the worker's scoreboard slot, so they hold without the master
and without the database. A broken limit becomes a stop request; the ladder does the rest.
"""

from __future__ import annotations

import time

from pgworkers.ipc.scoreboard import SlotJob, SlotState, StopReason
from pgworkers.linux import proc
from pgworkers.settings import Settings
from pgworkers.supervisor import stall_detector, suspend
from pgworkers.supervisor.ladder import StopRequest
from pgworkers.supervisor.stopper import kill_group
from pgworkers.supervisor.worker_record import WorkerRecord

#: The memory of a job that is within its limit is measured again after this many times the CPU time of the measurement.
MEASURE_PAUSE_FACTOR = 20
MAX_MEASURE_PAUSE_SECONDS = 1.0


def check_limits(worker: WorkerRecord, settings: Settings, now: float, exclusive_until: float) -> None:
    """Request a stop for a job that broke a limit, and shorten the graces of one that gets worse.

    `exclusive_until` is the time by which an exclusive job must be gone: the lease deadline minus a third of the lease. It
    must be dead before another host can get the lease.
    """
    running = worker.slot.read_job()
    key = running.key
    if running.state == SlotState.LEAVING and running.deadline and now * 1e9 > running.deadline:
        kill_group(worker, StopReason.KILL)  # its stop hooks hang
    if worker.suspended_at:
        suspend.keep_stopped(worker, running)
    if running.job == 0:
        return
    used = _memory_over_limit(worker, running, now)
    is_exclusive_time_over = running.is_running and worker.slot.is_exclusive and now >= exclusive_until
    known = worker.stop_requests.get(key)
    if used:
        worker.slot.memory_used = used if known is None else max(worker.slot.memory_used, used)
    if known is not None:
        if is_far_over_memory_limit(running, used):
            known.shorten(0.0, 0.0)
        elif is_exclusive_time_over:  # its graces may be longer than its lease
            known.shorten(0.0, settings.lease_duration / 6)
        return
    job_time = worker.suspended_at or now  # the deadline of a suspended job waits
    reason = find_broken_limit(int(job_time * 1e9), running, used)
    ask_grace, raise_grace = settings.ask_grace, settings.raise_grace
    if reason is StopReason.MEMORY:
        ask_grace = 0.0  # it is not asked first: it could use more memory in every second of grace
    elif is_exclusive_time_over:
        reason, ask_grace, raise_grace = StopReason.LEASE, 0.0, settings.lease_duration / 6
    elif (
        reason is StopReason.NONE
        and not worker.suspended_at
        and stall_detector.has_stalled_too_long(now, worker.life_signs, worker.slot.stall_timeout)
    ):
        reason = StopReason.STALL
    if reason is not StopReason.NONE:
        suspend.resume(worker, now)
        worker.stop_requests[key] = StopRequest(
            job=running.job,
            lease=running.lease,
            reason=reason,
            requested_at=now,
            ask_grace=ask_grace,
            raise_grace=raise_grace,
        )


def _memory_over_limit(worker: WorkerRecord, running: SlotJob, now: float) -> int:
    """Bytes used if they are more than the limit, else 0.

    A job with thousands of processes is measured less often, unless it is over its limit or is being stopped.
    """
    key = running.key
    if not running.memory_limit:
        return 0
    if now < worker.next_measure_at and key == worker.measured_job and key not in worker.stop_requests:
        return 0
    before = time.thread_time()
    used = proc.memory_over_limit(worker.pid, running.memory_limit)
    pause = min(MAX_MEASURE_PAUSE_SECONDS, (time.thread_time() - before) * MEASURE_PAUSE_FACTOR)
    worker.next_measure_at = now if used else now + pause
    worker.measured_job = key
    return used


def find_broken_limit(now: int, running: SlotJob, used: int) -> StopReason:
    """The limit that the running job has broken. `now` in nanoseconds, `used` in bytes."""
    if running.job == 0 or not running.is_running:
        return StopReason.NONE
    if running.deadline and now >= running.deadline:
        return StopReason.DEADLINE
    if running.memory_limit and used > running.memory_limit:
        return StopReason.MEMORY
    return StopReason.NONE


def is_far_over_memory_limit(running: SlotJob, used: int) -> bool:
    """True if a job that is being stopped uses so much memory that other processes suffer: its graces end."""
    return running.memory_limit > 0 and used > running.memory_limit * 3 // 2
