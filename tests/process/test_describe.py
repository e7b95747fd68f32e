"""The child that imports the app so that the master need not."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from supervisor_harness import is_alive, until

from pgworkers.errors import AppNotLoaded
from pgworkers.linux.sweep import ProcessSweep
from pgworkers.master import orphan_processes
from pgworkers.supervisor.describe import FORK_IN_PROGRESS, describe

GOOD = """
import os, subprocess, sys, time
from pgworkers import App
print("hello from the app")
app = App(version="v7", drain_timeout="1m")
app.queue("reports", workers=3, memory="1GB")
@app.task(queue="reports", timeout="10m")
def render(report_id: int) -> str: return str(report_id)
"""


def write(directory: Path, source: str) -> str:
    (directory / "app.py").write_text(source)
    return str(directory / "app.py")


def refused(directory: Path, source: str, timeout: float = 30.0) -> AppNotLoaded:
    with pytest.raises(AppNotLoaded) as caught:
        describe(write(directory, source), timeout)
    return caught.value


def test_what_an_app_declares(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec = describe(write(tmp_path, GOOD), 30.0)
    assert (spec.version, spec.settings) == ("v7", {"drain_timeout": 60.0})
    assert [(queue.name, queue.workers, queue.memory) for queue in spec.queues] == [("reports", 3, 1 << 30)]
    assert [(task.name, task.queue, task.timeout) for task in spec.tasks] == [("render", "reports", 600.0)]
    out, err = capfd.readouterr()
    assert (out, err) == ("", "hello from the app\n"), (
        "what an app prints must not mix with output of the CLI"
    )


def test_an_app_is_called_what_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file by its name, a module with its package: of `mod.py` there may be many."""
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "mod.py").write_text(GOOD)
    (package / "named.py").write_text(GOOD.replace("App(", 'App(name="reports", '))
    monkeypatch.chdir(tmp_path)
    named = {config: describe(config, 30.0).name for config in ("pkg.mod:app", "pkg.mod", "pkg.named:app")}
    assert named == {"pkg.mod:app": "pkg.mod:app", "pkg.mod": "pkg.mod", "pkg.named:app": "reports"}
    assert describe(str(package / "mod.py"), 30.0).name == "mod.py"
    assert describe(f"{package / 'mod.py'}:app", 30.0).name == "mod.py"


def test_an_import_that_takes_its_time_is_announced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    config = write(tmp_path, GOOD)
    monkeypatch.setattr("pgworkers.supervisor.describe.SLOW_IMPORT_SECONDS", 600.0)
    describe(config, 30.0, on_slow=heard.append)
    assert heard == []
    monkeypatch.setattr("pgworkers.supervisor.describe.SLOW_IMPORT_SECONDS", 0.0)
    describe(config, 30.0, on_slow=heard.append)
    assert heard == [f"importing {config} …"]


def test_an_app_that_raises(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD + "raise RuntimeError('no postgresql://u:hunter2@h/d, password=hunter2')")
    assert "RuntimeError" in str(error)
    assert "app.py" in error.traceback
    assert "hunter2" not in str(error) + error.traceback


@pytest.mark.parametrize("leave", ["sys.exit(0)", "raise KeyboardInterrupt"])
def test_an_app_that_leaves(tmp_path: Path, leave: str) -> None:
    assert "app.py" in str(refused(tmp_path, GOOD + leave))


def test_an_app_that_crashes(tmp_path: Path) -> None:
    assert "SIGSEGV" in str(refused(tmp_path, GOOD + "import ctypes; ctypes.string_at(0)"))
    assert "exit status 4" in str(refused(tmp_path, GOOD + "os._exit(4)"))


def test_an_app_without_queues_or_without_an_app(tmp_path: Path) -> None:
    assert "declares no queue" in str(refused(tmp_path, "from pgworkers import App\napp = App()"))
    assert "no App in it" in str(refused(tmp_path, "x = 1"))


def test_an_app_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    source = GOOD + (
        f"child = subprocess.Popen(['sleep', '999']); open({str(tmp_path / 'part')!r}, 'w').write(str(child.pid))\n"
        f"os.rename({str(tmp_path / 'part')!r}, {str(tmp_path / 'child')!r})\n"
        "time.sleep(999)"
    )
    for limit in (1, 4, 16):  # on a busy machine it may not come that far in a second
        assert f"longer than {limit}s" in str(refused(tmp_path, source, timeout=limit))
        if (tmp_path / "child").exists():
            break
    child = int((tmp_path / "child").read_text())
    until("the end of its child", lambda: not is_alive(child))


def test_a_process_the_app_leaves_does_not_keep_us_waiting(tmp_path: Path) -> None:
    """It holds a copy of the pipe, because it was forked without exec."""
    source = (
        GOOD
        + f"""
pid = os.fork()
if pid == 0:
    time.sleep(999); os._exit(0)
open({str(tmp_path / "child")!r}, "w").write(str(pid))
"""
    )
    assert describe(write(tmp_path, source), 30.0).version == "v7"
    child = int((tmp_path / "child").read_text())
    until("the end of its child", lambda: not is_alive(child))


def test_threads_and_exit_handlers_of_the_app_do_not_hold_it(tmp_path: Path) -> None:
    source = GOOD + "import threading, atexit\nthreading.Thread(target=time.sleep, args=(999,)).start()\n"
    source += "atexit.register(time.sleep, 999)\n"
    assert describe(write(tmp_path, source), 30.0).version == "v7"


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    config = write(tmp_path, GOOD)
    gc.collect()  # what earlier tests left must not be closed in between
    before = len(os.listdir("/proc/self/fd"))
    describe(config, 30.0)
    refused(tmp_path, "raise ValueError")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_child_that_is_being_started_is_not_taken_for_a_stray(tmp_path: Path) -> None:
    """A sweep that runs after the fork and before the pid is known must wait. Otherwise it kills the child."""
    config = write(tmp_path, GOOD)
    spared: set[int] = set()
    seen: list[set[int]] = []
    start = subprocess.Popen.__init__

    def observed_start(self: Any, *args: Any, **kwargs: Any) -> None:
        seen.append(set(spared))
        start(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", observed_start)
        describe(config, 30.0, spared)
    assert seen == [{FORK_IN_PROGRESS}]
    assert spared == set()


async def _sweep_for(seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(orphan_processes.kill_strays("no-host", set), seconds)


def test_no_sweep_looks_at_processes_while_a_child_is_being_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that stops a child before its exec deadlocks: the parent waits for the exec, the sweep for the parent."""
    steps: list[set[int]] = []
    during_start: list[int] = []

    def step(self: ProcessSweep, keep: set[int]) -> tuple[int, int]:
        steps.append(keep)
        return 0, 0

    def observed_start(self: Any, *args: Any, **kwargs: Any) -> None:
        asyncio.run(_sweep_for(0.2))
        during_start.append(len(steps))
        start(self, *args, **kwargs)

    start = subprocess.Popen.__init__
    monkeypatch.setattr(ProcessSweep, "step", step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", observed_start)
        describe(write(tmp_path, GOOD), 30.0)
    assert during_start == [0], "a sweep ran while the child was being started"
    asyncio.run(_sweep_for(10.0))
    assert len(steps) == 1  # the lock is free again


def test_no_child_is_started_while_a_sweep_looks_at_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(tmp_path, GOOD)
    started = threading.Event()
    start = subprocess.Popen.__init__
    started_during_step: list[bool] = []

    def observed_start(self: Any, *args: Any, **kwargs: Any) -> None:
        started.set()
        start(self, *args, **kwargs)

    def step(self: ProcessSweep, keep: set[int]) -> tuple[int, int]:
        thread.start()
        started_during_step.append(started.wait(0.3))
        return 0, 0

    thread = threading.Thread(target=describe, args=(config, 30.0))
    monkeypatch.setattr(ProcessSweep, "step", step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", observed_start)
        asyncio.run(_sweep_for(10.0))
        thread.join(30.0)
    assert started_during_step == [False], "a child was started during a sweep"
    assert started.is_set()
