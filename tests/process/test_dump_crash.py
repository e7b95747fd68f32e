"""A dump in which CPython itself crashes: it reads the frames of running threads without a lock (docs/adr/14).

The crash is simulated by the handler, which crashes when its stacks are asked for: the real crash is rare.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from supervisor_harness import Died, DumpStacks, SupervisorHarness, is_alive, until

from pgworkers.ipc.scoreboard import StopReason
from pgworkers.master.verdict import from_death

APP = """
import ctypes, faulthandler

def guilty():
    while True:
        try:
            open("started", "w").close()
            while True: time.sleep(0.01)
        except BaseException: pass

@app.task
def crashes_in_its_dump() -> None:
    # By C code, as the real crash: what Python puts in the place of a dump is put back by the heartbeat.
    faulthandler.disable()
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGUSR2, ctypes.cast(libc.abort, ctypes.c_void_p))
    guilty()

@app.task
def crashes_by_itself(ctx: Ctx) -> None:
    open("started", "w").close()
    while not ctx.cancelled: time.sleep(0.005)
    os.abort()

@app.task
def quick(n: int) -> int:
    return n
"""
CRASHED = "; its interpreter crashed (SIGABRT) while its stacks were written"


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[SupervisorHarness]:
    with SupervisorHarness(tmp_path, APP) as harness:
        yield harness


@pytest.mark.parametrize(("reason", "verdict"), [("cancel", "cancelled"), ("drain", "interrupted")])
def test_a_stop_keeps_its_reason_and_says_that_the_dump_crashed(
    harness: SupervisorHarness, tmp_path: Path, reason: str, verdict: str
) -> None:
    worker = harness.worker()
    worker.order(1, "crashes_in_its_dump", lease=3)
    until("the handler's start", (tmp_path / "started").exists)
    harness.stop(worker, 1, reason, lease=3, ask=0.05, rais=0.1)
    died = harness.fact(Died)
    assert (died.job, died.lease, died.reason, died.status, died.is_dumping) == (
        1,
        3,
        StopReason[reason.upper()],
        "SIGABRT",
        True,
    )
    assert [name for name, _ in died.rungs] == ["ask", "raise", "dump"], "it did not live to be killed"
    ending = from_death(died)
    assert (ending.verdict, ending.exit_status) == (verdict, "SIGABRT")
    assert (ending.error or "").endswith(CRASHED)
    assert not is_alive(worker.pid)
    assert bytes(harness.worker(other_than=worker.pid).run(99, "quick", n=5).result) == b"5"


def test_a_job_whose_stack_an_operator_wanted_is_not_blamed_for_the_crash(
    harness: SupervisorHarness, tmp_path: Path
) -> None:
    worker = harness.worker()
    worker.order(1, "crashes_in_its_dump")
    until("the handler's start", (tmp_path / "started").exists)
    harness.send(DumpStacks(worker.slot, worker.incarnation, 77))
    died = harness.fact(Died)
    assert (died.job, died.reason, died.status, died.is_dumping) == (1, None, "SIGABRT", True)
    assert (from_death(died).error or "").endswith(CRASHED)


def test_a_handler_that_crashes_before_any_dump_has_itself_to_blame(
    harness: SupervisorHarness, tmp_path: Path
) -> None:
    worker = harness.worker()
    worker.order(1, "crashes_by_itself")
    until("the handler's start", (tmp_path / "started").exists)
    harness.stop(worker, 1, ask=600)
    died = harness.fact(Died)
    assert (died.reason, died.status, died.is_dumping) == (StopReason.CANCEL, "SIGABRT", False)
    assert CRASHED not in (from_death(died).error or "")
