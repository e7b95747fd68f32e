"""Suspend a job: its whole group is stopped (SIGSTOP), its lease is kept, its deadline waits.

A suspension belongs to one job *and lease*. The worker is stopped before its slot is read again: between the reading and the
signal it could report and start its next job, which would then stay stopped. A stop request for a suspended job continues it
first, so that the handler can react. A job that is being stopped is not suspended.
"""

from __future__ import annotations

import signal
from functools import partial

from pgworkers.ipc.scoreboard import SlotJob
from pgworkers.linux import signals
from pgworkers.supervisor.messages import SuspendAnswered, SuspendJob
from pgworkers.supervisor.worker_record import WorkerRecord


def execute(worker: WorkerRecord | None, order: SuspendJob, now: float) -> SuspendAnswered:
    """Do it, if the worker still has this job and lease."""
    answer = partial(SuspendAnswered, slot=order.slot, incarnation=order.incarnation, token=order.token)
    key = (order.job, order.lease)
    running = worker.slot.read_job() if worker is not None else None
    if worker is None or running is None or running.key != key:
        return answer(is_done=False, text="the job no longer runs in this worker")
    if not running.is_running:
        return answer(is_done=False, text="its handler has just ended")
    if not order.should_suspend:
        was_suspended = bool(worker.suspended_at)
        resume(worker, now)
        return answer(is_done=True, text="resumed" if was_suspended else "it was not suspended")
    if worker.suspended_at:
        return answer(is_done=True, text="it was suspended already")
    if key in worker.stop_requests:
        return answer(is_done=False, text="it is being stopped")
    signals.stop_and_wait(worker.pid)
    if not _is_running_job(worker.slot.read_job(), key):
        signals.send(worker.pid, signal.SIGCONT)
        return answer(is_done=False, text="its handler has just ended")
    worker.suspended_at, worker.suspended_job = now, key
    signals.send_to_group(worker.pid, signal.SIGSTOP)
    return answer(is_done=True, text="suspended")


def keep_stopped(worker: WorkerRecord, running: SlotJob) -> None:
    """Stop a suspended group again that another process continued, unless its job has ended meanwhile."""
    if not _is_running_job(running, worker.suspended_job):
        worker.suspended_at = 0.0
    elif not signals.is_stopped(worker.pid):
        signals.send_to_group(worker.pid, signal.SIGSTOP)


def resume(worker: WorkerRecord, now: float) -> None:
    """Continue a suspended group.

    A stopped worker does not write its slot, so the supervisor may move the deadline.
    """
    if not worker.suspended_at:
        return
    stopped_ns = int((now - worker.suspended_at) * 1e9)
    worker.suspended_at = 0.0
    if _is_running_job(worker.slot.read_job(), worker.suspended_job):
        if worker.slot.deadline:
            worker.slot.deadline += stopped_ns
        if worker.slot.override_job and worker.slot.override_deadline:
            worker.slot.override_deadline += stopped_ns
    signals.send_to_group(worker.pid, signal.SIGCONT)


def move_deadline(worker: WorkerRecord, job: int, lease: int, at: int, now: float) -> None:
    """Give an execution another deadline, in nanoseconds; 0: none.

    The clock of a suspended job stands at the beginning of its suspension, and `resume` adds the whole suspension. The part
    of it that is over before the move must not count, so it is subtracted here.
    """
    if at and worker.suspended_at:
        at = max(1, at - int((now - worker.suspended_at) * 1e9))
    worker.slot.set_deadline_override(job, lease, at)


def _is_running_job(running: SlotJob, key: tuple[int, int]) -> bool:
    """True if the handler of this job and lease has the process."""
    return running.key == key and running.is_running
