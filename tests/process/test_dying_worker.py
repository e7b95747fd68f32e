"""A worker that is dying: its slot, its incarnation, its children, and the budget of its successors."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervisor_harness import (
    Alive,
    Died,
    DumpStacks,
    Forked,
    HarnessWorker,
    StackDumped,
    StartDelayed,
    SupervisorHarness,
    is_alive,
    is_stopped,
    until,
)
from support import leftover_processes
from support.cgroups import NoCgroup, cgroup

from pgworkers.ipc.scoreboard import StopReason

APP = """
BIG = "x = bytearray(400 << 20); x[::4096] = b'1' * len(x[::4096]); " + (
    "open('started', 'w').close(); import time; time.sleep(999)"
)

@app.task
def holds(code: str = BIG, marker: str = "") -> None:
    environ = {**os.environ, "DYING": marker}
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env=environ)
    with open("child.part", "w") as file: file.write(str(child.pid))
    os.rename("child.part", "child")
    while True:
        try: child.wait()
        except BaseException: pass

@app.task
def pid() -> int:
    return os.getpid()
"""
QUIET = "open('started', 'w').close(); import time; time.sleep(999)"
#: Each forks its successor and ends, a hundred times a second.
COMETS = """
import os, time
for _ in range(60):
    if os.fork() == 0:
        os.setsid()
        while True:
            time.sleep(0.01)
            if os.fork(): os._exit(0)
open("started", "w").close()
time.sleep(999)
"""
#: Each watches the next one, and starts another when that one is gone.
WATCHERS = """
import os, time

def watch(number):
    os.setsid()
    while True:
        with open(f"watcher.{number}", "w") as file: file.write(str(os.getpid()))
        neighbour = (number + 1) % 20
        try:
            with open(f"/proc/{open(f'watcher.{neighbour}').read()}/stat") as stat: gone = ") Z " in stat.read()
        except (FileNotFoundError, NotADirectoryError):
            gone = os.path.exists(f"watcher.{neighbour}")
        if gone and os.fork() == 0:
            if os.fork(): os._exit(0)
            number = neighbour
            os.setsid() if os.getsid(0) != os.getpid() else None
        time.sleep(0.001)

for number in range(20):
    if os.fork() == 0: watch(number)
while not all(os.path.exists(f"watcher.{number}") for number in range(20)): time.sleep(0.01)
open("started", "w").close()
time.sleep(999)
"""


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[SupervisorHarness]:
    with SupervisorHarness(tmp_path, APP) as harness:
        yield harness


def started(directory: Path) -> int:
    """The child of the handler, once it holds its memory."""
    until("the child", (directory / "started").exists)
    return int((directory / "child").read_text())


def forks_and_deaths(harness: SupervisorHarness) -> list[str]:
    """The names of all `Forked` and `Died` messages, in order."""
    harness.pump()
    return [type(fact).__name__ for fact in harness.facts if isinstance(fact, (Forked, Died))]


def test_a_slot_is_filled_only_after_its_last_occupant_and_its_children_are_gone(
    harness: SupervisorHarness, tmp_path: Path
) -> None:
    worker = harness.worker()
    worker.order(1, "holds")
    child = started(tmp_path)
    os.kill(worker.pid, signal.SIGKILL)
    until("the next worker", lambda: forks_and_deaths(harness).count("Forked") == 2)
    assert forks_and_deaths(harness) == ["Forked", "Died", "Forked"]
    assert not is_alive(child)
    died = harness.fact(Died)
    assert (died.job, died.swept, died.stuck) == (1, 1, [])


def test_every_message_about_a_worker_names_its_incarnation(
    harness: SupervisorHarness, tmp_path: Path
) -> None:
    first = harness.worker()
    until("a census", lambda: harness.fact(Alive).incarnations == [first.incarnation])
    os.kill(first.pid, signal.SIGKILL)
    died = harness.fact(Died)
    second = harness.worker(other_than=first.pid)
    assert (died.incarnation, second.incarnation, second.slot) == (
        first.incarnation,
        first.incarnation + 1,
        first.slot,
    )
    harness.send(DumpStacks(first.slot, first.incarnation, 7))
    answer = harness.fact(StackDumped)
    assert (answer.incarnation, answer.token, answer.text) == (first.incarnation, 7, "the worker is gone")
    second.order(5, "holds", code=QUIET)
    started(tmp_path)
    harness.stop(
        impostor(first, second), 5, "kill", ask=0.0, rais=0.0
    )  # as if it were the first that ran job 5
    harness.wait_for_pending_commands()
    assert is_alive(second.pid)
    harness.stop(second, 5, "kill", ask=0.0, rais=0.0)
    assert harness.fact(Died).incarnation == second.incarnation
    until("a census", lambda: harness.fact(Alive).incarnations == [second.incarnation + 1])


def impostor(identity: HarnessWorker, channel: HarnessWorker) -> HarnessWorker:
    """One with the incarnation of another."""
    made = object.__new__(HarnessWorker)
    made.slot, made.pid, made.incarnation = channel.slot, channel.pid, identity.incarnation
    return made


def test_workers_that_leave_at_once_meet_the_fork_budget(harness: SupervisorHarness) -> None:
    """As if a master closed the channel of each forked worker at once."""
    rests: list[StartDelayed] = []
    closed = 0

    def loop() -> bool:
        nonlocal closed
        harness.pump()
        for worker in harness.all_workers[closed:]:
            worker.close()
            closed += 1
        rests[:] = [fact for fact in harness.facts if isinstance(fact, StartDelayed)]
        return len(rests) == 4

    until("the fourth pause", loop)
    assert [(rest.seconds, rest.has_been_ready) for rest in rests] == [
        (0.1, True),
        (0.2, True),
        (0.4, True),
        (0.8, True),
    ]
    assert closed < 12, "forks until then"


@pytest.mark.parametrize("code", [COMETS, WATCHERS], ids=["comets", "watchers"])
def test_children_that_respawn_are_frozen_and_end_with_their_worker(
    harness: SupervisorHarness, tmp_path: Path, code: str
) -> None:
    worker = harness.worker()
    marker = f"{tmp_path}"
    worker.order(1, "holds", code=code, marker=marker)
    started(tmp_path)
    os.kill(worker.pid, signal.SIGKILL)
    died = harness.fact(Died)
    assert [pid for pid in leftover_processes.with_variable("DYING", marker) if is_alive(pid)] == []
    assert died.stuck == []
    assert harness.worker(other_than=worker.pid).run(2, "pid").outcome == "done"


def test_only_descendants_of_the_dead_worker_are_touched(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, APP, workers=2) as harness:
        victim, neighbour = harness.worker(0), harness.worker(1)
        neighbour.order(1, "holds", code=QUIET)
        kept = started(tmp_path)
        (tmp_path / "started").unlink()
        with subprocess.Popen(["sleep", "999"]) as stranger:
            try:
                victim.order(2, "holds", code=COMETS)
                until("the comets", (tmp_path / "started").exists)
                os.kill(victim.pid, signal.SIGKILL)
                assert harness.fact(Died).job == 2
                for pid in (neighbour.pid, kept, stranger.pid):
                    assert is_alive(pid)
                    assert not is_stopped(pid)
            finally:
                stranger.kill()


def test_a_child_that_hangs_in_the_kernel_ends_the_job_and_keeps_the_slot(
    harness: SupervisorHarness, tmp_path: Path
) -> None:
    """The freezer of cgroup v1 holds a process as a dead NFS server does: SIGKILL does not end it."""
    try:
        with cgroup("freezer") as place:
            worker = harness.worker()
            worker.order(1, "holds", code=QUIET)
            child = started(tmp_path)
            (place / "cgroup.procs").write_text(str(child))
            (place / "freezer.state").write_text("FROZEN")
            try:
                os.kill(worker.pid, signal.SIGKILL)
                died = harness.fact(Died)
                assert died.job == 1
                assert [text.split()[0] for text in died.stuck] == [str(child)]
                alive = harness.fact(Alive)
                assert alive.incarnations == [], "its slot is not filled"
                assert forks_and_deaths(harness) == ["Forked"]
            finally:
                (place / "freezer.state").write_text("THAWED")
            assert harness.worker(other_than=worker.pid).slot == worker.slot
            assert not is_alive(child)
    except NoCgroup as why:
        pytest.skip(str(why))


def test_a_worker_that_hangs_in_the_kernel_is_reported_as_dead(
    harness: SupervisorHarness, tmp_path: Path
) -> None:
    try:
        with cgroup("freezer") as place:
            worker = harness.worker()
            worker.order(1, "holds", code=QUIET)
            child = started(tmp_path)
            (place / "cgroup.procs").write_text(str(worker.pid))
            (place / "freezer.state").write_text("FROZEN")
            try:
                harness.stop(worker, 1, "kill", ask=0.0, rais=0.0)
                died = harness.fact(Died)
                assert (died.job, died.status, died.reason) == (1, "SIGKILL", StopReason.KILL)
                assert [text.split()[0] for text in died.stuck] == [str(worker.pid)]
                assert not is_alive(child), "what can be killed is dead before the death is told"
                assert harness.fact(Alive).incarnations == []
            finally:
                (place / "freezer.state").write_text("THAWED")
            assert harness.worker(other_than=worker.pid).slot == worker.slot
    except NoCgroup as why:
        pytest.skip(str(why))
