"""Doing what `ladder` and `watch` decided: writing wishes, sending signals, looking twice before a kill."""

from __future__ import annotations

import signal

from pgworkers import clock
from pgworkers.ipc.scoreboard import SlotJob, SlotState, StopReason
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
    """A wish of the master. It may be for a job that is still in the worker's socket: it waits for it then."""
    key = (order.job, order.lease)
    hard = order.reason == "kill"
    known = worker.stop_requests.get(key)
    if known is not None:
        known.shorten(order.ask_grace, order.raise_grace, is_kill=hard)
        return
    suspend.resume(worker, now)
    graces = max(0.0, order.ask_grace), max(0.0, order.raise_grace)
    worker.stop_requests[key] = StopRequest(*key, order.reason, now, *graces, is_kill=hard)
    running = worker.slot.read_job()
    if hard and running.state == SlotState.RUNNING and (running.job, running.lease) == key:
        return  # a handler that hears of its kill could end before it, and its process would stay
    worker.slot.request_stop(*key, _reason(order.reason), int(now * 1e9))


def _reason(word: str) -> int:
    return StopReason.__members__.get(word.upper(), StopReason.KILL)


def step(worker: WorkerRecord, now: float) -> None:
    """Climb as far as is due."""
    if not worker.stop_requests:
        return
    seen = _observe(worker, worker.slot.read_job())
    for key, climb in list(worker.stop_requests.items()):
        climb.was_running = climb.was_running or ladder.applies_to(climb, seen)
        is_unmet = not climb.was_running and now - climb.requested_at > UNMET_REQUEST_TIMEOUT_SECONDS
        if ladder.is_over(climb, seen) or is_unmet:
            del worker.stop_requests[key]
            continue
        climb.dump_checks += Rung.DUMP in climb.rung_times
        while (rung := ladder.next_rung(now, climb, seen)) is not None:
            climb.rung_times[rung] = now
            if not _climb(worker, climb, rung, now):
                return


def _observe(worker: WorkerRecord, running: SlotJob) -> SlotView:
    """Once a tick. A process that stopped itself again before it could begin its dump is continued again."""
    size, began = worker.capture.dump_size(), worker.capture.dump_start
    awaited = any(Rung.DUMP in climb.rung_times for climb in worker.stop_requests.values())
    if awaited and size == began and suspend.is_stopped(worker):
        signals.send_to_group(worker.pid, signal.SIGCONT)
    dumped = size > began and size == worker.dump_size_seen and is_complete(worker)
    worker.dump_size_seen = size
    return SlotView(running.job, running.lease, running.state == SlotState.RUNNING, dumped)


def _climb(worker: WorkerRecord, climb: StopRequest, rung: Rung, now: float) -> bool:
    """False: the worker is dead or has gone on; look again at the next tick."""
    slot = worker.slot
    match rung:
        case Rung.ASK:
            slot.request_stop(climb.job, climb.lease, _reason(climb.reason), int(now * 1e9))
        case Rung.RAISE:
            slot.raise_signal_sent_at = int(now * 1e9)
            slot.rung = 2
            # the worker's own handler looks whether job and lease are still those of the wish
            signals.send(worker.pid, signal.SIGUSR1)
        case Rung.DUMP:
            request_dump(worker)
            return False
        case Rung.KILL:
            return _kill_if_still_running(worker, climb)
    return True


def _kill_if_still_running(worker: WorkerRecord, climb: StopRequest) -> bool:
    """SIGKILL to the group, unless the job has just ended.

    Between our look at the slot and the kill the worker could report, take the next order and begin it. So
    it is stopped first: a stopped process begins nothing. What the slot says then is still true when the
    kill arrives.
    """
    suspend.stop_and_wait(worker)
    running = worker.slot.read_job()
    now_seen = SlotView(running.job, running.lease, running.state == SlotState.RUNNING)
    if not ladder.applies_to(climb, now_seen):
        signals.send(worker.pid, signal.SIGCONT)
        climb.rung_times.pop(Rung.KILL, None)  # should it be the same job after all, the next tick kills it
        return False
    kill_group(worker, climb.reason)
    return True


def kill_group(worker: WorkerRecord, reason: str) -> None:
    """By pid as well: a handler may have moved its process to another group."""
    worker.kill_reason = reason
    worker.killed_at = worker.killed_at or clock.boottime_ns() / 1e9
    signals.send_to_group(worker.pid, signal.SIGKILL)
    signals.send(worker.pid, signal.SIGKILL)


def next_check_at(worker: WorkerRecord) -> float | None:
    """When this worker wants to be looked at, on the scoreboard's clock."""
    times = [due for climb in worker.stop_requests.values() if (due := climb.next_rung_at()) is not None]
    if any(Rung.DUMP in climb.rung_times for climb in worker.stop_requests.values()) or worker.dump_requests:
        times.append(clock.boottime_ns() / 1e9 + DUMP_POLL_SECONDS)
    deadline = worker.slot.effective_deadline()
    if deadline and not times:
        times.append(deadline / 1e9)
    return min(times) if times else None
