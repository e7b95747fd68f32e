"""How long the jobs of each task take lately, and how much may therefore wait in front of one worker. Pure.

A worker that has just ended a job should find the next order waiting: asking the master for it costs more than a short
job itself. But whoever waits in front of one worker cannot be begun by another, so only a few milliseconds of work do,
and only of tasks that are known to be short. An estimate rises faster than it falls: too little ahead costs
microseconds, too much costs a job its place.
"""

from __future__ import annotations

from math import inf

from pgworkers.process import tickets

#: Seconds of expected work that one worker may have, the job that it runs included.
LOOK = 0.005
#: Orders that one worker may have: their tickets, and a call, fit into its pipe however small that is.
DEEPEST = tickets.MOST - 16
#: No job takes less, however little its handler does.
LEAST = 2e-5


class Pace:
    def __init__(self) -> None:
        self._typical: dict[str, float] = {}

    def of(self, task: str) -> float:
        """Seconds that a job of this task should take; inf: not known."""
        return self._typical.get(task, inf)

    def learn(self, task: str, duration: float) -> None:
        before = self._typical.get(task)
        if before is None:
            self._typical[task] = max(LEAST, duration)
        else:
            weight = 0.5 if duration > before else 0.1
            self._typical[task] = max(LEAST, before + weight * (duration - before))


def fits(load: float, orders: int, expected: float) -> bool:
    """May a job of `expected` seconds wait behind `orders` others that take `load` together?"""
    return orders < DEEPEST and load + expected <= LOOK


def room(load: float, orders: int) -> bool:
    """Has a worker so little left that it is worth the call to send it more?"""
    return orders <= DEEPEST // 2 and load <= LOOK / 2
