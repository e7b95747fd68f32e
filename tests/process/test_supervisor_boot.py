"""Importing the app, refusing to fork, starts that fail, workers that leave by themselves."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from supervisor_harness import (
    Booted,
    BootFailed,
    Died,
    Forked,
    StartDelayed,
    SupervisorHarness,
    is_alive,
    until,
)

from pgworkers.ipc.scoreboard import StopReason

TASKS = """
@app.task
def pid() -> int:
    return os.getpid()

@app.task
def look(what: str):
    return eval(what)
"""

AUTOGROUP = Path("/proc/self/autogroup")


def refused(harness: SupervisorHarness) -> BootFailed:
    failed = harness.fact(BootFailed)
    until("the supervisor's end", lambda: harness.process.poll() is not None)
    assert harness.process.returncode == 6
    assert not [fact for fact in harness.facts if isinstance(fact, Forked)]
    return failed


def test_an_app_that_cannot_be_imported(tmp_path: Path) -> None:
    with SupervisorHarness(
        tmp_path, "raise ValueError('postgresql://me:hunter2@host/db is wrong')"
    ) as harness:
        failed = refused(harness)
        assert "ValueError" in failed.error
        assert "hunter2" not in failed.error + failed.traceback
        assert "app.py" in failed.traceback


def test_an_app_that_leaves_while_it_is_imported(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, "sys.exit(0)") as harness:
        assert "sys.exit" in refused(harness).error


def test_a_preload_module_that_does_not_exist(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, TASKS, queue={"preload": ("no_such_module_here",)}) as harness:
        assert "no_such_module_here" in refused(harness).error


def test_an_import_that_takes_too_long_names_the_line(tmp_path: Path) -> None:
    source = "def slow_model():\n    open('begun', 'w').close()\n    time.sleep(999)\nslow_model()"
    for limit in (0.3, 3.0, 30.0):  # a busy machine may not come as far as that line in a moment
        with SupervisorHarness(tmp_path, source, import_timeout=limit) as harness:
            failed = refused(harness)
        assert f"longer than {limit:g}s" in failed.error
        if (tmp_path / "begun").exists():
            break
    assert "slow_model" in failed.traceback


def test_fork_is_refused_with_threads(tmp_path: Path) -> None:
    source = "threading.Thread(target=time.sleep, args=(999,), name='sneaky', daemon=True).start()"
    with SupervisorHarness(tmp_path, source) as harness:
        failed = refused(harness)
        assert "sneaky" in failed.error
        assert "on_worker_start" in failed.error


def test_fork_is_refused_with_threads_that_python_does_not_know(tmp_path: Path) -> None:
    source = """
    import _thread
    _thread.start_new_thread(time.sleep, (999,))
    """
    with SupervisorHarness(tmp_path, source) as harness:
        assert "native thread" in refused(harness).error


def test_what_every_worker_inherits(tmp_path: Path) -> None:
    """Threads of numeric libraries are limited before the import; random numbers differ after the fork."""
    source = "SEEN = os.environ.get('OMP_NUM_THREADS')\n" + TASKS
    with SupervisorHarness(
        tmp_path, source, workers=2, queue={"threads": 3, "nice": 5, "preload": ("wave",)}
    ) as harness:
        assert harness.fact(Booted).seconds > 0
        one, two = harness.worker(0), harness.worker(1)
        assert bytes(one.run(1, "look", what="[SEEN, 'wave' in sys.modules]").result) == b'["3",true]'
        assert bytes(one.run(2, "look", what="os.getpriority(os.PRIO_PROCESS, 0)").result) == b"5"
        if AUTOGROUP.exists():  # there nice counts within a session only
            group = Path(f"/proc/{one.pid}/autogroup").read_text().split()
            assert group != AUTOGROUP.read_text().split()
            assert group[1:] == ["nice", "5"]
        draws = [bytes(w.run(3, "look", what="random.random()").result) for w in (one, two)]
        assert draws[0] != draws[1]
        assert bytes(one.run(4, "look", what="os.getpgrp() == os.getpid()").result) == b"true"
        scores = [Path(f"/proc/{pid}/oom_score_adj") for pid in (one.pid, harness.process.pid)]
        until("who dies first", lambda: int(scores[0].read_text()) > int(scores[1].read_text()))
        assert bytes(one.run(5, "look", what="sys.stdin.read()").result) == b'""'


def test_workers_run_where_their_queue_may(tmp_path: Path) -> None:
    here = sorted(os.sched_getaffinity(0))
    with SupervisorHarness(tmp_path, TASKS, workers=2, queue={"pin": True}) as harness:
        for slot in (0, 1):
            seen = harness.worker(slot).run(1, "look", what="sorted(os.sched_getaffinity(0))").result
            assert msgspec.json.decode(bytes(seen)) == [here[slot % len(here)]]
    with SupervisorHarness(tmp_path, TASKS, queue={"cores": (here[-1], 4000)}) as harness:
        seen = harness.worker().run(1, "look", what="sorted(os.sched_getaffinity(0))").result
        assert msgspec.json.decode(bytes(seen)) == [here[-1]]
    with SupervisorHarness(tmp_path, TASKS, queue={"cores": (4000,)}) as harness:
        seen = harness.worker().run(1, "look", what="sorted(os.sched_getaffinity(0))").result
        assert msgspec.json.decode(bytes(seen)) == here
        assert "none of its cores (4000)" in harness.log.read_text()


def test_the_kernels_own_memory_limit_is_a_memory_error_with_a_traceback(tmp_path: Path) -> None:
    source = """
    @app.task
    def eat() -> None: guilty_eat()
    def guilty_eat(): bytearray(4 << 30)
    """
    with SupervisorHarness(tmp_path, TASKS, source, queue={"address_space": 1 << 30}) as harness:
        worker = harness.worker()
        report = worker.run(1, "eat")
        assert (report.outcome, report.reason, report.rungs) == ("stopped", StopReason.MEMORY, [])
        assert "guilty_eat" in (report.traceback or "")
        assert worker.run(2, "pid").outcome == "done", "the worker lives on"


def test_a_crash_loop_at_start_backs_off_and_recovers(tmp_path: Path) -> None:
    source = """
    @app.on_worker_start
    def broken():
        with open("starts", "a") as file: file.write("x")
        if not os.path.exists("repaired"): raise RuntimeError("no model")
    """
    with SupervisorHarness(tmp_path, source, TASKS, restart_period=1.5, restart_max_delay=0.3) as harness:
        died = harness.fact(Died)
        assert (died.was_ready, died.status, died.job) == (False, "exit 1", 0)
        assert "no model" in (died.output or "")
        pauses = [harness.fact(StartDelayed) for _ in range(4)]
        assert [rest.deaths for rest in pauses] == [1, 2, 3, 4]
        assert [rest.seconds for rest in pauses] == [0.05, 0.1, 0.2, 0.3]
        (tmp_path / "repaired").touch()
        until("a worker that is ready", lambda: harness.worker(other_than=died.pid))
        harness.pump()
        assert len((tmp_path / "starts").read_text()) == len(
            [f for f in harness.facts if isinstance(f, Forked)]
        )


def test_only_one_is_tried_while_starts_fail(tmp_path: Path) -> None:
    source = """
    @app.on_worker_start
    def broken(): os._exit(9)
    """
    with SupervisorHarness(tmp_path, source, workers=4, restart_period=3.0, restart_max_delay=0.2) as harness:
        for _ in range(4):
            assert harness.fact(Died).status == "exit 9"
        for deaths in (5, 6, 7):
            assert harness.fact(Died).was_ready is False
            until(f"death {deaths}", lambda deaths=deaths: harness.fact(StartDelayed).deaths == deaths)
        forked = [fact.slot for fact in harness.facts if isinstance(fact, Forked)]
        assert forked[:4] == [0, 1, 2, 3]
        assert set(forked[4:]) == {0}


def test_hooks_run_in_the_worker_and_async_ones_on_its_loop(tmp_path: Path) -> None:
    source = """
    STATE = {}
    @app.on_worker_start
    def load(): STATE["pid"] = os.getpid()
    @app.on_worker_start
    async def connect():
        STATE["background"] = asyncio.create_task(asyncio.sleep(999))
    @app.on_worker_stop
    def bye(): open("bye", "w").write(str(os.getpid()))
    @app.task
    async def state() -> list:
        return [STATE["pid"], STATE["background"].done(), STATE["background"].get_loop() is asyncio.get_running_loop()]
    """
    with SupervisorHarness(tmp_path, source) as harness:
        worker = harness.worker()
        for job in (1, 2):
            told = msgspec.json.decode(bytes(worker.run(job, "state").result))
            assert told == [worker.pid, False, True]
        worker.close()
        died = harness.fact(Died)
        assert (died.status, died.job) == ("exit 0", 0)
        assert (tmp_path / "bye").read_text() == str(worker.pid)


def test_a_stop_hook_that_hangs_is_ended(tmp_path: Path) -> None:
    source = """
    @app.on_worker_stop
    def hang():
        while True: time.sleep(1)
    """
    with SupervisorHarness(tmp_path, source, ask_grace=0.1, raise_grace=0.2) as harness:
        worker = harness.worker()
        worker.close()
        assert harness.fact(Died).status == "SIGKILL"
        harness.worker(other_than=worker.pid)


@pytest.mark.parametrize("max_jobs", [1, 20])
def test_max_jobs(tmp_path: Path, max_jobs: int) -> None:
    with SupervisorHarness(tmp_path, TASKS, queue={"max_jobs": max_jobs}) as harness:
        worker = harness.worker()
        done = 0
        while not worker.run(done + 1, "pid").is_last:
            done += 1
        assert abs(done + 1 - max_jobs) <= max_jobs // 10
        died = harness.fact(Died)
        assert (died.status, died.job) == ("exit 0", 0)
        assert not is_alive(worker.pid)
        assert harness.worker(other_than=worker.pid).run(99, "pid").outcome == "done"


def test_max_rss(tmp_path: Path) -> None:
    source = """
    HEAP = []
    @app.task
    def leak(size: int) -> None: HEAP.append(bytearray(b"x" * size))
    """
    with SupervisorHarness(tmp_path, source, queue={"max_rss": 120 << 20}) as harness:
        worker = harness.worker()
        assert worker.run(1, "leak", size=10).is_last is False
        assert worker.run(2, "leak", size=150 << 20).is_last is True
        assert harness.fact(Died).status == "exit 0"


def test_what_the_app_started_at_import_is_spared_until_the_end(tmp_path: Path) -> None:
    source = 'HELPER = subprocess.Popen(["sleep", "999"])\n' + TASKS
    with SupervisorHarness(tmp_path, source) as harness:
        worker = harness.worker()
        helper = int(bytes(worker.run(1, "look", what="HELPER.pid").result))
        worker.order(2, "look", what="os._exit(1)")
        harness.fact(Died)
        assert is_alive(helper)
        harness.worker(other_than=worker.pid)
    until("the helper's end", lambda: not is_alive(helper))
