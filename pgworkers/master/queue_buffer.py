"""The jobs of one queue that wait for a worker, its workers, and how many jobs to claim ahead.

`QueueBuffer` decides how many jobs may start, which idle workers get them, whether there are too many workers, and whether
the grant of a cluster-wide limit is still valid. `JobDurations` and the functions after it are pure. They estimate how long
the jobs of each task take, and so how much may wait at one worker.

A worker that has just ended a job should find its next order waiting: to ask the master for it costs more than a short job
itself. But another worker cannot start a job that waits at this one. So only a few milliseconds of work wait there, and only
of tasks that are known to be short. An estimate rises faster than it falls: too little ahead costs microseconds, too much
makes a job wait. But one job that lost its core for a while says little about the others, so the estimate rises in steps: a
task of microseconds counts as one of milliseconds after the third long job in a row.

Longer jobs do not wait at a worker. Where their durations are regular, the end of a job is predicted and the next one is
claimed just before it, because the worker would be idle for the milliseconds of the claim.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from pgworkers.clock import monotonic
from pgworkers.ipc import tickets
from pgworkers.master.held_job import HeldJob
from pgworkers.master.worker_channel import WorkerChannel, WorkerState
from pgworkers.specs import QueueSpec

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
        most = len(self.idle_workers)
        if not self.spec.reload_overlap:
            most = min(most, max(0, self.target_workers - self.occupied_workers))
        if self.max_assigned_jobs == sys.maxsize:
            return most
        return min(most, max(0, self.max_assigned_jobs - self.assigned_jobs)) if self.is_grant_valid() else 0

    def take_idle_workers(self, most: int) -> list[WorkerChannel]:
        """Take at most `most` idle workers for jobs that may start now, the last used first."""
        most = min(most, self.startable_jobs())
        found: list[WorkerChannel] = []
        while self.idle_workers and len(found) < most:
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
#: How long before its predicted end the next job is claimed. A task whose estimates are off by more than half of this is not
#: predicted.
CLAIM_AHEAD_SECONDS = 0.02
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
