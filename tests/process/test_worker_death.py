"""A worker that dies is reported with its cause, replaced, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervisor_harness import Died, Exit, Forked, HarnessWorker, Scale, SupervisorHarness, is_alive, until

from pgworkers.ipc.scoreboard import StopReason
from pgworkers.linux import proc
from pgworkers.worker.messages import FrameKind

APP = """
def child_of(how: str) -> int:
    shell = {
        "plain": "sleep 999 & echo $!",
        "own session": "setsid sh -c 'echo $$; exec sleep 999' &",
        "double fork": "(sleep 999 & echo $!) ",
        "daemon": "setsid sh -c '(sleep 999 & echo $!)' ",
        "no environment": "env -i setsid sh -c '(sleep 999 & echo $!)' ",
    }[how]
    asked = subprocess.Popen(["sh", "-c", shell], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    child = int(asked.stdout.readline())
    asked.wait()    # the shells between are gone: who remains is the child alone
    return child

@app.task
def leaves(how: str) -> int:
    return child_of(how)

@app.task
def leaves_and_hangs(how: str) -> None:
    with open("child.part", "w") as file: file.write(str(child_of(how)))
    os.rename("child.part", "child")
    while True: time.sleep(0.01)

@app.task
def forks_a_python_child() -> int:
    pid = os.fork()
    if pid == 0: return -1      # returns from the handler, in the child
    return pid

@app.task
def leaves_a_zombie() -> int:
    pid = os.fork()
    if pid == 0: os._exit(0)
    while " Z " not in open(f"/proc/{pid}/stat").read(): time.sleep(0.001)
    return pid

@app.task
def closes(then: str) -> None:
    os.closerange(3, 4096)
    while then == "stay": time.sleep(0.01)

@app.task
def pid() -> int:
    return os.getpid()

@app.task
def hang(label: str) -> None:
    print("hanging", label)
    open("started", "w").close()
    while True: time.sleep(0.01)

def guilty_crash(how):
    if how == "segfault": ctypes.string_at(0)
    if how == "abort": os.abort()
    if how == "exit": os._exit(0)
    if how == "exit 3": os._exit(3)
    if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if how == "term": os.kill(os.getpid(), signal.SIGTERM)

@app.task
def crash(how: str) -> None:
    print("about to crash")
    guilty_crash(how)

@app.task
def multiprocess(n: int) -> int:
    import multiprocessing
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return sum(pool.map(abs, range(n)))
"""
ESCAPES = ["plain", "own session", "double fork", "daemon", "no environment"]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[SupervisorHarness]:
    with SupervisorHarness(tmp_path, APP) as harness:
        yield harness


def read_child(tmp_path: Path) -> int:
    until("the handler's child", (tmp_path / "child").exists)
    return int((tmp_path / "child").read_text())


@pytest.mark.parametrize(
    ("how", "status", "number", "has_stack"),
    [
        ("segfault", "SIGSEGV", signal.SIGSEGV, True),
        ("abort", "SIGABRT", signal.SIGABRT, True),
        ("exit", "exit 0", 0, False),
        ("exit 3", "exit 3", 0, False),
        ("kill", "SIGKILL", signal.SIGKILL, False),
        ("term", "SIGTERM", signal.SIGTERM, False),
    ],
)
def test_the_cause_of_death(
    harness: SupervisorHarness, how: str, status: str, number: int, has_stack: bool
) -> None:
    worker = harness.worker()
    worker.order(7, "crash", lease=2, how=how)
    died = harness.fact(Died)
    assert (died.slot, died.pid, died.job, died.lease) == (0, worker.pid, 7, 2)
    assert (died.status, died.signal, died.was_ready, died.is_oom) == (status, number, True, False)
    assert (died.reason, died.rungs) == (None, [])
    assert ("guilty_crash" in (died.stack or "")) == has_stack
    assert died.output == "about to crash\n"
    assert died.peak_rss > 1 << 20
    assert died.cpu < 5
    assert worker.take(FrameKind.REPORT) is None
    assert harness.worker(other_than=worker.pid).run(8, "pid").outcome == "done"


@pytest.mark.parametrize("then", ["return", "stay"])
def test_a_handler_that_closes_every_descriptor_is_named(harness: SupervisorHarness, then: str) -> None:
    """Whether it returns, or its heartbeat notices that no report can be sent."""
    worker = harness.worker()
    worker.order(7, "closes", lease=2, then=then)
    died = harness.fact(Died)
    assert (died.job, died.lease, died.has_closed_channel) == (7, 2, True)
    other = harness.worker(other_than=worker.pid)
    assert other.run(8, "pid").outcome == "done"
    other.order(9, "crash", how="exit")
    assert not harness.fact(Died).has_closed_channel


def test_kill_9_of_an_idle_worker_has_no_job(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    worker.run(1, "pid")
    os.kill(worker.pid, signal.SIGKILL)
    died = harness.fact(Died)
    assert (died.job, died.lease, died.status, died.was_ready) == (0, 0, "SIGKILL", True)
    harness.worker(other_than=worker.pid)


def test_simultaneous_deaths_are_all_reported(tmp_path: Path) -> None:
    """SIGCHLD does not count: several deaths may be one signal."""
    with SupervisorHarness(tmp_path, APP, workers=12) as harness:
        first = [harness.worker(slot) for slot in range(12)]
        for worker in first:
            os.kill(worker.pid, signal.SIGKILL)
        gone = {harness.fact(Died).pid for _ in first}
        assert gone == {worker.pid for worker in first}
        for worker in first:
            harness.worker(worker.slot, other_than=worker.pid)
        zombies = [
            s for pid in proc.children(harness.process.pid) if (s := proc.read_stat(pid)) and s.state == "Z"
        ]
        assert not zombies


@pytest.mark.parametrize("how", ESCAPES)
def test_nothing_survives_the_kill(harness: SupervisorHarness, tmp_path: Path, how: str) -> None:
    worker = harness.worker()
    worker.order(1, "leaves_and_hangs", how=how)
    child = read_child(tmp_path)
    assert is_alive(child)
    harness.stop(worker, 1, ask=0, rais=0)
    # `sleep` does not obey, but the handler may: killed or not, its children go
    until("the end of the handler's child", lambda: not is_alive(child))


@pytest.mark.parametrize("how", ESCAPES)
def test_nothing_survives_the_death_of_a_worker(harness: SupervisorHarness, tmp_path: Path, how: str) -> None:
    worker = harness.worker()
    worker.order(1, "leaves_and_hangs", how=how)
    child = read_child(tmp_path)
    os.kill(worker.pid, signal.SIGKILL)
    died = harness.fact(Died)
    assert not is_alive(child), "dead before the death was told"
    assert died.swept == (0 if how in ("plain", "double fork") else 1), "those in the group need no sweep"


@pytest.mark.parametrize("how", ESCAPES)
def test_children_left_by_a_job_that_ended_well_are_swept(harness: SupervisorHarness, how: str) -> None:
    worker = harness.worker()
    report = worker.run(1, "leaves", how=how)
    assert report.outcome == "done"
    assert not is_alive(int(bytes(report.result))), "gone before the report"
    assert int(bytes(worker.run(2, "pid").result)) == worker.pid


def test_the_children_of_a_neighbour_are_never_touched(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, APP, workers=2) as harness:
        neighbour, victim = harness.worker(0), harness.worker(1)
        neighbour.order(1, "leaves_and_hangs", how="daemon")
        child = read_child(tmp_path)
        for job in range(2, 7):
            victim.order(job, "crash", how="kill")
            harness.fact(Died)
            assert is_alive(child)
            victim = harness.worker(1, other_than=victim.pid)
        parent = proc.read_stat(child)
        assert parent is not None
        assert parent.ppid == neighbour.pid, "orphans of a living worker are its own"
        harness.stop(neighbour, 1, ask=0, rais=0)
        until("the end of the child", lambda: not is_alive(child))


def test_a_forked_child_that_returns_from_the_handler_reports_nothing(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    report = worker.run(1, "forks_a_python_child")
    assert report.outcome == "done"
    child = int(bytes(report.result))
    assert child > 0
    assert not is_alive(child)
    assert int(bytes(worker.run(2, "pid").result)) == worker.pid
    assert worker.take(FrameKind.REPORT) is None


def test_zombies_are_reaped(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    zombie = int(bytes(worker.run(1, "leaves_a_zombie").result))
    assert proc.read_stat(zombie) is None
    assert proc.children(worker.pid) == []


def test_multiprocessing_works_in_a_handler(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    for job in (1, 2):
        assert bytes(worker.run(job, "multiprocess", n=10).result) == b"45"


def all_gone(harness: SupervisorHarness, workers: list[HarnessWorker], *others: int) -> bool:
    return not any(is_alive(pid) for pid in (harness.process.pid, *(w.pid for w in workers), *others))


@pytest.mark.parametrize("how", ["daemon", "plain"])
def test_a_closed_control_socket_is_the_end_of_everything(tmp_path: Path, how: str) -> None:
    with SupervisorHarness(tmp_path, APP, workers=3) as harness:
        workers = [harness.worker(slot) for slot in range(3)]
        workers[0].order(1, "leaves_and_hangs", how=how)
        workers[1].order(2, "hang", label="x")
        child = read_child(tmp_path)
        harness.control.sock.close()
        harness.gone = True
        until(
            "an empty tree",
            lambda: all_gone(harness, workers, child) or (harness.process.poll(), False)[1],
        )


def test_the_death_of_the_supervisor_takes_its_workers(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, APP, workers=3) as harness:
        workers = [harness.worker(slot) for slot in range(3)]
        workers[1].order(2, "hang", label="x")
        until("the start", (tmp_path / "started").exists)
        os.kill(harness.process.pid, signal.SIGKILL)
        until("an empty tree", lambda: all_gone(harness, workers) or (harness.process.poll(), False)[1])


def test_a_worker_whose_master_is_gone_ends_itself(tmp_path: Path) -> None:
    """Only its own socket is closed: the supervisor sees nothing, the heartbeat does."""
    with SupervisorHarness(tmp_path, APP) as harness:
        worker = harness.worker()
        worker.order(1, "hang", label="x")
        until("the start", (tmp_path / "started").exists)
        worker.close()
        died = harness.fact(Died)
        assert (died.job, died.status, died.reason) == (1, "SIGKILL", None)


def test_sigterm_of_the_supervisor_is_ignored_while_its_parent_is_alive(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    for signum in (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    ):
        os.kill(harness.process.pid, signum)
    assert worker.run(1, "pid").outcome == "done"
    assert harness.process.poll() is None


def test_exit_reports_every_death(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, APP, workers=2) as harness:
        worker = harness.worker(0)
        harness.worker(1)
        worker.order(4, "hang", label="x")
        until("the start", (tmp_path / "started").exists)
        harness.send(Exit())
        deaths = {died.slot: died for died in (harness.fact(Died), harness.fact(Died))}
        assert (deaths[0].job, deaths[0].reason) == (4, StopReason.KILL)
        assert (deaths[1].job, deaths[1].reason) == (0, None)
        until("the supervisor's end", lambda: harness.process.poll() is not None)
        assert harness.process.returncode == 0


def test_scaling_up_forks_and_scaling_down_forks_no_replacements(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, APP, workers=1) as harness:
        harness.worker(0)
        harness.send(Scale(3))
        workers = [harness.worker(slot) for slot in range(3)]
        harness.send(Scale(1))
        harness.wait_for_pending_commands()  # a death that it sees before the order would be replaced
        for worker in workers[1:]:
            worker.close()
        assert {harness.fact(Died).slot, harness.fact(Died).slot} == {1, 2}
        os.kill(workers[0].pid, signal.SIGKILL)
        harness.fact(Died)
        harness.worker(0, other_than=workers[0].pid)
        assert len([fact for fact in harness.facts if isinstance(fact, Forked)]) == 4


@pytest.mark.parametrize(
    ("point", "job_told", "report"),
    [("after_order", 1, False), ("before_report", 1, False), ("after_report", 1, True)],
)
def test_fault_points(tmp_path: Path, point: str, job_told: int, report: bool) -> None:
    with SupervisorHarness(tmp_path, APP, environ={"PGWORKERS_FAULT": point}) as harness:
        worker = harness.worker()
        worker.order(1, "pid")
        died = harness.fact(Died)
        assert (died.job, died.status) == (job_told, "SIGKILL")
        assert (worker.take(FrameKind.REPORT) is not None) == report


def test_the_master_dies_between_fork_and_prctl(tmp_path: Path) -> None:
    with SupervisorHarness(
        tmp_path, APP, environ={"PGWORKERS_FAULT": "fork_child_early:sleep=0.5"}
    ) as harness:
        forked = harness.fact(Forked)
        os.kill(harness.process.pid, signal.SIGKILL)
        harness.process.wait()
        until("the child's end", lambda: not is_alive(forked.pid))
