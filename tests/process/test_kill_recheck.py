"""The kill looks twice: between the look that made it due and the signal, the worker may have gone on to its next job."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from pgworkers.ipc.scoreboard import Scoreboard, Slot, SlotJob, StopReason
from pgworkers.linux import proc
from pgworkers.supervisor import stopper
from pgworkers.supervisor.ladder import Rung, StopRequest
from pgworkers.supervisor.output import OutputCapture
from pgworkers.supervisor.stack_dump import StackDumpFile
from pgworkers.supervisor.worker_record import WorkerRecord

LONG_AGO = dict.fromkeys([Rung.ASK, Rung.RAISE, Rung.DUMP], 0.0)


def begin(slot: Slot, job: int) -> None:
    slot.begin_job(job=job, lease=1, started_at=1)


class GoesOn(Slot):
    """Its worker begins job 2 right after the first read."""

    def read_job(self) -> SlotJob:
        seen = super().read_job()
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
    capture, dump = OutputCapture("test", 0), StackDumpFile("test")
    slot = board.slot(0, kind)
    worker = WorkerRecord(index=0, pid=process.pid, incarnation=1, slot=slot, capture=capture, dump=dump)
    begin(worker.slot, 1)
    worker.stop_requests[1, 1] = StopRequest(
        job=1,
        lease=1,
        reason=StopReason.CANCEL,
        requested_at=0.0,
        ask_grace=0.0,
        raise_grace=0.0,
        was_running=True,
        rung_times=dict(LONG_AGO),
        dump_checks=99,
    )
    stopper.step(worker, 1000.0)
    if kind is Slot:  # it is still at it: the twin, or nothing would have been tested
        assert process.wait(60) == -9
        assert worker.kill_reason is StopReason.CANCEL
    else:
        found = proc.read_stat(process.pid)
        assert found is not None
        assert found.state not in "TtZ", "it lives, and goes on"
        assert worker.kill_reason is None
    capture.close()
    dump.close()
