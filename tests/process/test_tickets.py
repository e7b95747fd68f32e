"""Orders that wait in front of a worker: who may begin them is decided by one ticket each."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import msgspec
import pytest
from supervisor_harness import Died, SupervisorHarness, until

from pgworkers.clock import boottime_ns
from pgworkers.ipc import frames, tickets
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.worker.messages import FrameKind, Order, encode_order_header

APP = """
HERE = os.path.dirname(os.path.abspath(__file__))

@app.task
def quick(n: int) -> int: return n

@app.task
def gated() -> None:
    open(HERE + "/begun", "w").close()
    while not os.path.exists(HERE + "/open"): time.sleep(0.002)

@app.task
def holds_the_gil() -> None:
    open(HERE + "/begun", "w").close()
    sum(itertools.repeat(1))

@app.task
def forks() -> list[str]:
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reads)
        links = [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3, 30) if os.path.exists(f"/proc/self/fd/{fd}")]
        os.write(writes, " ".join(link for link in links if link[:4] in ("pipe", "sock")).encode())
        os._exit(0)
    os.close(writes)
    said = os.read(reads, 4096).decode().split()
    os.waitpid(pid, 0)
    return said
"""


def begun(directory: Path) -> None:
    until("the handler to begin", (directory / "begun").exists)


def test_a_reclaimed_order_is_never_begun(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, APP) as harness:
        worker = harness.worker()
        worker.order(1, "gated")
        begun(tmp_path)
        for job in range(2, 6):
            worker.order(job, "quick", n=job)
        assert tickets.count_remaining(worker.reads) == 4
        assert tickets.take_remaining(worker.reads) == [(job, 1) for job in range(2, 6)]
        tickets.write_tickets(
            worker.writes, [(3, 1), (5, 1)]
        )  # two of them again: their orders are in the socket
        worker.order(6, "quick", n=6)
        (tmp_path / "open").touch()
        assert worker.report(1).outcome == "done"
        assert [bytes(worker.report(job).result) for job in (3, 5, 6)] == [b"3", b"5", b"6"]
        assert worker.take(FrameKind.REPORT) is None


@pytest.mark.parametrize("how", ["holds_the_gil", "stopped", "dead"])
def test_an_order_is_reclaimed_while_the_worker_is_stuck(tmp_path: Path, how: str) -> None:
    with SupervisorHarness(tmp_path, APP) as harness:
        worker = harness.worker()
        worker.order(1, "gated" if how != "holds_the_gil" else how)
        begun(tmp_path)
        for job in (2, 3):
            worker.order(job, "quick", n=job)
        if how == "stopped":
            os.kill(worker.pid, signal.SIGSTOP)
        if how == "dead":
            os.kill(worker.pid, signal.SIGKILL)
            assert harness.fact(Died).job == 1
        assert tickets.take_remaining(worker.reads) == [(2, 1), (3, 1)]
        os.kill(worker.pid, signal.SIGCONT) if how == "stopped" else None
        (tmp_path / "open").touch()
        if how == "stopped":
            assert worker.report(1).outcome == "done"
            assert worker.run(4, "quick", n=4).outcome == "done", "it goes on with what it has a ticket for"


def test_every_ticket_has_one_reader(tmp_path: Path) -> None:
    """Master and worker read the pipe at the same time: each job is run or reclaimed, and none both."""
    with SupervisorHarness(tmp_path, APP) as harness:
        worker = harness.worker()
        back: set[int] = set()
        ran: set[int] = set()
        end = 1
        while end <= 1000 or (
            not back and end <= 10_000
        ):  # a busy machine may be slow to take, and find nothing left
            first, end = end, end + 50
            for job in range(first, end):
                worker.order(job, "quick", n=job)
            while tickets.count_remaining(worker.reads) > 20:
                pass
            back |= {job for job, _ in tickets.take_remaining(worker.reads)}
            wanted = set(range(1, end)) - back

            def all_ran(wanted: set[int] = wanted) -> bool:
                while (frame := worker.take(FrameKind.REPORT)) is not None:
                    assert frame.job not in ran
                    ran.add(frame.job)
                return ran >= wanted

            until("the reports of what was not taken back", all_ran)
        assert back
        assert ran
        assert not back & ran
        assert back | ran == set(range(1, end))


def test_a_worker_says_ready_when_it_is_called(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, APP) as harness:
        worker = harness.worker()
        os.kill(worker.pid, signal.SIGSTOP)
        tickets.write_tickets(worker.writes, [tickets.READY_REQUEST])
        assert worker.take(FrameKind.READY) is None
        os.kill(worker.pid, signal.SIGCONT)
        until("READY", lambda: worker.take(FrameKind.READY))
        assert worker.run(1, "quick", n=1).outcome == "done"


def test_a_process_that_a_handler_forked_has_no_tickets(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, APP) as harness:
        report = harness.worker().run(1, "forks")
        found = msgspec.json.decode(report.result)
        assert len(found) == 1, f"it has its own pipe and no channel of its parent's: {found}"


def test_the_deadline_of_a_job_counts_while_it_waits_and_that_of_an_attempt_does_not(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, APP) as harness:
        worker = harness.worker()
        worker.order(1, "gated")
        begun(tmp_path)
        null = msgspec.Raw(b"null")
        soon = boottime_ns() + int(0.05 * 1e9)
        late = Order(
            task="quick",
            queue="q",
            attempt=1,
            crashes=0,
            timeout=None,
            memory=None,
            checkpoint=null,
            meta=null,
            errors=[],
            deadline=soon,
        )
        worker.sock.send(frames.encode(FrameKind.ORDER, 2, 1, encode_order_header(late) + b'{"n": 2}'))
        tickets.write_tickets(worker.writes, [(2, 1)])
        worker.order(3, "quick", n=3, timeout=30.0)
        while boottime_ns() <= soon:
            time.sleep(0.01)
        (tmp_path / "open").touch()
        report = worker.report(2)
        assert (report.outcome, report.reason, report.has_started) == ("stopped", StopReason.DEADLINE, False)
        assert worker.report(3).outcome == "done"


def test_nothing_begins_beyond_the_term_of_its_lease(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, APP, lease_seconds=-1.0) as harness:
        worker = harness.worker()
        worker.order(1, "gated")
        report = worker.report(1)
        assert (report.outcome, report.has_started, report.reason) == ("stopped", False, None)
        assert not (tmp_path / "begun").exists()
        harness.lease.extend_to(time.clock_gettime(time.CLOCK_BOOTTIME) + 3600.0)  # a renewal held
        assert msgspec.json.decode(worker.run(2, "quick", n=7).result) == 7
