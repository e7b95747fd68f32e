"""Suspending a job: its whole group stands still (SIGSTOP), its lease is kept, its deadline waits.

A wish to stop a suspended job lets it go on first, so that the ladder finds a handler that can listen.
"""

from __future__ import annotations

import signal

from pgworkers.process import signals
from pgworkers.process.scoreboard import State
from pgworkers.supervisor.member import Worker
from pgworkers.supervisor.messages import Suspend, Suspended


def obey(worker: Worker | None, order: Suspend, now: float) -> Suspended:
    """Do it, if the worker still has this job and lease."""
    running = worker.slot.running() if worker is not None else None
    if worker is None or running is None or (running.job, running.lease) != (order.job, order.lease):
        return Suspended(order.slot, order.token, False, "the job no longer runs in this worker")
    if running.state != State.RUNNING:
        return Suspended(order.slot, order.token, False, "its handler has just ended")
    if order.suspend:
        if worker.suspended:
            return Suspended(order.slot, order.token, True, "it was suspended already")
        worker.suspended = now
        signals.send_group(worker.pid, signal.SIGSTOP)
        return Suspended(order.slot, order.token, True, "suspended")
    if not worker.suspended:
        return Suspended(order.slot, order.token, True, "it was not suspended")
    go_on(worker, now)
    return Suspended(order.slot, order.token, True, "resumed")


def go_on(worker: Worker, now: float) -> None:
    """Continue a suspended group. While it stood still nobody wrote its slot, so the deadline is ours to move."""
    if not worker.suspended:
        return
    stood = int((now - worker.suspended) * 1e9)
    worker.suspended = 0.0
    if worker.slot.deadline:
        worker.slot.deadline += stood
    signals.send_group(worker.pid, signal.SIGCONT)
