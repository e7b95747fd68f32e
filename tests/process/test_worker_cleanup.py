"""What a handler does to its process is not the next job's problem."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from supervisor_harness import Died, SupervisorHarness, until

from pgworkers.worker.cleanup import TRUSTED_AFTER_JOBS

APP = """
import locale, resource

@app.task
def state() -> dict:
    mask = os.umask(0); os.umask(mask)
    return {
        "cwd": os.getcwd(), "umask": mask, "env": sorted(os.environ.items()),
        "usr1": str(signal.getsignal(signal.SIGUSR1)), "term": str(signal.getsignal(signal.SIGTERM)),
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), "timer": signal.getitimer(signal.ITIMER_REAL)[0],
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0], "cores": sorted(os.sched_getaffinity(0)),
        "locale": locale.setlocale(locale.LC_ALL), "recursion": sys.getrecursionlimit(),
        "stdout": [os.readlink("/proc/self/fd/1"), sys.stdout is sys.__stdout__],
    }

@app.task
def mess(kind: str) -> None:
    if kind == "cwd": os.chdir("/")
    if kind == "cwd gone": os.mkdir("away"); os.chdir("away"); os.rmdir("../away")
    if kind == "umask": os.umask(0o777)
    if kind == "env": os.environ["NEW"] = "1"; del os.environ["PATH"]; os.environ["HOME"] = "/nowhere"
    if kind == "signals":
        for s in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
    if kind == "timer": signal.alarm(1000)  # one that rings kills the worker
    if kind == "soft limit": resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    if kind == "cores": os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if kind == "locale":
        for name in ("C.UTF-8", "POSIX", "C"):
            try: locale.setlocale(locale.LC_ALL, name); break
            except locale.Error: pass
    if kind == "recursion": sys.setrecursionlimit(5000)
    if kind == "streams": sys.stdout = sys.stderr = None; os.close(1); os.close(2)
    if kind == "faulthandler":
        import faulthandler; faulthandler.disable(); faulthandler.unregister(signal.SIGUSR2)

@app.task
def loud() -> None:
    print("heard"); raise ValueError("x")

def guilty_crash():
    ctypes.string_at(0)

@app.task
def crash() -> None:
    guilty_crash()

@app.task
def hang() -> None:
    while True: pass

@app.task
async def leaves_a_task(stubborn: bool) -> None:
    async def background():
        while True:
            try: await asyncio.sleep(999)
            except asyncio.CancelledError:
                if not stubborn: raise
    asyncio.create_task(background()); await asyncio.sleep(0)

@app.task
async def tasks() -> int:
    return len(asyncio.all_tasks())
"""
KINDS = [
    *("cwd", "cwd gone", "umask", "env", "signals", "timer", "soft limit", "cores", "locale", "recursion"),
    *("streams", "faulthandler"),
]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[SupervisorHarness]:
    with SupervisorHarness(tmp_path, APP) as harness:
        yield harness


def test_everything_is_put_back(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    before = msgspec.json.decode(bytes(worker.run(1, "state").result))
    for job, kind in enumerate(KINDS, 2):
        report = worker.run(job, "mess", kind=kind)
        assert (report.outcome, report.is_last) == ("done", False), (kind, report.error)
        after = msgspec.json.decode(bytes(worker.run(100 + job, "state").result))
        assert after == before, kind
    assert worker.run(200, "loud").output == "heard\n"
    worker.order(201, "hang")
    harness.wait_for_stack(worker, "in hang")  # SIGUSR2 writes a stack again and ends no process
    harness.stop(worker, 201, ask=0)
    assert worker.report(201).outcome == "stopped", "SIGUSR1 is heard again"
    worker.order(202, "crash")
    assert "guilty_crash" in (harness.fact(Died).stack or ""), "so is a crash"


def test_changes_by_c_code_in_short_jobs_are_restored_before_the_worker_waits(
    tmp_path: Path,
) -> None:
    source = """
    C = ctypes.CDLL(None)
    @app.task
    def away() -> None: C.chdir(b"/")
    @app.task
    def where() -> str: return os.getcwd()
    """
    with SupervisorHarness(tmp_path, source) as harness:
        worker = harness.worker()
        before = bytes(worker.run(1, "where").result)
        assert before != b'"/"'
        for job in range(2, 42):
            worker.order(job, "away")
        for job in range(2, 42):
            assert worker.report(job).outcome == "done"
        until("it has looked", lambda: os.readlink(f"/proc/{worker.pid}/cwd") != "/")
        assert bytes(worker.run(50, "where").result) == before


def test_environment_changes_of_short_jobs_do_not_reach_other_jobs(tmp_path: Path) -> None:
    source = """
    @app.task
    def change(n: int) -> None:
        if n % 4 == 0: os.environ["NEW"] = "1"
        if n % 4 == 1: os.environ.pop("PATH")
        if n % 4 == 2: os.environ.update(HOME="/nowhere")
        if n % 4 == 3: os.environb.clear()
    @app.task
    def seen() -> list: return [os.environ.get(name) for name in ("NEW", "PATH", "HOME")]
    """
    with SupervisorHarness(tmp_path, source) as harness:
        worker = harness.worker()
        before = bytes(worker.run(1, "seen").result)
        for job in range(2, 82, 2):
            worker.order(job, "change", n=job // 2)
            worker.order(job + 1, "seen")
        for job in range(2, 82, 2):
            assert worker.report(job).outcome == "done"
            assert bytes(worker.report(job + 1).result) == before, job


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")
def test_a_process_that_cannot_be_repaired_has_done_its_last_job(tmp_path: Path) -> None:
    source = """
    @app.task
    def drop_rights() -> None: os.setresuid(65534, 65534, 65534)
    @app.task
    def user() -> int: return os.getuid()
    """
    with SupervisorHarness(tmp_path, source) as harness:
        worker = harness.worker()
        assert worker.run(1, "drop_rights").is_last is True
        assert harness.fact(Died).status == "exit 0"
        assert bytes(harness.worker(other_than=worker.pid).run(2, "user").result) == b"0"


def test_a_lowered_hard_limit_does_not_reach_the_next_job(tmp_path: Path) -> None:
    """Root may raise it again; any other user needs a new process."""
    source = """
    import resource
    @app.task
    def lower() -> None: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    @app.task
    def limit() -> list: return resource.getrlimit(resource.RLIMIT_NOFILE)
    """
    with SupervisorHarness(tmp_path, source) as harness:
        worker = harness.worker()
        before = bytes(worker.run(1, "limit").result)
        last = worker.run(2, "lower").is_last
        if last:
            assert harness.fact(Died).status == "exit 0"
            worker = harness.worker(other_than=worker.pid)
        assert bytes(worker.run(3, "limit").result) == before != b"[100,100]"


def test_a_handler_that_takes_every_descriptor_is_still_reported(tmp_path: Path) -> None:
    source = """
    KEPT = []
    @app.task
    def take_all() -> str:
        subprocess.Popen(["sleep", "999"])
        try:
            while True: KEPT.append(os.open("/dev/null", 0))
        except OSError as error: return error.strerror
    @app.task
    def fine() -> int: return 1
    """
    with SupervisorHarness(tmp_path, source) as harness:
        worker = harness.worker()
        report = worker.run(1, "take_all")
        assert (bytes(report.result), report.is_last) == (b'"Too many open files"', True)
        assert harness.fact(Died).status == "exit 0"
        assert bytes(harness.worker(other_than=worker.pid).run(2, "fine").result) == b"1"


def test_tasks_left_on_the_event_loop_are_cancelled(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    assert worker.run(1, "leaves_a_task", stubborn=False).is_last is False
    assert bytes(worker.run(2, "tasks").result) == b"1"
    assert worker.run(3, "leaves_a_task", stubborn=True).is_last is True, (
        "one that swallows it ends the worker"
    )
    assert harness.fact(Died).status == "exit 0"


IN_A_ROW = """
@app.task
def quick(do: str = "") -> list[str | None]:
    if do == "stdout": sys.stdout = None
    if do == "stdin": sys.stdin = None
    if do == "deep": sys.setrecursionlimit(5000)
    if do == "environ": os.environ["LEFT"] = "behind"
    if do == "half": print("half a line", end="")
    if do == "fail": raise ValueError("no")
    return [str(sys.stdin is not None), str(sys.stdout is not None), str(sys.getrecursionlimit()), os.environ.get("LEFT")]
"""


def test_very_short_jobs_in_a_row_leave_nothing_to_each_other(tmp_path: Path) -> None:
    """After most jobs of a trusted task a few comparisons are enough; after these they are not."""
    with SupervisorHarness(tmp_path, IN_A_ROW, environ={"PYTHONUNBUFFERED": ""}) as harness:
        worker = harness.worker()
        clean = worker.run(1, "quick").result
        os.kill(worker.pid, signal.SIGSTOP)  # so that all of them wait, and follow each other at once
        wishes = ["stdout", "stdin", "deep", "environ", "half", "fail"]
        quick = ["", "", "", "", ""]
        orders = [do for wish in wishes * 6 for do in (*quick, wish, "fail" if wish == "half" else "")]
        for job, do in enumerate(orders, start=2):
            worker.order(job, "quick", do=do)
        os.kill(worker.pid, signal.SIGCONT)
        for job, do in enumerate(orders, start=2):
            report = worker.report(job)
            if do == "fail":
                assert report.output is None, "what the job before it wrote is not its own"
            elif do in ("", "half"):
                assert report.result == clean, f"job {job} found what {orders[job - 3]!r} left"


TRUSTED = """
@app.task
def move(to: str = "") -> None:
    if to: os.chdir(to)

@app.task
def where() -> str:
    return os.getcwd()
"""


def test_what_a_trusted_task_changes_is_put_back_before_the_worker_waits_and_costs_it_its_trust(
    tmp_path: Path,
) -> None:
    with SupervisorHarness(tmp_path, TRUSTED) as harness:
        worker = harness.worker()
        before = bytes(worker.run(1, "where").result)
        assert before != b'"/"'
        last = 2 * TRUSTED_AFTER_JOBS
        for job in range(2, last):
            worker.order(job, "move")
        worker.order(last, "move", to="/")
        for job in range(2, last + 1):
            assert worker.report(job).outcome == "done"
        until("the check before the wait", lambda: os.readlink(f"/proc/{worker.pid}/cwd") != "/")
        os.kill(worker.pid, signal.SIGSTOP)  # so that all of them wait, and follow each other at once
        for job in range(1001, 1081, 2):
            worker.order(job, "move", to="/")
            worker.order(job + 1, "where")
        os.kill(worker.pid, signal.SIGCONT)
        for job in range(1001, 1081, 2):
            assert worker.report(job).outcome == "done"
            assert bytes(worker.report(job + 1).result) == before, f"job {job + 1} saw what {job} did"


def test_a_job_that_fails_is_checked_although_its_task_is_trusted(tmp_path: Path) -> None:
    """A stop may come between a change and the line that undoes it."""
    source = """
    @app.task
    def move(to: str = "") -> str:
        if to: os.chdir(to); raise ValueError(to)
        return os.getcwd()
    """
    with SupervisorHarness(tmp_path, source) as harness:
        worker = harness.worker()
        before = bytes(worker.run(1, "move").result)
        os.kill(worker.pid, signal.SIGSTOP)
        last = 2 * TRUSTED_AFTER_JOBS
        for job in range(2, last):
            worker.order(job, "move")
        worker.order(last, "move", to="/")
        worker.order(last + 1, "move")
        os.kill(worker.pid, signal.SIGCONT)
        for job in range(2, last):
            assert bytes(worker.report(job).result) == before
        assert worker.report(last).outcome == "error"
        assert bytes(worker.report(last + 1).result) == before
