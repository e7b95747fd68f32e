"""How the soak knows when a killed handler ended: `tests/chaos/executions.py`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos.executions import ExecutionTracker
from support.cluster import wait_for
from support.ledger import read

pytestmark = pytest.mark.timeout(60)


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class LedgerWriter:
    """A ledger that a test writes, and the witness who reads it."""

    def __init__(self, directory: Path) -> None:
        self.ledger = directory / "ledger"
        self.lives = ExecutionTracker(self.ledger)

    def write(self, kind: str, job: int, lease: int, pid: int) -> int:
        at = now()
        with self.ledger.open("a") as file:
            file.write(f"{kind} {job} {lease} 1 {pid} {at}\n")
        return at

    def end(self, job: int, lease: int) -> int:
        return self.lives.ends(read(self.ledger)).get((job, lease), 0)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[LedgerWriter]:
    made = LedgerWriter(tmp_path)
    yield made
    made.lives.close()


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def test_a_killed_handler_was_alive_until_the_kill(
    story: LedgerWriter, worker: subprocess.Popen[bytes]
) -> None:
    began = story.write("START", 7, 1, worker.pid)
    wait_for(lambda: story.end(7, 1) > began, what="it is seen")
    os.kill(worker.pid, signal.SIGSTOP)
    stopped = now()
    wait_for(lambda: story.end(7, 1) > stopped, what="who is_stopped still is alive")
    worker.kill()
    worker.wait()
    gone = now()
    assert stopped < story.end(7, 1) < gone
    again = story.write("START", 7, 2, os.getpid())
    wait_for(lambda: story.end(7, 2) > again, what="both are known")
    assert story.end(7, 1) < gone, "the dead are not seen any more"


def test_what_was_written_counts(story: LedgerWriter) -> None:
    story.write("START", 7, 1, os.getpid())
    wait_for(lambda: story.end(7, 1), what="it is seen")
    left = story.write("LEFT", 7, 1, os.getpid())
    next_one = story.write("START", 8, 1, os.getpid())
    wait_for(lambda: story.end(8, 1) > next_one, what="the worker lives on")
    assert story.end(7, 1) == left


def test_the_end_of_a_handler_is_unknown_if_its_worker_survives(story: LedgerWriter) -> None:
    """It wrote nothing and did not die: its worker's life is not its own."""
    story.write("START", 7, 1, os.getpid())
    wait_for(lambda: story.end(7, 1), what="it is seen")
    story.write("START", 8, 1, os.getpid())
    wait_for(lambda: story.end(8, 1), what="the next one is seen")
    assert story.end(7, 1) == 0
