"""The desk of one queue: the jobs that wait for a worker, and the workers. No decisions but how far to claim ahead."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from pgworkers.clock import monotonic
from pgworkers.master.crew import Worker
from pgworkers.master.held import Held
from pgworkers.master.pace import AHEAD
from pgworkers.specs import QueueSpec

#: A buffered job that no worker took for this long goes back to the other hosts,
PATIENCE = 0.05
#: and for this long, where there is no other that could take it: then only what is urgent could go before it.
ALONE = 1.0
#: There, so many seconds of jobs wait for each worker, if one takes no longer than that.
DEEP = 0.1
#: A claim of so many is not much cheaper, by the job, than one of many more.
LARGE = 100
#: So many full claims at most, however short the jobs are.
CLAIMS = 4


def ahead(workers: int, typical: float | None, cap: int, *, alone: bool = False) -> int:
    """How many jobs to claim beyond the idle workers: none until the queue's jobs are known to be short.

    Up to AHEAD seconds of work per worker wait in the buffer, and more where no other host could take it: then few
    claims are for many jobs, and no worker waits for one. What is urgent waits behind it for no longer than that.
    """
    deep = DEEP if alone else AHEAD
    if typical is None or typical > deep:
        return 0
    return min(cap, int(workers * deep / max(typical, 1e-5)))


def worth_a_claim(stock: int) -> int:
    """How many must be missing of a stock: half of a small one, less of a large one, for a large claim takes long."""
    return min((stock + 1) // 2, max(stock // 4, LARGE))


@dataclass(frozen=True, slots=True)
class Problem:
    """Why workers of a queue cannot start."""

    error: str
    traceback: str = ""


class QueueDesk:
    """The buffer and the workers of one queue."""

    def __init__(self, spec: QueueSpec) -> None:
        self.name = spec.name
        self.spec = spec
        self.buffer: deque[Held] = deque()
        self.idle: list[Worker] = []
        self.workers: list[Worker] = []
        self.running = 0  # orders that workers have: what they run, and what waits in front of them
        self.occupied = 0  # workers that have any
        self.target = sys.maxsize
        self.cap = sys.maxsize  # jobs at once, where the cluster counts; see scaling
        self.trusted_until = inf
        self.problem: Problem | None = None  # of the last worker that could not start, until one does
        self.typical: float | None = None  # a moving average of recent durations, seconds

    def put(self, held: Held) -> None:
        """Into the buffer: what is urgent goes before what was claimed earlier."""
        buffer, priority = self.buffer, held.claimed.priority
        if not buffer or buffer[-1].claimed.priority >= priority:
            buffer.append(held)
            return
        buffer.insert(next(nth for nth, one in enumerate(buffer) if one.claimed.priority < priority), held)

    def learn(self, duration: float, count: int = 1) -> None:
        """From when a worker could begin a job to its report: on a busy machine more than the handler took.

        Of several that were reported together, what each took on average.
        """
        before = duration if self.typical is None else self.typical
        self.typical = duration + 0.9**count * (before - duration)

    def count(self) -> int:
        """Workers that stay."""
        return sum(w.state != "leaving" and not w.retiring for w in self.workers)

    def too_many(self) -> bool:
        """Are there more workers than there should be?"""
        return len(self.workers) > self.target and self.count() > self.target

    def may_begin(self) -> int:
        """How many jobs may begin now: as there are idle workers, and as the cluster leaves to this host.

        After a reload, workers of the old code may still be busy beside as many of the new code. Together they run no more
        jobs than the queue should have workers, unless it allows that.
        """
        most = len(self.idle)
        if not self.spec.reload_overlap:
            most = min(most, max(0, self.target - self.occupied))
        if self.cap == sys.maxsize:
            return most
        return min(most, max(0, self.cap - self.running)) if self.trusted() else 0

    def wake(self, most: int) -> list[Worker]:
        """So many idle workers at most, for jobs that may begin now: who rested last comes first."""
        most = min(most, self.may_begin())
        found: list[Worker] = []
        while self.idle and len(found) < most:
            worker = self.idle.pop()
            if worker.open:
                found.append(worker)
        return found

    def looks_ahead(self) -> bool:
        """May orders wait in front of a busy worker?

        Not where the cluster counts: what it left to this host may be somebody else's by the time such an order begins.
        """
        spec = self.spec
        return spec.batch and spec.max_jobs != 1 and self.cap == sys.maxsize and not self.too_many()

    def wanted(self, batch: int, *, alone: bool = False) -> int:
        """How many jobs to claim now, at most `batch`.

        Nothing while most of what it may have in stock is left: few large claims are cheaper than many small ones. But the
        stock must last until the claim has come back.
        """
        idle = self.may_begin()
        # Where each job has a fresh process, most of the time one is being forked: it counts, too.
        alive = min(
            len(self.workers) if self.spec.max_jobs == 1 else len(self.idle) + self.occupied, self.cap
        )
        useful = alive > 0 and self.trusted()
        stock = ahead(alive, self.typical, CLAIMS * batch, alone=alone) if useful else 0
        stock = stock or self._soon_idle()
        waiting = len(self.buffer) + self.running - self.occupied
        missing = idle + stock - waiting
        if missing <= 0 or (waiting >= idle and missing < worth_a_claim(stock)):
            return 0
        return min(missing, batch)

    def _soon_idle(self) -> int:
        """How many workers will have ended their job, as far as it is foreseen, when a claim has come back."""
        if self.typical is None or self.typical <= AHEAD or not self.looks_ahead():
            return 0
        now = monotonic()
        return sum(0 <= w.ends_at - now <= AHEAD for w in self.busy() if not w.retiring)

    def trusted(self) -> bool:
        """Is what the cluster left to this host still its own?"""
        return self.cap == sys.maxsize or monotonic() <= self.trusted_until

    def busy(self) -> Iterator[Worker]:
        return (w for w in self.workers if w.orders)
