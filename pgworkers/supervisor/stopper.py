"""Stop a running job: enter the request in its slot, and send signals.

Before a kill it freezes the worker to check that it still runs this job.

`ladder` decides which rung is due. This module acts.
"""

from __future__ import annotations

import signal

from pgworkers import clock
from pgworkers.ipc.scoreboard import SlotJob, StopReason
from pgworkers.linux import signals
from pgworkers.supervisor import ladder, suspend
from pgworkers.supervisor.ladder import Rung, SlotView, StopRequest
from pgworkers.supervisor.messages import StopJob
from pgworkers.supervisor.stack_dump import is_complete, request_dump
from pgworkers.supervisor.worker_record import WorkerRecord

DUMP_POLL_SECONDS = 0.005
#: A request for a job that never began here is forgotten after this time.
UNMET_REQUEST_TIMEOUT_SECONDS = 60


def request_stop(worker: WorkerRecord, order: StopJob, now: float) -> None:
    """Enter a stop request of the master.

    Its job may still be in the worker's socket: then the request waits for it.
    """
    key = (order.job, order.lease)
    is_kill = order.reason is StopReason.KILL
    known = worker.stop_requests.get(key)
    if known is not None:
        known.shorten(order.ask_grace, order.raise_grace, is_kill=is_kill)
        return
    suspend.resume(worker, now)
    worker.stop_requests[key] = StopRequest(
        job=order.job,
        lease=order.lease,
        reason=order.reason,
        requested_at=now,
        ask_grace=max(0.0, order.ask_grace),
        raise_grace=max(0.0, order.raise_grace),
        is_kill=is_kill,
    )
    running = worker.slot.read_job()
    if is_kill and running.is_running and running.key == key:
        return  # a handler that sees the request could end before the kill, and its process would stay
    worker.slot.request_stop(order.job, order.lease, order.reason, int(now * 1e9))


def step(worker: WorkerRecord, now: float) -> None:
    """Take every rung that is due for the stop requests of a worker."""
    if not worker.stop_requests:
        return
    seen = _continue_stopped_dump(worker, worker.slot.read_job())
    for key, request in list(worker.stop_requests.items()):
        request.was_running = request.was_running or ladder.applies_to(request, seen)
        is_unmet = not request.was_running and now - request.requested_at > UNMET_REQUEST_TIMEOUT_SECONDS
        if ladder.is_over(request, seen) or is_unmet:
            del worker.stop_requests[key]
            continue
        request.dump_checks += Rung.DUMP in request.rung_times
        while (rung := ladder.next_rung(now, request, seen)) is not None:
            request.rung_times[rung] = now
            if not _climb(worker, request, rung, now):
                return


def _continue_stopped_dump(worker: WorkerRecord, running: SlotJob) -> SlotView:
    """Continue a process that stopped itself before it could begin its dump.

    Returns what the ladder needs to know.
    """
    size, began = worker.dump.size(), worker.dump.death_start
    awaited = any(Rung.DUMP in request.rung_times for request in worker.stop_requests.values())
    if awaited and size == began and signals.is_stopped(worker.pid):
        signals.send_to_group(worker.pid, signal.SIGCONT)
    has_dumped = size > began and size == worker.dump_size_seen and is_complete(worker)
    worker.dump_size_seen = size
    return SlotView(
        job=running.job, lease=running.lease, is_running=running.is_running, has_dumped=has_dumped
    )


def _climb(worker: WorkerRecord, request: StopRequest, rung: Rung, now: float) -> bool:
    """False: the worker is dead or has gone on; look again at the next tick."""
    slot = worker.slot
    match rung:
        case Rung.ASK:
            slot.request_stop(request.job, request.lease, request.reason, int(now * 1e9))
        case Rung.RAISE:
            slot.raise_signal_sent_at = int(now * 1e9)
            # the worker's signal handler compares job and lease with the request
            signals.send(worker.pid, signal.SIGUSR1)
        case Rung.DUMP:
            request_dump(worker)
            return False
        case Rung.KILL:
            return _kill_if_still_running(worker, request)
    return True


def _kill_if_still_running(worker: WorkerRecord, request: StopRequest) -> bool:
    """SIGKILL to the group, unless the job has just ended.

    Between our look at the slot and the kill the worker could report, take the next order and begin it. So
    it is stopped first: a stopped process begins nothing. What the slot says then is still true when the
    kill arrives.
    """
    signals.stop_and_wait(worker.pid)
    running = worker.slot.read_job()
    now_seen = SlotView(job=running.job, lease=running.lease, is_running=running.is_running)
    if not ladder.applies_to(request, now_seen):
        signals.send(worker.pid, signal.SIGCONT)
        request.rung_times.pop(Rung.KILL, None)  # should it be the same job after all, the next tick kills it
        return False
    kill_group(worker, request.reason)
    return True


def kill_group(worker: WorkerRecord, reason: StopReason) -> None:
    """Send SIGKILL to the group, and to the pid as well: a handler may have moved its process to another group."""
    worker.kill_reason = reason
    worker.killed_at = worker.killed_at or clock.boottime_ns() / 1e9
    signals.send_to_group(worker.pid, signal.SIGKILL)
    signals.send(worker.pid, signal.SIGKILL)


def next_check_at(worker: WorkerRecord) -> float | None:
    """When this worker must be checked next, in seconds of CLOCK_BOOTTIME; None: at the next interval."""
    times = [due for request in worker.stop_requests.values() if (due := request.next_rung_at()) is not None]
    if (
        any(Rung.DUMP in request.rung_times for request in worker.stop_requests.values())
        or worker.dump_requests
    ):
        times.append(clock.boottime_ns() / 1e9 + DUMP_POLL_SECONDS)
    deadline = worker.slot.effective_deadline()
    if deadline and not times:
        times.append(deadline / 1e9)
    return min(times) if times else None
