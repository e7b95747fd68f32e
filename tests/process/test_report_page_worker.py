"""Ends of very short jobs are sent together: none is lost with the worker, none waits behind a job that runs long."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from supervisor_harness import Died, HarnessWorker, SupervisorHarness, until

from pgworkers.ipc import frames, report_page, tickets
from pgworkers.worker.messages import FrameKind

MANY = 200
APP = """
@app.task
def usually_quick(do: str = "") -> None:
    if do == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if do == "wait":
        open("begun", "w").close()
        while not os.path.exists("open"):
            time.sleep(0.002)

@app.task
def careful(ctx: Ctx) -> None:
    ctx.progress(1, 2)
    open("begun", "w").close()
    while not os.path.exists("open"):
        time.sleep(0.002)

@app.task
def unknown() -> None:
    open("begun", "w").close()
    while not os.path.exists("open"):
        time.sleep(0.002)
"""


def busy(harness: SupervisorHarness, last: str) -> HarnessWorker:
    """A worker with many orders that are over at once, and one that is not."""
    worker = harness.worker()
    for job in range(1, MANY):
        worker.order(job, "usually_quick")
    worker.order(MANY, "usually_quick", do=last)
    return worker


def test_a_killed_worker_loses_no_end(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, APP) as harness:
        worker = busy(harness, last="die")
        assert harness.fact(Died).job == MANY
        for job in range(1, MANY):
            assert worker.report(job).outcome == "done"
        assert worker.take(FrameKind.REPORT) is None, "each once, and none of the job that it died of"
        assert tickets.take_remaining(worker.reads) == []


def test_a_long_job_delays_no_report(tmp_path: Path) -> None:
    """Also while it holds the main thread or the whole process is stopped: what lies there is read without it."""
    with SupervisorHarness(tmp_path, APP) as harness:
        worker = busy(harness, last="wait")
        until("the long one", (tmp_path / "begun").exists)
        os.kill(worker.pid, signal.SIGSTOP)
        for job in range(1, MANY):
            assert worker.report(job).outcome == "done"
        os.kill(worker.pid, signal.SIGCONT)
        (tmp_path / "open").touch()
        assert worker.report(MANY).outcome == "done"
        assert worker.take(FrameKind.REPORT) is None, "each once"


@pytest.mark.parametrize("task", ["careful", "unknown"])
def test_before_a_job_that_may_take_long_everything_is_sent(tmp_path: Path, task: str) -> None:
    """A task that was not quick the last time, or is new here, or has a context whose progress is sent meanwhile."""
    with SupervisorHarness(tmp_path, APP) as harness:
        worker = harness.worker()
        for job in range(1, MANY):
            worker.order(job, "usually_quick")
        worker.order(MANY, task)
        until("the long one", (tmp_path / "begun").exists)
        assert report_page.read(worker.page) == b""
        reader = frames.FrameReader()
        seen: list[int] = []
        while len(seen) < MANY - 1:
            seen += [
                frame.job
                for frame in reader.feed(worker.sock.recv(1 << 16))
                if frame.kind == FrameKind.SUCCESS
            ]
        assert seen == list(range(1, MANY))
        (tmp_path / "open").touch()
        assert worker.report(MANY).outcome == "done"
