"""Descriptors of ours in a worker: handlers and their children may close them and open others under the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from supervisor_harness import Died, DumpStacks, StackDumped, SupervisorHarness, is_alive, until

from pgworkers.ipc.scoreboard import StopReason

APP = """
import multiprocessing, socket

def report(work):
    # Run `work` in a forked child and return what it says.
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try: said = repr(work())
        except BaseException as error: said = repr(error)
        os.write(writes, said.encode()); os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe: said = pipe.read()
    os.waitpid(pid, 0)
    return said

def files():
    # All free numbers up to the highest that was ever ours now belong to files of this process.
    taken = [os.open(os.devnull, os.O_RDWR) for _ in range(64)]
    low, high = set(range(3, 1024)), []
    for number in sorted(low - {int(n) for n in os.listdir("/proc/self/fd")}):
        high.append(os.dup2(taken[0], number))
    return taken + high

def look(opened):
    return sum(os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev for fd in opened) == len(opened)

@app.task
def grandchild() -> str:
    def child():
        opened = files()
        return report(lambda: look(opened))
    return report(child)

@app.task
def grandchild_signals() -> str:
    def child():
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        return report(lambda: signal.getsignal(signal.SIGUSR1))
    return report(child)

def square(n): return n * n

@app.task
def pool_in_child(files: int) -> str:
    def child():
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range(files)]
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map_async(square, range(8)).get(20)
    return report(child)

def channels():
    found = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd") if int(n) > 2]
    return {os.readlink(path) for path in found if os.path.islink(path) and os.readlink(path)[:5] in ("socke", "pipe:")}

@app.task
def child_holds() -> list:
    # What a forked child has open of ours: neither the socket nor the tickets.
    ours = channels()
    return [len(ours), report(lambda: sorted(ours & channels()))]

def take_all_numbers():
    # Every descriptor of this process is replaced by a file of the handler's own.
    own = os.open("own", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    for number in sorted(int(n) for n in os.listdir("/proc/self/fd")):
        if number != own:
            try: os.dup2(own, number)
            except OSError: pass
    return own

@app.task
def takes_numbers(how: str) -> None:
    own = take_all_numbers()
    open("taken", "w").close()
    while not os.path.exists("go"):
        try: time.sleep(0.01)
        except BaseException: pass
    if how == "raises": raise ValueError("on purpose")

@app.task
def closes_and_opens_sockets(ctx: Ctx, kind: str) -> list:
    os.closerange(0, 512)
    if kind == "sockets": pairs = [socket.socketpair() for _ in range(64)]
    else:
        pairs = [socket.socketpair() for _ in range(3)]
        pairs += [(os.fdopen(os.open(os.devnull, os.O_RDONLY)),) for _ in range(64)]
    for done in range(20):  # ten beats
        ctx.progress(done, 20)
        time.sleep(0.025)
    said = []
    for pair in pairs:
        for end in pair:
            if not isinstance(end, socket.socket): continue
            end.setblocking(False)
            try: said.append(end.recv(4096).decode("utf-8", "replace"))
            except BlockingIOError: pass
    with open("said", "w") as out: out.write(repr(said))
    return said

@app.task
def add(a: int, b: int) -> int:
    return a + b
"""


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[SupervisorHarness]:
    with SupervisorHarness(tmp_path, APP, ask_grace=600.0) as harness:
        yield harness


def test_a_grandchild_keeps_the_files_of_its_parent(harness: SupervisorHarness) -> None:
    assert bytes(harness.worker().run(1, "grandchild").result) == b"\"'True'\""


def test_a_grandchild_keeps_the_signal_handlers_of_its_parent(harness: SupervisorHarness) -> None:
    said = msgspec.json.decode(bytes(harness.worker().run(1, "grandchild_signals").result))
    assert "SIG_IGN" in said


def test_a_child_may_run_a_process_pool(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    for files in range(5):  # one of the pool's pipes has each number in turn
        said = msgspec.json.decode(bytes(worker.run(1 + files, "pool_in_child", files=files).result))
        assert "[0, 1, 4, 9, 16, 25, 36, 49]" in said, files


def test_a_forked_child_has_neither_our_socket_nor_our_tickets(harness: SupervisorHarness) -> None:
    wanted, held = msgspec.json.decode(bytes(harness.worker().run(1, "child_holds").result))
    assert wanted >= 2, "the worker itself has a socket and a pipe"
    assert held == "[]"


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_the_end_of_a_job_writes_nothing_to_a_file_that_took_our_numbers(tmp_path: Path, how: str) -> None:
    with SupervisorHarness(tmp_path, APP, heartbeat_interval=600.0) as harness:  # no beat notices it
        worker = harness.worker()
        worker.order(1, "takes_numbers", how=how)
        until("the handler has our numbers", (tmp_path / "taken").exists)
        (tmp_path / "go").touch()
        died = harness.fact(Died)
        assert (died.job, died.has_closed_channel) == (1, True)
        assert died.status in ("exit 0", "SIGKILL"), (
            "it leaves, or its first beat came late and found the channel gone"
        )
        assert (tmp_path / "own").read_bytes() == b""
        assert harness.worker(other_than=worker.pid).run(2, "add", a=1, b=2).outcome == "done"


def test_a_beat_writes_nothing_to_a_file_that_took_our_numbers(
    harness: SupervisorHarness, tmp_path: Path
) -> None:
    worker = harness.worker()
    worker.order(1, "takes_numbers", how="returns")
    died = harness.fact(Died)
    assert (died.job, died.has_closed_channel, died.status) == (1, True, "SIGKILL")
    assert (tmp_path / "own").read_bytes() == b""


def test_a_stop_writes_nothing_to_a_file_that_took_our_numbers(tmp_path: Path) -> None:
    with SupervisorHarness(
        tmp_path, APP, heartbeat_interval=600.0
    ) as harness:  # no beat notices it: the supervisor has to look
        worker = harness.worker()
        worker.order(1, "takes_numbers", how="returns")
        until("the handler has our numbers", (tmp_path / "taken").exists)
        harness.send(DumpStacks(worker.slot, worker.incarnation, 7))
        assert "closed the descriptor" in harness.fact(StackDumped, lambda stack: stack.token == 7).text
        harness.stop(worker, 1, ask=0.0, rais=0.0)
        died = harness.fact(Died)
        assert (died.job, died.reason) == (1, StopReason.CANCEL)
        assert not is_alive(worker.pid)
    assert (tmp_path / "own").read_bytes() == b""


@pytest.mark.parametrize("kind", ["sockets", "files"])
def test_sockets_of_a_handler_that_closed_descriptors_get_none_of_our_frames(
    harness: SupervisorHarness, tmp_path: Path, kind: str
) -> None:
    worker = harness.worker()
    worker.order(1, "closes_and_opens_sockets", kind=kind)
    end = harness.end(worker, 1)
    assert (tmp_path / "said").read_text() == "[]", end
