"""Only the suspended job is stopped: not the next job of its worker, and the deadline of that one holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from supervisor_harness import Died, HarnessWorker, SupervisorHarness, is_stopped, until

from pgworkers.clock import boottime
from pgworkers.ipc.scoreboard import Scoreboard, StopReason
from pgworkers.linux import signals
from pgworkers.supervisor import suspend
from pgworkers.supervisor.messages import SetDeadline, SuspendAnswered, SuspendJob
from pgworkers.supervisor.output import OutputCapture
from pgworkers.supervisor.stack_dump import StackDumpFile
from pgworkers.supervisor.worker_record import WorkerRecord

APP = """
@app.task
def quick(n: int) -> int:
    return n

@app.task
def brief(most: float) -> None:
    time.sleep(random.random() * most)

@app.task
def until_told(ctx: Ctx) -> None:
    open("started", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.005)

@app.task
def swallows() -> None:
    while True:
        try:
            open("started", "w").close()
            while True: time.sleep(0.01)
        except BaseException: pass
"""


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[SupervisorHarness]:
    with SupervisorHarness(tmp_path, APP, ask_grace=0.1, raise_grace=0.1) as harness:
        yield harness


def asked(
    harness: SupervisorHarness, worker: HarnessWorker, job: int, token: int, *, suspend: bool = True
) -> SuspendAnswered:
    harness.send(
        SuspendJob(
            slot=worker.slot,
            incarnation=worker.incarnation,
            job=job,
            lease=1,
            token=token,
            should_suspend=suspend,
        )
    )
    return harness.fact(SuspendAnswered, lambda answer: answer.token == token)


def test_a_job_that_is_being_stopped_is_not_suspended_and_the_next_ones_deadline_holds(
    harness: SupervisorHarness, tmp_path: Path
) -> None:
    worker = harness.worker()
    worker.order(1, "until_told")
    until("its start", (tmp_path / "started").exists)
    harness.stop(worker, 1, ask=600)
    answer = asked(harness, worker, 1, 7)
    assert (answer.is_done, answer.text) == (False, "it is being stopped")
    (tmp_path / "go").touch()
    worker.report(1)
    assert not asked(harness, worker, 1, 8, suspend=False).is_done
    worker.order(2, "swallows", timeout=0.1)
    died = harness.fact(Died)
    assert (died.job, died.reason) == (2, StopReason.DEADLINE)


def test_a_suspended_job_that_was_continued_is_stopped_again(
    harness: SupervisorHarness, tmp_path: Path
) -> None:
    worker = harness.worker()
    worker.order(1, "until_told")
    until("its start", (tmp_path / "started").exists)
    assert asked(harness, worker, 1, 7).is_done
    assert is_stopped(worker.pid), "when it is told, it is so"
    os.kill(worker.pid, signal.SIGCONT)
    until("it is_stopped still again", lambda: is_stopped(worker.pid))
    (tmp_path / "go").touch()
    assert asked(harness, worker, 1, 8, suspend=False).is_done
    assert worker.report(1).outcome == "done"


def test_suspending_quick_jobs_never_stops_the_next(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    for job in range(1, 201):
        worker.order(job, "brief", most=0.002)
        worker.order(1000 + job, "quick", n=job)
        done = asked(harness, worker, job, 2 * job).is_done
        assert asked(harness, worker, job, 2 * job + 1, suspend=False).is_done >= done, (
            "who was suspended can go on"
        )
        assert worker.report(job).outcome == "done"
        assert worker.report(1000 + job).outcome == "done"


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[WorkerRecord]:
    """A real process with a slot that says what the test wants it to."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        yield WorkerRecord(
            index=0,
            pid=child.pid,
            incarnation=1,
            slot=Scoreboard(1)[0],
            capture=OutputCapture.__new__(OutputCapture),
            dump=StackDumpFile.__new__(StackDumpFile),
        )
    finally:
        child.kill()
        child.wait()


def begins(worker: WorkerRecord, job: int, deadline: int = 0) -> None:
    worker.slot.begin_job(job=job, lease=1, started_at=1, deadline=deadline)


def test_a_worker_that_takes_the_next_job_while_the_signal_is_on_its_way_goes_on(
    sleeper: WorkerRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins(sleeper, 1)
    really = signals.send

    def late(pid: int, signum: int) -> Any:
        if signum == signal.SIGSTOP:
            begins(sleeper, 2)
        return really(pid, signum)

    monkeypatch.setattr(signals, "send", late)
    answer = suspend.execute(
        sleeper, SuspendJob(slot=0, incarnation=1, job=1, lease=1, token=7, should_suspend=True), 10.0
    )
    assert (answer.is_done, answer.text) == (False, "its handler has just ended")
    assert not sleeper.suspended_at
    until("it goes on", lambda: not is_stopped(sleeper.pid))


def test_a_suspension_ends_with_its_job_however_it_was_continued(sleeper: WorkerRecord) -> None:
    begins(sleeper, 1, deadline=100)
    assert suspend.execute(
        sleeper, SuspendJob(slot=0, incarnation=1, job=1, lease=1, token=7, should_suspend=True), 10.0
    ).is_done
    os.kill(sleeper.pid, signal.SIGCONT)
    begins(sleeper, 2, deadline=200)
    suspend.keep_stopped(sleeper, sleeper.slot.read_job())
    assert not sleeper.suspended_at
    suspend.resume(sleeper, 20.0)
    assert sleeper.slot.deadline == 200, "the deadline of another job is not moved"
    assert not is_stopped(sleeper.pid)


def moves(harness: SupervisorHarness, worker: HarnessWorker, job: int, at: float) -> None:
    harness.send(
        SetDeadline(slot=worker.slot, incarnation=worker.incarnation, job=job, lease=1, at=int(at * 1e9))
    )


def test_a_suspended_job_whose_deadline_is_moved_to_now_is_stopped(
    harness: SupervisorHarness, tmp_path: Path
) -> None:
    worker = harness.worker()
    worker.order(1, "swallows")
    until("its start", (tmp_path / "started").exists)
    assert asked(harness, worker, 1, 7).is_done
    moves(harness, worker, 1, boottime())
    died = harness.fact(Died)
    assert (died.job, died.reason) == (1, StopReason.DEADLINE)


def test_only_the_suspension_after_the_move_of_a_deadline_is_added_to_it(sleeper: WorkerRecord) -> None:
    begins(sleeper, 1)
    assert suspend.execute(
        sleeper, SuspendJob(slot=0, incarnation=1, job=1, lease=1, token=7, should_suspend=True), 1000.0
    ).is_done
    suspend.move_deadline(sleeper, 1, 1, int(1160e9), 1100.0)  # a minute from now
    suspend.resume(sleeper, 1500.0)
    assert sleeper.slot.effective_deadline() == int(1560e9), "a minute after it goes on"
    assert suspend.execute(
        sleeper, SuspendJob(slot=0, incarnation=1, job=1, lease=1, token=8, should_suspend=True), 1510.0
    ).is_done
    suspend.move_deadline(sleeper, 1, 1, 0, 1520.0)
    suspend.resume(sleeper, 1530.0)
    assert sleeper.slot.effective_deadline() == 0, "no deadline stays none"
