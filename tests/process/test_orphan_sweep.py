"""A sweep kills the processes that a worker left behind, generation by generation, and no others."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from supervisor_harness import is_alive, is_stopped, until

from pgworkers.linux import proc, sweep
from pgworkers.linux.sweep import ProcessSweep
from pgworkers.settings import Settings
from pgworkers.supervisor import reaper
from pgworkers.supervisor.messages import Died
from pgworkers.supervisor.worker_pool import WorkerPool

SWEEPER = """
import os, subprocess, sys, time
from pgworkers.linux import prctl
from pgworkers.linux.sweep import ProcessSweep

prctl.become_subreaper()
spared = subprocess.Popen(["sleep", "999"])
depth = int(sys.argv[1])
chain = subprocess.Popen([sys.executable, "-c", '''
import os, sys, time
for _ in range(int(sys.argv[1])):
    print(os.getpid(), flush=True)
    if os.fork(): time.sleep(999)
    os.setsid()
print(os.getpid(), flush=True)
print("end", flush=True)
time.sleep(999)
''', str(depth)], stdout=subprocess.PIPE, text=True)
members = []
for line in chain.stdout:
    if line == "end\\n": break
    members.append(int(line))
killed, strays = 0, ProcessSweep()
while True:
    now, left = strays.step({spared.pid})
    killed += now
    if not left: break
left = [pid for pid in members if os.path.exists(f"/proc/{pid}")]
print(len(members), killed, left, spared.poll())
spared.kill(); spared.wait()
"""


def in_another_process(script: str) -> str:
    """What the script prints. It becomes a subreaper and stops processes, so it may not run in ours."""
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_a_chain_of_generations_is_killed_to_its_end_and_counted_once() -> None:
    for depth in (1, 5, 30):
        asked = subprocess.run(
            [sys.executable, "-c", SWEEPER, str(depth)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert asked.stdout.split() == [str(depth + 1), str(depth + 1), "[]", "None"], asked


def test_nothing_is_killed_before_everything_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one of them runs it may start another in place of those that are killed."""
    spared = set(proc.children(os.getpid()))
    families = [
        subprocess.Popen(["sh", "-c", "sleep 999 & wait"], start_new_session=True, stdin=subprocess.DEVNULL)
        for _ in range(3)
    ]
    until(
        "the grandchildren", lambda: all(len(proc.process_with_descendants(one.pid)) == 2 for one in families)
    )
    members = [pid for one in families for pid in proc.process_with_descendants(one.pid)]
    seen_at_kill: list[set[str]] = []
    send = sweep._send_to

    def record(one: proc.ProcessStat, number: int) -> bool | None:
        if number == signal.SIGKILL:
            found = [proc.read_stat(pid) for pid in members]
            seen_at_kill.append({each.state for each in found if each is not None})
        return send(one, number)

    monkeypatch.setattr(sweep, "_send_to", record)
    strays = ProcessSweep(clock=lambda: 0.0)
    until("all of them are gone", lambda: not strays.step(spared)[1])
    for one in families:
        one.wait()  # the sweep has reaped it
    assert len(seen_at_kill) == len(members)
    assert seen_at_kill[0] == {"T"}, "the states of all of them when the first was killed"


def test_a_process_is_known_by_its_marker() -> None:
    environ = {**os.environ, "PGWORKERS_SWEEP_TEST": f"run-{os.getpid()}-a"}
    with (
        subprocess.Popen(["sleep", "999"], env=environ) as ours,
        subprocess.Popen(["sleep", "999"]) as stranger,  # not this one
    ):
        try:
            name, prefix = "PGWORKERS_SWEEP_TEST", f"run-{os.getpid()}-"
            until("the marker", lambda: proc.pids_with_variable(name, prefix) == [ours.pid])
        finally:
            ours.kill()
            stranger.kill()


def test_names_with_spaces_and_parentheses_do_not_confuse_stat(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "999"]) as child:
        try:
            until("the name", lambda: Path(f"/proc/{child.pid}/comm").read_text() == "a) R 1 (b\n")
            found = proc.read_stat(child.pid)
            assert found is not None
            assert (found.ppid, found.process_group) == (os.getpid(), os.getpgrp())
            assert child.pid in proc.children(os.getpid())
            assert child.pid in proc.process_with_descendants(os.getpid())
        finally:
            child.kill()
    assert proc.read_stat(child.pid) is None


@contextlib.contextmanager
def sleeper() -> Iterator[int]:
    """A child of this process that ends in the end, whatever happened to it."""
    with subprocess.Popen(["sleep", "999"]) as child:
        try:
            yield child.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)


@pytest.fixture
def immortal(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """SIGKILL does not reach these, as if they hung in the kernel."""
    found: set[int] = set()
    really = sweep._send

    def send(child: int, number: int) -> bool | None:
        return True if child in found and number == signal.SIGKILL else really(child, number)

    monkeypatch.setattr(sweep, "_send", send)
    return found


def test_a_sweep_whose_last_new_stray_is_gone_waits_for_the_kernel_again(immortal: set[int]) -> None:
    spared = set(proc.children(os.getpid()))
    strays = ProcessSweep()
    with sleeper() as hanging:
        immortal.add(hanging)
        until("all are sent SIGKILL", lambda: strays.step(spared) == (1, [hanging]))
        assert strays.is_waiting_for_kernel
        with sleeper() as brief:
            immortal.add(brief)
            strays._freeze([one for one in [proc.read_stat(brief)] if one is not None])
            assert not strays.is_waiting_for_kernel
        strays.step(spared)
        assert strays.is_waiting_for_kernel, "all that is left was sent SIGKILL"


def zombies(count: int) -> list[int]:
    """Children of this process that ended and wait to be reaped."""
    found = [os.posix_spawnp("true", ["true"], os.environ) for _ in range(count)]
    states = lambda: {one.state for pid in found if (one := proc.read_stat(pid)) is not None}  # noqa: E731
    until("all have ended", lambda: states() == {"Z"})
    return found


@pytest.fixture
def in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "REAP_SLICE_COUNT", 2)
    monkeypatch.setattr(sweep, "REAP_SLICE_SECONDS", -1.0)


@pytest.mark.usefixtures("in_small_parts")
def test_a_crowd_of_zombies_is_reaped_in_parts_and_the_living_are_stopped_first() -> None:
    spared = set(proc.children(os.getpid()))
    ended = zombies(6)
    strays = ProcessSweep()
    with sleeper() as alive:
        assert strays.step(spared) == (0, [*ended[:4], alive])
        until("it is frozen", lambda: is_stopped(alive))
        assert not strays.is_waiting_for_kernel, "there is more to do"
        assert strays.step(spared) == (0, [*ended[:2], alive])
        assert strays.step(spared) == (0, [alive])
        until("all are sent SIGKILL", lambda: strays.step(spared)[1] == [])


@pytest.mark.usefixtures("in_small_parts")
def test_a_sweep_that_gives_up_reaps_before_it_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    pool = idle_pool(told)
    fact = dying(pool, 0.0)
    monkeypatch.setattr(reaper, "SWEEP_SLICE_SECONDS", -1.0)
    ended = zombies(6)
    pool.reap_dead(0.5)
    assert told == []
    pool.reap_dead(sweep.SWEEP_TIMEOUT_SECONDS + 1.0)
    assert told == [fact]
    assert [pid for pid in ended if proc.read_stat(pid) is not None] == []
    assert fact.swept == 0, "nothing was alive"


SESSIONS = """
import os, time
from pgworkers.linux import prctl, proc
from pgworkers.linux.sweep import ProcessSweep

def leader(ends):
    # The leader of a session, and an orphan of it: (its pid, the orphan's pid).
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if ends or os.fork() == 0:
            orphan = os.fork()
            if orphan:
                os.write(writer, str(orphan).encode())
                os._exit(0)
        time.sleep(999)
    return pid, int(os.read(reader, 20))

def states(*pids): return "".join(proc.read_stat(pid).state for pid in pids)

prctl.become_subreaper()
first, successor = leader(ends=True)
spared, orphan = leader(ends=False)
while states(first) != "Z" or proc.read_stat(orphan).ppid != os.getpid(): time.sleep(0.001)
strays = ProcessSweep()
strays._children = lambda: [first, orphan]  # as if the successor was forked after the look
strays._catch({spared})  # a whole step may kill the orphan as well
while states(successor, orphan) != "TT": time.sleep(0.001)
print(states(spared))
del strays._children
while strays.step({spared})[1]: pass
print(states(spared), proc.children(os.getpid()) == [spared])
os.kill(spared, 9)
"""


def test_the_group_of_a_stray_is_stopped_and_that_of_a_spared_child_is_not() -> None:
    said = in_another_process(SESSIONS)
    assert said == "S\nS True\n"


BELOW_A_SPARED_CHILD = """
import os, time
from pgworkers.linux import prctl, proc
from pgworkers.linux.sweep import ProcessSweep

prctl.become_subreaper()
reader, writer = os.pipe()
spared = os.fork()
if spared == 0:
    leader = os.fork()
    if leader == 0:
        os.setsid()
        parent = os.fork()
        if parent == 0:
            orphan = os.fork()
            if orphan:
                os.write(writer, f"{os.getppid()} {orphan}".encode())
                os._exit(0)
        else:
            os.waitpid(parent, 0)
        time.sleep(999)
    time.sleep(999)
leader, orphan = map(int, os.read(reader, 99).split())
while proc.read_stat(orphan).ppid != os.getpid(): time.sleep(0.001)
strays = ProcessSweep()
while strays.step({spared})[1]: pass
print(proc.read_stat(leader).state == "T", proc.read_stat(orphan))
os.kill(leader, 9)
os.kill(spared, 9)
"""


def test_the_group_of_a_stray_is_not_stopped_if_it_has_members_below_a_spared_child() -> None:
    """They would stay stopped for ever: only the orphan is killed."""
    said = in_another_process(BELOW_A_SPARED_CHILD)
    assert said == "False None\n"


MOVED_TO_ITS_OWN_SESSION = """
import os, signal, time
from pgworkers.linux import prctl, proc
from pgworkers.linux.sweep import ProcessSweep

reader, writer = os.pipe()
supervisor = os.fork()
if supervisor == 0:
    os.setsid()
    if os.fork() == 0:
        os.setpgid(0, 0)
        prctl.become_subreaper()
        os.setpgid(0, os.getsid(0))
        left = os.fork()
        if left == 0:
            time.sleep(999)
        os.setsid()
        strays = ProcessSweep()
        while strays.step(())[1]: pass
        os.write(writer, str(left).encode())
        os._exit(0)
    while True: signal.pause()
left = int(os.read(reader, 20))
print(proc.read_stat(supervisor).state == "T", proc.read_stat(left))
os.kill(supervisor, 9)
"""


def test_a_worker_that_moved_to_its_own_session_does_not_stop_its_supervisor() -> None:
    said = in_another_process(MOVED_TO_ITS_OWN_SESSION)
    assert said == "False None\n"


@pytest.mark.parametrize("group", [0, 1])
def test_a_group_of_another_pid_namespace_is_not_signalled(
    group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel shows it as 0. To signal group 0 is to signal our own, and 1 means every process."""
    signalled: list[int] = []
    spared = set(proc.children(os.getpid()))
    with subprocess.Popen(["sleep", "999"], start_new_session=True):
        monkeypatch.setattr(os, "getpgid", lambda _pid: group)
        monkeypatch.setattr(os, "killpg", lambda number, _signal: signalled.append(number))
        strays = ProcessSweep()
        until("it is gone", lambda: not strays.step(spared)[1])
    assert signalled == []


def test_zombies_hide_no_younger_child_from_the_memory_limit() -> None:
    limit = len(proc.process_with_descendants(os.getpid())) + 2
    ended = zombies(5)
    with sleeper() as alive:
        assert alive in proc.process_with_descendants(os.getpid(), limit)
    for pid in ended:
        os.waitpid(pid, 0)


WITHOUT_A_MAIN_THREAD = """
import ctypes, subprocess, threading, time

def work():
    subprocess.Popen(["sleep", "999"])
    time.sleep(999)

threading.Thread(target=work).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_the_children_of_a_process_whose_main_thread_has_ended_are_found() -> None:
    """It is shown as a zombie, but its other threads run."""
    with subprocess.Popen([sys.executable, "-c", WITHOUT_A_MAIN_THREAD]) as parent:
        try:
            until(
                "its main thread ended",
                lambda: (one := proc.read_stat(parent.pid)) is not None and one.state == "Z",
            )
            until("its child", lambda: len(proc.children(parent.pid)) == 1)
            [child] = proc.children(parent.pid)
            assert {parent.pid, child} <= set(proc.process_with_descendants(os.getpid()))
            os.kill(child, signal.SIGKILL)
        finally:
            parent.kill()


def dying(pool: WorkerPool, since: float) -> Died:
    """A worker of this pool that is dead; nothing but its orphans is left."""
    fact = Died(0, 1 << 22, 1, 7, 1, "SIGKILL", 9, True)
    pool._reaper.dying[0] = reaper.Death(fact, since)
    return fact


def idle_pool(told: list[Any]) -> WorkerPool:
    template: Any = SimpleNamespace(settings=Settings(max_workers=1))
    return WorkerPool(template, 0, told.append)


def test_children_that_are_only_frozen_when_the_sweep_gives_up_are_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    pool = idle_pool(told)
    fact = dying(pool, 0.0)
    with sleeper() as child:
        with monkeypatch.context() as patch:
            freeze = ProcessSweep._freeze
            patch.setattr(
                ProcessSweep, "_freeze", lambda self, found: freeze(self, found) or True
            )  # it never ends
            pool.reap_dead(sweep.SWEEP_TIMEOUT_SECONDS - 1.0)
            until("it is frozen", lambda: is_stopped(child))
            assert told == []
            pool.reap_dead(sweep.SWEEP_TIMEOUT_SECONDS + 1.0)
        assert told == [fact]
        assert fact.stuck == [], "it was not sent SIGKILL before"

        def freed() -> bool:
            pool.reap_dead(sweep.SWEEP_TIMEOUT_SECONDS + 2.0)
            return not pool._reaper.dying

        until("its slot is free", freed)
        assert not is_alive(child)


def test_the_death_of_a_worker_with_thousands_of_stuck_children_fits_in_a_packet(immortal: set[int]) -> None:
    told: list[Any] = []
    pool = idle_pool(told)
    fact = dying(pool, 0.0)
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(sleeper()) for _ in range(25)]
        immortal.update(children)
        pool.reap_dead(0.5)
        until(
            "all are sent SIGKILL",
            lambda: pool.reap_dead(1.0) is None and pool._reaper._sweep.is_waiting_for_kernel,
        )
        pool.reap_dead(sweep.KERNEL_HANG_SECONDS + 1.0)
        assert told == [fact]
        assert len(fact.stuck) == 21
        assert fact.stuck[-1] == "5 more"
        assert pool._reaper.dying[0].stuck == set(children), "the slot is kept for all of them"


def test_a_child_of_another_user_is_named_and_does_not_keep_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `sudo` does under a host that is not root."""
    told: list[Any] = []
    pool = idle_pool(told)
    fact = dying(pool, 0.0)
    with sleeper() as child:
        monkeypatch.setattr(sweep, "_send", lambda pid, number: False)
        fact.killed_children = [f"sleep (pid {child})", "other (pid 1)"]
        pool.reap_dead(0.5)
        assert told == []
        pool.reap_dead(sweep.KERNEL_HANG_SECONDS + 1.0)
        assert told == [fact]
        assert fact.stuck == []
        assert [text.split()[0] for text in fact.foreign] == [str(child)]
        assert fact.killed_children == ["other (pid 1)"], "it was not killed"
        pool.reap_dead(sweep.KERNEL_HANG_SECONDS + 1.1)
        assert pool._reaper.dying == {}
        assert is_alive(child)


@pytest.mark.parametrize("look", [proc.children, proc.process_with_descendants, proc.read_stat])
def test_a_process_that_proc_hides_has_no_children(look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hidepid` refuses looks at processes of other users."""

    def refuse(*_args: object) -> Any:
        raise PermissionError("hidden")

    monkeypatch.setattr(proc.os, "listdir", refuse)
    monkeypatch.setattr(proc, "read_file", refuse)
    assert look(4711) in ([], [4711], None)


UNPRIVILEGED = """
import os, subprocess
from pgworkers.linux.sweep import ProcessSweep

child = subprocess.Popen(["sleep", "999"])
os.setresuid(12345, 12345, 0)
strays = ProcessSweep()
found = [strays.step(()) for _ in range(3)]
print([killed for killed, _ in found], found[-1][1] == [child.pid], strays.is_waiting_for_kernel)
print(strays.not_permitted([child.pid]) == {child.pid}, strays.unkillable([child.pid]), child.poll())
os.setresuid(0, 0, 0)
child.kill()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes of several users")
def test_a_protected_process_is_distinguished_from_one_that_hangs() -> None:
    said = in_another_process(UNPRIVILEGED)
    assert said.splitlines() == ["[0, 0, 0] True True", "True set() None"]
