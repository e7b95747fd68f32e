"""Which worker gets which waiting job, and how jobs that have not started are reclaimed.

A reclaimed job cannot have started: the master consumed its ticket before the worker could (ipc/tickets). It goes to the
front of its queue's buffer, which costs it nothing.

`late_worker_action` decides what to do about a worker that has not reported for a while. It is pure.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from math import inf, isinf
from typing import NamedTuple

from pgworkers.clock import monotonic
from pgworkers.events import AttemptStarted, EventBus
from pgworkers.ipc.frames import FrameError
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.job.model import Verdict
from pgworkers.master import verdict, worker_channel
from pgworkers.master.finisher import Finisher
from pgworkers.master.held_job import HeldJob
from pgworkers.master.queue_buffer import (
    BUFFER_TIMEOUT_ONLY_HOST_SECONDS,
    BUFFER_TIMEOUT_SECONDS,
    CLAIM_AHEAD_SECONDS,
    LOOK_AHEAD_ONLY_HOST_SECONDS,
    MIN_WORK_PER_WAKE_SECONDS,
    JobDurations,
    QueueBuffer,
    fits_behind,
    has_room_for_more,
    jobs_per_wake,
)
from pgworkers.master.worker_channel import WorkerChannel, WorkerState
from pgworkers.specs import TaskSpec
from pgworkers.worker.messages import Outcome, Report

#: How often workers that have not reported for a while are checked.
WORKER_CHECK_SECONDS = 0.005
UNKNOWN_TASK_REASON = "the task is not in this version of the app"
LEASE_REUSED_REASON = "after a failover the number of an earlier claim was given again"
#: How many reclaimed orders are remembered: a worker's socket may hold them for as long as its job takes.
MAX_RECLAIMED_KEYS = 4096


#: How much longer than expected a job may take before others are reclaimed from behind it, if another worker is idle.
LATE_JOB_GRACE_SECONDS = 0.005
#: How long they wait behind it if no worker is idle: then perhaps another host has an idle one.
RECLAIM_AFTER_SECONDS = 0.05
#: How long a worker may leave even its first ticket in the pipe. On a busy machine that takes a while.
UNRESPONSIVE_AFTER_SECONDS = 0.2


class LateWorkerAction(Enum):
    WAIT = auto()
    RECLAIM = auto()  #: what waits behind its job
    PING = auto()  #: reclaim everything, and ask it to send READY once it resumes


class WorkerProgress(NamedTuple):
    running_seconds: float  # since it could start its first order
    expected_seconds: float  # of its first order
    unreported_orders: int  # orders it has not reported
    unstarted_orders: int  # of these, orders whose tickets it has not taken
    has_idle_worker: bool  # another worker of the queue is idle


def late_worker_action(seen: WorkerProgress) -> LateWorkerAction:
    if seen.unstarted_orders >= seen.unreported_orders:
        patience = RECLAIM_AFTER_SECONDS if seen.has_idle_worker else UNRESPONSIVE_AFTER_SECONDS
        return LateWorkerAction.PING if seen.running_seconds > patience else LateWorkerAction.WAIT
    if seen.unstarted_orders == 0 or seen.unstarted_orders < seen.unreported_orders - 1:
        return LateWorkerAction.WAIT  # nothing waits, or its reports are on the way
    late = (
        isinf(seen.expected_seconds) or seen.running_seconds > seen.expected_seconds + LATE_JOB_GRACE_SECONDS
    )
    return (
        LateWorkerAction.RECLAIM
        if late and (seen.has_idle_worker or seen.running_seconds > RECLAIM_AFTER_SECONDS)
        else LateWorkerAction.WAIT
    )


@dataclass(slots=True)
class ClusterView:
    """What this host knows of other hosts, as of its last renewal."""

    is_only_host: bool = False  # no other host lives
    other_hosts_sharing: int = 0  # other hosts that serve a queue of this one


class UnstartedJobs:
    """Ends or releases held jobs that no worker has started."""

    def __init__(self, *, held_jobs: dict[int, HeldJob], finisher: Finisher, events: EventBus) -> None:
        self._held_jobs = held_jobs
        self._finisher = finisher
        self._events = events

    def release(self, jobs: Sequence[HeldJob], why: str) -> None:
        self.forget(jobs)
        self._finisher.release([held.fence for held in jobs], why)

    def mark_started(self, held: HeldJob, at: float) -> None:
        """Emit, once, that the handler has started."""
        if not held.has_emitted_start:
            self._events.emit(self.started_event(held, at))

    def started_event(self, held: HeldJob, at: float) -> AttemptStarted:
        """The event that the handler has started. It must be emitted."""
        held.has_emitted_start = True
        job = held.job
        late = at - held.claimed_at_monotonic
        waited = job.ready_seconds + late if late > 0.0 else job.ready_seconds
        return AttemptStarted(job.id, job.lease, job.queue, job.task, job.attempt, waited)

    def finish_stopped(self, held: HeldJob, reason: StopReason) -> None:
        self.forget([held])
        ending = verdict.from_report(
            Report(
                outcome=Outcome.STOPPED,
                duration=0.0,
                cpu=0.0,
                peak_rss=0,
                reason=reason.word,
                has_started=False,
            ),
            held,
        )
        held.stop_reason = reason if reason is StopReason.CANCEL else held.stop_reason
        self._finisher.add(held, verdict.decide_result(held, ending, random.random(), "", ""))

    def finish_unfit(self, held: HeldJob, reason: str) -> None:
        """End a job that no worker can be sent, so that others are not delayed."""
        self.forget([held])
        ending = verdict.AttemptOutcome(
            Verdict.UNFIT, 0.0, 0.0, 0, error=f"no worker can have it: {reason}", has_started=False
        )
        self._finisher.add(held, verdict.decide_result(held, ending, random.random(), "", ""))

    def finish_stop_requested(self, held: HeldJob) -> None:
        """End or release a job that was to be stopped before it had started."""
        if held.stop_reason is StopReason.CANCEL:
            self.finish_stopped(held, StopReason.CANCEL)
            return
        self.forget([held])
        if held.stop_reason is not StopReason.LEASE:  # else another host owns it
            self._finisher.release([held.fence], "stopped before it began")

    def forget(self, jobs: Sequence[HeldJob]) -> None:
        """Forget jobs that are no longer this host's, or whose results are on the way."""
        known = self._held_jobs
        for held in jobs:
            job = held.job.id
            if known.get(job) is held:
                del known[job]


class Assigner:
    """Gives waiting jobs to workers, and reclaims those that have not started."""

    def __init__(
        self,
        *,
        buffers: dict[str, QueueBuffer],
        unstarted: UnstartedJobs,
        tasks: Callable[[], Mapping[str, TaskSpec]],
        cluster: ClusterView,
        is_claiming: Callable[[], bool],
        on_capacity: Callable[[str], None],
    ) -> None:
        self.durations = JobDurations()
        self._buffers = buffers
        self._unstarted = unstarted
        self._tasks = tasks
        self._cluster = cluster
        self._is_claiming = is_claiming
        self._on_capacity = on_capacity
        self._reclaimed_keys: dict[
            tuple[int, int], None
        ] = {}  # orders that may still be in a worker's socket
        self._has_buffer_timer = False
        self._has_check_timer = False

    # -- giving ------------------------------------------------------------------------------------------------------

    def assign_waiting(self, buffer: QueueBuffer) -> None:
        """Share the buffer out among the workers that can have more, the idle ones first.

        Of very short jobs, a worker that is woken gets enough to be worth it. Workers that have fewer come first.
        """
        waiting = buffer.waiting
        if not waiting:
            return
        grain = jobs_per_wake(self.durations.expected_seconds(waiting[0].job.task))
        busy: list[WorkerChannel] = []
        if (grain > 1 or len(waiting) > buffer.startable_jobs()) and buffer.allows_look_ahead():
            busy = [worker for worker in buffer.busy_workers() if self._can_take_more(worker)]
        if grain > 1:
            for worker in busy:
                if worker.expected_load_seconds < MIN_WORK_PER_WAKE_SECONDS:
                    self._send_orders(buffer, worker, grain)
        able = buffer.take_idle_workers(-(-len(waiting) // grain)) + busy
        for number, worker in enumerate(able):
            if worker.is_open:
                self._send_orders(buffer, worker, max(grain, -(-len(waiting) // (len(able) - number))))
                if worker.is_open and not worker.orders:
                    buffer.idle_workers.append(worker)

    def top_up(self, buffer: QueueBuffer, worker: WorkerChannel) -> None:
        """Send a busy worker more orders, if jobs wait and it should have them now."""
        if buffer.waiting and buffer.allows_look_ahead() and self._can_take_more(worker):
            self._send_orders(buffer, worker, len(buffer.waiting))

    def _can_take_more(self, worker: WorkerChannel) -> bool:
        if (
            worker.state is not WorkerState.BUSY
            or not worker.is_open
            or worker.is_retiring
            or worker.has_unsent_orders
        ):
            return False
        late = monotonic() - worker.since > worker.orders[0].expected_seconds + LATE_JOB_GRACE_SECONDS
        return not late and has_room_for_more(worker.expected_load_seconds, len(worker.orders))

    def _send_orders(self, buffer: QueueBuffer, worker: WorkerChannel, most: int) -> None:
        """Send at most `most` orders, with one write."""
        jobs: list[HeldJob] = []
        data: list[bytes] = []
        load, count = worker.expected_load_seconds if worker.orders else 0.0, len(worker.orders)
        deep, waiting, frame = buffer.allows_look_ahead(), buffer.waiting, worker_channel.encode_order
        while waiting and len(jobs) < most:
            held = waiting[0]
            job = held.job
            held.expected_seconds = expected = self.durations.expected_seconds(job.task)
            if count and not (deep and not held.task.exclusive and fits_behind(load, count, expected)):
                break
            waiting.popleft()
            if job.seconds_to_deadline is not None and held.is_past_deadline():
                self._unstarted.finish_stopped(held, StopReason.DEADLINE)
                continue
            try:
                data.append(frame(held))
            except (FrameError, OverflowError) as error:
                self._unstarted.finish_unfit(held, str(error))
                continue
            jobs.append(held)
            load += expected
            count += 1
        if jobs:
            self._record_sent(buffer, worker, jobs, partial(worker.send_orders, jobs, b"".join(data)))

    def _record_sent(
        self, buffer: QueueBuffer, worker: WorkerChannel, jobs: list[HeldJob], send: Callable[[], bool]
    ) -> None:
        was_free = not worker.orders
        if not send():
            buffer.waiting.extendleft(reversed(jobs))
            return
        buffer.assigned_jobs += len(jobs)
        if was_free:
            buffer.occupied_workers += 1
            worker.mark_busy()
            self._predict_end(worker)
        self._schedule_worker_check()

    def _predict_end(self, worker: WorkerChannel) -> None:
        """Have the next job claimed just before the end of this one, if its end can be predicted."""
        expected = (
            self.durations.predicted_seconds(worker.orders[0].job.task) if len(worker.orders) == 1 else None
        )
        worker.predicted_end = inf if expected is None else worker.since + expected
        if expected is not None and not (
            self._cluster.is_only_host and expected <= LOOK_AHEAD_ONLY_HOST_SECONDS
        ):  # else the next one is buffered already
            asyncio.get_running_loop().call_later(
                expected - CLAIM_AHEAD_SECONDS, self._on_capacity, worker.queue
            )

    # -- reclaiming --------------------------------------------------------------------------------------------------

    def reclaim(self, worker: WorkerChannel) -> None:
        """Put everything that this worker has not started to the front of the buffer."""
        buffer = self._buffers[worker.queue]
        kept = []
        for held in self._reclaim_orders(buffer, worker):
            if held.stop_reason is not None:
                self._unstarted.finish_stop_requested(held)
            elif held.job.task not in self._tasks():
                self._unstarted.release([held], UNKNOWN_TASK_REASON)
            else:
                kept.append(held)
        buffer.waiting.extendleft(reversed(kept))
        if kept and not self._is_claiming():
            self.release_buffer(buffer, "the host is draining")
        self.start_buffer_timer()

    def was_reclaimed(self, key: tuple[int, int]) -> bool:
        """True if an order with this key was reclaimed and may still be in the socket of a worker."""
        return key in self._reclaimed_keys

    def reclaim_one(self, held: HeldJob) -> bool:
        """Take one job from the buffer or from its worker; other jobs stay where they are. False: it has started."""
        buffer, worker = self._buffers[held.job.queue], held.worker
        if worker is None:
            buffer.waiting.remove(held)
            return True
        back = self._reclaim_orders(buffer, worker)
        others = [one for one in back if one is not held]
        if others:
            self._record_sent(buffer, worker, others, partial(worker.resend_tickets, others))
        return len(others) < len(back)

    def _reclaim_orders(self, buffer: QueueBuffer, worker: WorkerChannel) -> list[HeldJob]:
        back = worker.reclaim()
        self._reclaimed_keys |= dict.fromkeys([held.key for held in back])
        while len(self._reclaimed_keys) > MAX_RECLAIMED_KEYS:
            del self._reclaimed_keys[next(iter(self._reclaimed_keys))]
        buffer.assigned_jobs -= len(back)
        if back and not worker.orders:
            buffer.occupied_workers -= 1
        return back

    def start_buffer_timer(self) -> None:
        if not self._has_buffer_timer and any(buffer.waiting for buffer in self._buffers.values()):
            self._has_buffer_timer = True
            asyncio.get_running_loop().call_later(
                self._buffer_timeout_seconds(), self._release_expired_buffers
            )

    def _buffer_timeout_seconds(self) -> float:
        return BUFFER_TIMEOUT_ONLY_HOST_SECONDS if self._cluster.is_only_host else BUFFER_TIMEOUT_SECONDS

    def _release_expired_buffers(self) -> None:
        """Release buffered jobs that no worker took in time; another host may have an idle one."""
        self._has_buffer_timer = False
        now = monotonic()
        for buffer in self._buffers.values():
            if (
                buffer.waiting
                and now - buffer.waiting[0].claimed_at_monotonic > self._buffer_timeout_seconds()
            ):
                self.release_buffer(buffer, "no worker was free")
                # It was not short after all: nothing is claimed ahead until jobs have been short for a while. Beyond what
                # counts as short here, or the same jobs would be claimed again at once.
                buffer.typical_seconds = max(
                    buffer.typical_seconds or 0.0,
                    2 * (LOOK_AHEAD_ONLY_HOST_SECONDS if self._cluster.is_only_host else CLAIM_AHEAD_SECONDS),
                )
        self.start_buffer_timer()

    def release_buffer(self, buffer: QueueBuffer, why: str) -> None:
        if buffer.waiting:
            self._unstarted.release(list(buffer.waiting), why)
            buffer.waiting.clear()

    # -- workers that have not reported for a while -----------------------------------------------------------------

    def _schedule_worker_check(self) -> None:
        if not self._has_check_timer:
            self._has_check_timer = True
            asyncio.get_running_loop().call_later(WORKER_CHECK_SECONDS, self._check_workers)

    def _check_workers(self) -> None:
        """Note which jobs have started, and act on workers that are late."""
        self._has_check_timer = False
        now = monotonic()
        for buffer in self._buffers.values():
            if buffer.occupied_workers:
                for worker in buffer.workers:
                    if worker.orders and not (worker.orders[0].has_emitted_start and len(worker.orders) == 1):
                        self._check_worker(buffer, worker, now)
                        self._schedule_worker_check()

    def _check_worker(self, buffer: QueueBuffer, worker: WorkerChannel, now: float) -> None:
        ran = now - worker.since
        if ran < WORKER_CHECK_SECONDS:
            return
        worker.read_all()
        if worker.since > now or not worker.orders:
            return  # its reports were on the way
        head = worker.orders[0]
        unbegun = worker.unstarted_orders()
        if unbegun < len(worker.orders):
            self._unstarted.mark_started(head, worker.since)
        match late_worker_action(
            WorkerProgress(ran, head.expected_seconds, len(worker.orders), unbegun, bool(buffer.idle_workers))
        ):
            case LateWorkerAction.RECLAIM:
                self.reclaim(worker)
                self.assign_waiting(buffer)
            case LateWorkerAction.PING:
                self.reclaim(worker)
                if not worker.orders:
                    worker.ping()
                self.assign_waiting(buffer)

    # -- durations ---------------------------------------------------------------------------------------------------

    def record_durations(
        self, buffer: QueueBuffer, worker: WorkerChannel, first: HeldJob, took: dict[str, list[float]]
    ) -> None:
        """Record how long reported jobs took, by task. `first` was the first of them."""
        count = sum(map(len, took.values()))
        buffer.record_duration((worker.since - (first.began_at or first.claimed_at_monotonic)) / count, count)
        for task, durations in took.items():
            self.durations.record(task, *durations)
