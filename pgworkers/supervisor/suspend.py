"""Suspending a job: its whole group stands still (SIGSTOP), its lease is kept, its deadline waits.

A suspension belongs to one job *and lease*. The worker is stopped before we look whether it still has this job: between a
look and a signal it could report and begin the next one, which nobody would ever let go on. A wish to stop a suspended job
lets it go on first, so that the ladder finds a handler that can listen; one that is being stopped is not suspended.
"""

from __future__ import annotations

import signal
import time
from functools import partial

from pgworkers.process import signals, tree
from pgworkers.process.scoreboard import Running, State
from pgworkers.supervisor.member import Worker
from pgworkers.supervisor.messages import Suspend, Suspended

_STOP_STEP = 0.001
_STOP_TRIES = 50


def obey(worker: Worker | None, order: Suspend, now: float) -> Suspended:
    """Do it, if the worker still has this job and lease."""
    said = partial(Suspended, order.slot, order.incarnation, order.token)
    key = (order.job, order.lease)
    running = worker.slot.running() if worker is not None else None
    if worker is None or running is None or (running.job, running.lease) != key:
        return said(False, "the job no longer runs in this worker")
    if running.state != State.RUNNING:
        return said(False, "its handler has just ended")
    if not order.suspend:
        was = bool(worker.suspended)
        go_on(worker, now)
        return said(True, "resumed" if was else "it was not suspended")
    if worker.suspended:
        return said(True, "it was suspended already")
    if key in worker.climbs:
        return said(False, "it is being stopped")
    stand(worker)
    if not _has(worker.slot.running(), key):
        signals.send(worker.pid, signal.SIGCONT)
        return said(False, "its handler has just ended")
    worker.suspended, worker.suspended_key = now, key
    signals.send_group(worker.pid, signal.SIGSTOP)
    return said(True, "suspended")


def hold(worker: Worker, running: Running) -> None:
    """A suspended group that somebody else continued: it stands still again, unless its job has ended meanwhile."""
    if not _has(running, worker.suspended_key):
        worker.suspended = 0.0
    elif not stands(worker):
        signals.send_group(worker.pid, signal.SIGSTOP)


def go_on(worker: Worker, now: float) -> None:
    """Continue a suspended group. While it stood still nobody wrote its slot, so the deadline is ours to move."""
    if not worker.suspended:
        return
    stood = int((now - worker.suspended) * 1e9)
    worker.suspended = 0.0
    if _has(worker.slot.running(), worker.suspended_key):
        if worker.slot.deadline:
            worker.slot.deadline += stood
        if worker.slot.moved_job and worker.slot.moved_deadline:
            worker.slot.moved_deadline += stood
    signals.send_group(worker.pid, signal.SIGCONT)


def move_deadline(worker: Worker, job: int, lease: int, at: int, now: float) -> None:
    """Give an execution another deadline, in nanoseconds; 0: none.

    The clock of a suspended job stands at the beginning of its suspension, and `go_on` adds the whole suspension. The part
    of it that is over before the move must not count, so it is subtracted here.
    """
    if at and worker.suspended:
        at = max(1, at - int((now - worker.suspended) * 1e9))
    worker.slot.move_deadline(job, lease, at)


def _has(running: Running, key: tuple[int, int]) -> bool:
    """Does the handler of this job and lease have the process?"""
    return (running.job, running.lease) == key and running.state == State.RUNNING


def stand(worker: Worker) -> None:
    """Stop a worker and wait until it stands: what its slot says then stays true. Its children go on."""
    signals.send(worker.pid, signal.SIGSTOP)
    for _ in range(_STOP_TRIES):
        found = tree.stat(worker.pid)
        if found is None or found.state in "TtZXx":
            return
        time.sleep(_STOP_STEP)


def stands(worker: Worker) -> bool:
    found = tree.stat(worker.pid)
    return found is not None and found.state in "Tt"
