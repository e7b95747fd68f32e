"""A pytest that is killed leaves no masters, servers, poolers and files behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.cluster import wait_for

ROOT = Path(__file__).parents[2]


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return []


def words(process: psutil.Process) -> list[str]:
    """Its command line; empty if it has ended meanwhile, as a zombie has."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


@pytest.fixture
def hanging(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The pid of a pytest whose test hangs (with xdist: of its controller), and what that test started."""
    report = tmp_path / "report"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *request.param]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            [*words, str(Path(__file__).with_name("pytest_to_kill.py"))],
            cwd=ROOT,
            env={**os.environ, "HANGING_REPORT": str(report)},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        wait_for(
            lambda: report.exists() or process.poll() is not None, timeout=120, what="the inner test hangs"
        )
        assert process.poll() is None, (tmp_path / "said").read_text()
        yield process.pid, json.loads(report.read_text())
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("hanging", "victim"),
    [
        (["-n0"], "pytest"),
        (["-n1"], "pytest"),  # a worker of xdist
        (["-n1"], "controller"),
    ],
    indirect=["hanging"],
)
def test_a_killed_pytest_leaves_no_process_and_no_file(
    hanging: tuple[int, dict[str, Any]], victim: str
) -> None:
    controller, report = hanging
    assert len(report["pids"]["master"]) >= 4, "a master, a supervisor and two workers"
    assert len(report["pids"]["server"]) == 2
    started = [pid for pids in report["pids"].values() for pid in pids]
    assert all(map(alive, started))
    os.kill(controller if victim == "controller" else report["pids"]["pytest"][0], signal.SIGKILL)
    wait_for(
        lambda: not [pid for pid in started if alive(pid)],
        timeout=120,
        what=f"everything is gone: {report['pids']}",
    )
    wait_for(lambda: not Path(report["root"]).exists(), what="its directory is gone")


def test_scripts_faults_passes_a_sigterm_on_to_its_pytest() -> None:
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "faults"), "79", "--jobs", "1"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        found = wait_for(lambda: [one for one in children(process.pid) if "pytest" in words(one)])
        wait_for(found[0].children, what="pytest has started its watchdog")
        below = [one.pid for one in (*found, *found[0].children(recursive=True))]
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
        assert not alive(found[0].pid), "pytest was waited for"
        wait_for(lambda: not [pid for pid in below if alive(pid)], what="its children are gone")
    finally:
        process.kill()
        process.wait()
