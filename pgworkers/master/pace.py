"""How long the jobs of each task take lately, and how much may therefore wait in front of one worker. Pure.

A worker that has just ended a job should find the next order waiting: asking the master for it costs more than a short
job itself. But whoever waits in front of one worker cannot be begun by another, so only a few milliseconds of work do,
and only of tasks that are known to be short. An estimate rises faster than it falls: too little ahead costs
microseconds, too much costs a job its place. But one job that lost its core for a while says little about the others, so
it rises step by step: not before the fourth long job in a row is a task of microseconds one of milliseconds.

Of longer jobs nothing waits in front of a worker, but where they are regular their end is foreseen, and the next one is
claimed just before it: a claim takes milliseconds, in which the worker would have nothing to do.
"""

from __future__ import annotations

from math import inf

from pgworkers.process import tickets

#: Seconds of expected work that one worker may have, the job that it runs included.
LOOK = 0.005
#: Orders that one worker may have: their tickets, and a call, fit into its pipe however small that is.
DEEPEST = tickets.MOST - 16
#: Seconds of work that a worker is woken for, if there is as much: waking it costs as much as several of the shortest jobs.
GRAIN = 0.0005
#: No job takes less, however little its handler does.
LEAST = 2e-5
#: So many times what it was may an estimate be after one more job.
STEEPEST = 4
#: How long before its end the next job is claimed. A task whose estimates are wrong by more than half of it is not foreseen.
AHEAD = 0.02
#: The end of longer ones is not worth foreseeing: what a claim takes is nothing to them.
LONGEST = 10.0


class Pace:
    def __init__(self) -> None:
        self._typical: dict[str, float] = {}
        self._wrong: dict[str, float] = {}  # by how much the estimate of longer jobs was, lately

    def of(self, task: str) -> float:
        """Seconds that a job of this task should take; inf: not known."""
        return self._typical.get(task, inf)

    def foreseen(self, task: str) -> float | None:
        """Seconds that a job of this task will take, when they are many enough to count and it has kept to them."""
        expected = self._typical.get(task, 0.0)
        known = AHEAD < expected <= LONGEST and self._wrong.get(task, inf) <= AHEAD / 2
        return expected if known else None

    def learn(self, task: str, *durations: float) -> None:
        """In the order in which they were over."""
        typical = self._typical.get(task)
        for duration in durations:
            if typical is None:
                typical = duration
            else:
                if typical > AHEAD:
                    wrong = abs(duration - typical)
                    self._wrong[task] = wrong + 0.7 * (self._wrong.get(task, wrong) - wrong)
                if duration > typical:
                    typical = min(typical + 0.5 * (duration - typical), STEEPEST * typical)
                else:
                    typical += 0.1 * (duration - typical)
            if typical < LEAST:  # noqa: PLR1730 (a call of max costs as much as all the rest)
                typical = LEAST
        if typical is not None:
            self._typical[task] = typical


def worth_waking(expected: float) -> int:
    """How many jobs of `expected` seconds a worker should be woken for, if there are as many."""
    return max(1, int(GRAIN / expected))


def fits(load: float, orders: int, expected: float) -> bool:
    """May a job of `expected` seconds wait behind `orders` others that take `load` together?"""
    return orders < DEEPEST and load + expected <= LOOK


def room(load: float, orders: int) -> bool:
    """Has a worker so little left that it is worth the call to send it more?"""
    return orders <= DEEPEST // 2 and load <= LOOK / 2
