"""The desk of one queue: the jobs that wait for a worker, and the workers. No decisions but how far to claim ahead."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from math import inf

from pgworkers.clock import monotonic
from pgworkers.master.crew import Worker
from pgworkers.master.held import Held

#: A buffered job that no worker took for this long goes back to the other hosts.
PATIENCE = 0.05
#: How much work, in seconds per worker, may wait in the buffer of a queue with short jobs.
AHEAD = 0.02


def ahead(workers: int, typical: float | None, cap: int) -> int:
    """How many jobs to claim beyond the idle workers: none until the queue's jobs are known to be short."""
    if typical is None or typical > AHEAD:
        return 0
    return min(cap, int(workers * AHEAD / max(typical, 1e-5)))


class QueueDesk:
    """The buffer and the workers of one queue."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.buffer: deque[Held] = deque()
        self.idle: list[Worker] = []
        self.workers: list[Worker] = []
        self.target = sys.maxsize
        self.cap = sys.maxsize  # jobs at once, where the cluster counts; see scaling
        self.trusted_until = inf
        self.typical: float | None = None  # a moving average of recent durations, seconds

    def learn(self, duration: float) -> None:
        self.typical = duration if self.typical is None else 0.9 * self.typical + 0.1 * duration

    def count(self) -> int:
        """Workers that stay."""
        return sum(w.state != "leaving" and not w.retiring for w in self.workers)

    def may_begin(self) -> int:
        """How many jobs may begin now: as there are idle workers, and as the cluster leaves to this host."""
        if self.cap == sys.maxsize:
            return len(self.idle)
        return min(len(self.idle), max(0, self.cap - self.running)) if self.trusted() else 0

    def trusted(self) -> bool:
        """Is what the cluster left to this host still its own?"""
        return monotonic() <= self.trusted_until

    @property
    def running(self) -> int:
        return sum(1 for _ in self.busy())

    def busy(self) -> Iterator[Worker]:
        return (w for w in self.workers if w.held is not None)
