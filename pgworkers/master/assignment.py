"""Which worker gets which waiting job, and how jobs that have not started are reclaimed.

Claimed jobs wait in a small buffer per queue until a worker of the queue can take them. The buffer belongs to the queue and
not to a worker, so no job waits behind a long one. It holds more jobs than there are idle workers only while the jobs of the
queue are short or their ends predictable. Jobs that no worker took in time are released to other hosts.

`QueueBuffer` has the waiting jobs and the workers of one queue. It decides how many jobs may start, which idle workers get
them, how many jobs to claim ahead, whether there are too many workers, and whether the grant of a cluster-wide limit is
still valid. `Assigner` shares the buffers out. It puts a job that it reclaims to the front of its buffer: such a job cannot
have started, because the master consumed its ticket before the worker could (ipc/tickets). `JobDurations` estimates how long
the jobs of each task take. `late_worker_action` decides what to do about a worker that has not reported for a while.

A worker that has just ended a job should find its next order waiting: to ask the master for it costs more than a short job
itself. But another worker cannot start a job that waits at this one. So only a few milliseconds of work wait there, and only
of tasks that are known to be short. An estimate rises faster than it falls: too little ahead costs microseconds, too much
makes a job wait. But one job that lost its core for a while says little about the others, so the estimate rises in steps: a
task of microseconds counts as one of milliseconds after the third long job in a row.

Longer jobs do not wait at a worker. Where their durations are regular, the end of a job is predicted and the next one is
claimed just before it, because the worker would be idle for the milliseconds of the claim. `QueueBuffer` decides how many.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from math import inf, isinf
from typing import TYPE_CHECKING, NamedTuple

from pgworkers.clock import monotonic
from pgworkers.ipc import tickets
from pgworkers.ipc.frames import FrameError
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.master import worker_channel
from pgworkers.master.held_job import HeldJob
from pgworkers.master.worker_channel import WorkerChannel
from pgworkers.specs import QueueSpec, TaskSpec
from pgworkers.states import WorkerState

if TYPE_CHECKING:
    from pgworkers.master.dispatcher import UnstartedJobs

#: A buffered job that no worker took for this long is released to other hosts.
BUFFER_TIMEOUT_SECONDS = 0.05
#: The same where there is no other host that could take it.
BUFFER_TIMEOUT_ONLY_HOST_SECONDS = 1.0
#: There, this many seconds of jobs wait for each worker, if one job takes no longer than that.
LOOK_AHEAD_ONLY_HOST_SECONDS = 0.1
#: A claim of this many jobs costs hardly more per job than a larger one.
LARGE_CLAIM_JOBS = 100
#: The most full claims in the buffer, however short the jobs are.
MAX_CLAIMS_BUFFERED = 4
#: How long before its predicted end the next job is claimed. A task whose estimates are off by more than half of this is not
#: predicted.
CLAIM_AHEAD_SECONDS = 0.02


def look_ahead_jobs(workers: int, typical: float | None, cap: int, *, is_only_host: bool = False) -> int:
    """How many jobs to claim beyond the idle workers: none until the queue's jobs are known to be short.

    Up to `CLAIM_AHEAD_SECONDS` of work per worker wait in the buffer, and more where no other host could take it: then few
    claims are for many jobs, and no worker waits for one. What is urgent waits behind it for no longer than that.
    """
    deep = LOOK_AHEAD_ONLY_HOST_SECONDS if is_only_host else CLAIM_AHEAD_SECONDS
    if typical is None or typical > deep:
        return 0
    return min(cap, int(workers * deep / max(typical, 1e-5)))


def min_jobs_per_claim(stock: int) -> int:
    """How many jobs must be missing before a claim: half of a small stock, less of a large one, whose claim takes longer."""
    return min((stock + 1) // 2, max(stock // 4, LARGE_CLAIM_JOBS))


@dataclass(frozen=True, slots=True)
class StartProblem:
    """Why workers of a queue cannot start."""

    error: str
    traceback: str = ""


class QueueBuffer:
    """The buffer and the workers of one queue."""

    def __init__(self, spec: QueueSpec) -> None:
        self.name = spec.name
        self.spec = spec
        self.waiting: deque[HeldJob] = deque()
        self.idle_workers: list[WorkerChannel] = []
        self.workers: list[WorkerChannel] = []
        self.assigned_jobs = 0  # orders that workers have: what they run, and what waits in front of them
        self.occupied_workers = 0  # workers that have any
        self.target_workers = sys.maxsize
        self.max_assigned_jobs = sys.maxsize  # jobs at once, where the cluster counts; see scaling
        self.grant_valid_until = inf
        self.start_problem: StartProblem | None = (
            None  # of the last worker that could not start, until one does
        )
        self.typical_seconds: float | None = None  # a moving average of recent durations, seconds

    def add(self, held: HeldJob) -> None:
        """Put a job into the buffer, before jobs of lower priority."""
        waiting, priority = self.waiting, held.job.priority
        if not waiting or waiting[-1].job.priority >= priority:
            waiting.append(held)
            return
        waiting.insert(next(nth for nth, one in enumerate(waiting) if one.job.priority < priority), held)

    def record_duration(self, duration: float, count: int = 1) -> None:
        """Record the time from when a worker could start a job to its report; for `count` jobs, their average.

        On a busy machine this is longer than the handler took.
        """
        before = duration if self.typical_seconds is None else self.typical_seconds
        self.typical_seconds = duration + 0.9**count * (before - duration)

    def staying_workers(self) -> int:
        """Workers that stay."""
        return sum(w.state is not WorkerState.LEAVING and not w.is_retiring for w in self.workers)

    def has_too_many_workers(self) -> bool:
        """True if there are more workers than there should be."""
        return len(self.workers) > self.target_workers and self.staying_workers() > self.target_workers

    def startable_jobs(self) -> int:
        """How many jobs may start now: by the idle workers, and by the grant of a cluster-wide limit.

        After a reload, workers of the old code may still be busy in addition to those of the new code. Together they run no
        more jobs than the queue should have workers, unless it allows that.
        """
        max_jobs = len(self.idle_workers)
        if not self.spec.reload_overlap:
            max_jobs = min(max_jobs, max(0, self.target_workers - self.occupied_workers))
        if self.max_assigned_jobs == sys.maxsize:
            return max_jobs
        return (
            min(max_jobs, max(0, self.max_assigned_jobs - self.assigned_jobs)) if self.is_grant_valid() else 0
        )

    def take_idle_workers(self, max_jobs: int) -> list[WorkerChannel]:
        """Take at most `max_jobs` idle workers for jobs that may start now, the last used first."""
        max_jobs = min(max_jobs, self.startable_jobs())
        found: list[WorkerChannel] = []
        while self.idle_workers and len(found) < max_jobs:
            worker = self.idle_workers.pop()
            if worker.is_open:
                found.append(worker)
        return found

    def allows_look_ahead(self) -> bool:
        """True if orders may wait at a busy worker.

        Not under a cluster-wide limit: the grant may belong to another host by the time such an order starts.
        """
        spec = self.spec
        return (
            spec.lookahead
            and spec.max_jobs != 1
            and self.max_assigned_jobs == sys.maxsize
            and not self.has_too_many_workers()
        )

    def capacity(self, batch: int, *, is_only_host: bool = False) -> int:
        """How many jobs to claim now, at most `batch`.

        Nothing while most of what it may have in stock is left: few large claims are cheaper than many small ones. But the
        stock must last until the claim has come back.
        """
        idle = self.startable_jobs()
        # Where each job has a fresh process, most of the time one is being forked: it counts, too.
        alive = min(
            len(self.workers) if self.spec.max_jobs == 1 else len(self.idle_workers) + self.occupied_workers,
            self.max_assigned_jobs,
        )
        useful = alive > 0 and self.is_grant_valid()
        stock = (
            look_ahead_jobs(
                alive, self.typical_seconds, MAX_CLAIMS_BUFFERED * batch, is_only_host=is_only_host
            )
            if useful
            else 0
        )
        stock = stock or self._workers_soon_idle()
        waiting = len(self.waiting) + self.assigned_jobs - self.occupied_workers
        missing = idle + stock - waiting
        if missing <= 0 or (waiting >= idle and missing < min_jobs_per_claim(stock)):
            return 0
        return min(missing, batch)

    def _workers_soon_idle(self) -> int:
        """How many workers are predicted to end their job before a claim comes back."""
        if (
            self.typical_seconds is None
            or self.typical_seconds <= CLAIM_AHEAD_SECONDS
            or not self.allows_look_ahead()
        ):
            return 0
        now = monotonic()
        return sum(
            0 <= w.predicted_end - now <= CLAIM_AHEAD_SECONDS
            for w in self.busy_workers()
            if not w.is_retiring
        )

    def is_grant_valid(self) -> bool:
        """True if the grant of a cluster-wide limit still belongs to this host, or there is no such limit."""
        return self.max_assigned_jobs == sys.maxsize or monotonic() <= self.grant_valid_until

    def busy_workers(self) -> Iterator[WorkerChannel]:
        return (w for w in self.workers if w.orders)


#: Seconds of expected work that one worker may have, the job that it runs included.
LOOK_AHEAD_PER_WORKER_SECONDS = 0.005
#: Orders that one worker may have: their tickets, and a READY request, fit into its pipe however small that is.
MAX_ORDERS_PER_WORKER = tickets.MAX_TICKETS_IN_PIPE - 16
#: Seconds of work worth waking a worker for: waking it costs as much as several of the shortest jobs.
MIN_WORK_PER_WAKE_SECONDS = 0.0005
#: No job takes less, however little its handler does.
MIN_JOB_SECONDS = 2e-5
#: By how much an estimate may grow with one job.
MAX_ESTIMATE_GROWTH_FACTOR = 4
#: The end of longer jobs is not predicted: the time of a claim does not matter for them.
MAX_PREDICTED_JOB_SECONDS = 10.0


class JobDurations:
    def __init__(self) -> None:
        self._typical_seconds: dict[str, float] = {}
        self._error_seconds: dict[str, float] = {}  # by how much the estimate of longer jobs was, lately

    def expected_seconds(self, task: str) -> float:
        """Seconds that a job of this task should take; inf: unknown."""
        return self._typical_seconds.get(task, inf)

    def predicted_seconds(self, task: str) -> float | None:
        """Seconds that a job of this task will take, if it is long enough to matter and regular; else None."""
        expected = self._typical_seconds.get(task, 0.0)
        known = (
            CLAIM_AHEAD_SECONDS < expected <= MAX_PREDICTED_JOB_SECONDS
            and self._error_seconds.get(task, inf) <= CLAIM_AHEAD_SECONDS / 2
        )
        return expected if known else None

    def record(self, task: str, *durations: float) -> None:
        """Record durations, in the order in which the jobs ended."""
        typical = self._typical_seconds.get(task)
        for duration in durations:
            if typical is None:
                typical = duration
            else:
                if typical > CLAIM_AHEAD_SECONDS:
                    wrong = abs(duration - typical)
                    self._error_seconds[task] = wrong + 0.7 * (self._error_seconds.get(task, wrong) - wrong)
                if duration > typical:
                    typical = min(typical + 0.5 * (duration - typical), MAX_ESTIMATE_GROWTH_FACTOR * typical)
                else:
                    typical += 0.1 * (duration - typical)
            if typical < MIN_JOB_SECONDS:  # noqa: PLR1730 (a call of max costs as much as all the rest)
                typical = MIN_JOB_SECONDS
        if typical is not None:
            self._typical_seconds[task] = typical


def jobs_per_wake(expected: float) -> int:
    """How many jobs of `expected` seconds a worker should be woken for, if there are as many."""
    return max(1, int(MIN_WORK_PER_WAKE_SECONDS / expected))


def fits_behind(load: float, orders: int, expected: float) -> bool:
    """True if a job of `expected` seconds may wait behind `orders` others that take `load` seconds together."""
    return orders < MAX_ORDERS_PER_WORKER and load + expected <= LOOK_AHEAD_PER_WORKER_SECONDS


def has_room_for_more(load: float, orders: int) -> bool:
    """True if a worker has so little left that it is worth sending it more."""
    return orders <= MAX_ORDERS_PER_WORKER // 2 and load <= LOOK_AHEAD_PER_WORKER_SECONDS / 2


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
        limit = RECLAIM_AFTER_SECONDS if seen.has_idle_worker else UNRESPONSIVE_AFTER_SECONDS
        return LateWorkerAction.PING if seen.running_seconds > limit else LateWorkerAction.WAIT
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


#: How often workers that have not reported for a while are checked.
WORKER_CHECK_SECONDS = 0.005
UNKNOWN_TASK_REASON = "the task is not in this version of the app"
#: How many reclaimed orders are remembered: a worker's socket may hold them for as long as its job takes.
MAX_RECLAIMED_KEYS = 4096


@dataclass(slots=True)
class ClusterView:
    """What this host knows of other hosts, as of its last renewal."""

    is_only_host: bool = False  # no other host lives
    other_hosts_sharing: int = 0  # other hosts that serve a queue of this one


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

    def _send_orders(self, buffer: QueueBuffer, worker: WorkerChannel, max_jobs: int) -> None:
        """Send at most `max_jobs` orders, with one write."""
        jobs: list[HeldJob] = []
        data: list[bytes] = []
        load, count = worker.expected_load_seconds if worker.orders else 0.0, len(worker.orders)
        deep, waiting, frame = buffer.allows_look_ahead(), buffer.waiting, worker_channel.encode_order
        while waiting and len(jobs) < max_jobs:
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
        """Take one job from the buffer or from its worker; other jobs stay where they are.

        False: it has started.
        """
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
