"""How often the memory of a job is measured if a measurement is expensive."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pgworkers.ipc.scoreboard import Scoreboard, StopReason
from pgworkers.linux import proc
from pgworkers.settings import Settings
from pgworkers.supervisor import job_limits
from pgworkers.supervisor.ladder import StopRequest
from pgworkers.supervisor.output import OutputCapture
from pgworkers.supervisor.stack_dump import StackDumpFile
from pgworkers.supervisor.worker_record import WorkerRecord

LIMIT = 100
NEVER = 1e9


class Job:
    """A job that uses `used` bytes. One measurement takes two seconds of CPU time."""

    def __init__(self, worker: WorkerRecord) -> None:
        self.worker = worker
        self.used = 0
        self.looks = 0
        self._cpu = 0.0

    def over(self, _pid: int, limit: int) -> int:
        self.looks += 1
        self._cpu += 2.0
        return self.used if self.used > limit else 0

    def cpu_time(self) -> float:
        return self._cpu

    def begin(self, job: int) -> None:
        self.worker.slot.begin_job(job=job, lease=1, started_at=1, memory_limit=LIMIT)

    def look(self, now: float) -> int:
        """How often it is looked at in this round."""
        before = self.looks
        job_limits.check_limits(self.worker, Settings(), now, NEVER)
        return self.looks - before


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    board, capture, dump = Scoreboard(1), OutputCapture("test", 0), StackDumpFile("test")
    made = Job(WorkerRecord(index=0, pid=1 << 22, incarnation=1, slot=board[0], capture=capture, dump=dump))
    monkeypatch.setattr(proc, "memory_over_limit", made.over)
    monkeypatch.setattr(time, "thread_time", made.cpu_time)
    made.begin(1)
    yield made
    capture.close()
    dump.close()


def test_after_an_expensive_look_the_next_is_a_second_later(job: Job) -> None:
    assert [job.look(now) for now in (10.0, 10.5, 11.0)] == [1, 0, 1]


def test_the_next_job_is_looked_at_at_once(job: Job) -> None:
    job.look(10.0)
    job.begin(2)
    assert job.look(10.1) == 1


def test_a_job_that_is_being_stopped_is_looked_at_in_every_round(job: Job) -> None:
    job.look(10.0)
    job.worker.stop_requests[1, 1] = StopRequest(
        job=1, lease=1, reason=StopReason.CANCEL, requested_at=10.0, ask_grace=5.0, raise_grace=5.0
    )
    assert [job.look(now) for now in (10.1, 10.2)] == [1, 1]


def test_a_job_far_over_its_limit_is_killed_in_the_round_after_the_one_that_saw_it(job: Job) -> None:
    job.used = 2 * LIMIT
    job.look(10.0)
    assert job.worker.stop_requests[1, 1].reason is StopReason.MEMORY
    job.look(10.1)
    assert job.worker.stop_requests[1, 1].raise_grace == 0.0
