"""The kill looks twice: between the look that made it due and the signal, the worker may have gone on to its next job."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from pgworkers.process import tree
from pgworkers.process.scoreboard import Running, Scoreboard, Slot
from pgworkers.supervisor import climb
from pgworkers.supervisor.capture import Capture
from pgworkers.supervisor.ladder import Climb, Rung
from pgworkers.supervisor.member import Worker

LONG_AGO = dict.fromkeys([Rung.ASK, Rung.RAISE, Rung.DUMP], 0.0)


def begin(slot: Slot, job: int) -> None:
    slot.begin(job, 1, started=1, deadline=0, memory=0, cpu=0, output=0)


class GoesOn(Slot):
    """Its worker begins job 2 the moment somebody has looked."""

    __slots__ = ()

    def running(self) -> Running:
        seen = super().running()
        begin(self, 2)
        return seen


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "999"], start_new_session=True) as made:
        yield made
        made.kill()


@pytest.mark.parametrize("kind", [GoesOn, Slot])
def test_a_worker_that_went_on_meanwhile_is_not_killed(
    process: subprocess.Popen[bytes], kind: type[Slot]
) -> None:
    board = Scoreboard(1)
    capture = Capture("test", 0)
    worker = Worker(0, process.pid, 1, kind(board[0].view), capture)
    begin(worker.slot, 1)
    worker.climbs[1, 1] = Climb(1, 1, "cancel", 0.0, 0.0, 0.0, met=True, times=dict(LONG_AGO), looks=99)
    climb.step(worker, 1000.0)
    if kind is Slot:  # it is still at it: the twin, or nothing would have been tested
        assert process.wait(60) == -9
        assert worker.killed == "cancel"
    else:
        found = tree.stat(process.pid)
        assert found is not None
        assert found.state not in "TtZ", "it lives, and goes on"
        assert worker.killed is None
    capture.close()
