"""The pytest plugin in projects of its users: pytest runs in a process of its own, with hosts and a server of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import psycopg
import pytest

from pgworkers.embedded.server import EmbeddedServer

ROOT = Path(__file__).parents[2]
APP = """
from pgworkers import App, Ctx
app = App()
app.queue("default", workers=2)

@app.task(retries=0)
def broken() -> None:
    raise RuntimeError("the handler is broken")

@app.task(backoff="10ms")
def add_twice(ctx: Ctx) -> None:
    with ctx.connect(autocommit=True) as conn:
        conn.execute("UPDATE ledger SET total = total + 100")

@app.task
def wait() -> None:
    import time
    open("waiting", "w").close()
    time.sleep(600)
"""
PROJECT = {"pytest.ini": "[pytest]\npgworkers_app = shop_app:app\npythonpath = .\n", "shop_app.py": APP}
LIMIT_SECONDS = 280


class Project:
    """A directory with an app and its tests."""

    def __init__(self, directory: Path, dsn: str, test: str) -> None:
        self.directory = directory
        self._dsn = dsn
        for name, text in {**PROJECT, "test_it.py": test}.items():
            (directory / name).write_text(text)

    def argv(self, *words: str) -> list[str]:
        options = ("-p", "no:randomly", "-p", "no:cacheprovider", "--pgworkers-dsn", self._dsn)
        return [sys.executable, "-m", "pytest", "-q", *options, *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run(self.argv(*words), self.directory)


def run(argv: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        argv, cwd=cwd, env=environ, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )


def test_the_example_with_two_processes_and_an_embedded_server(tmp_path: Path) -> None:
    """One server for both processes, which is gone afterwards."""
    argv = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--basetemp", str(tmp_path / "base")]
    ended = run([*argv, "-p", "no:cacheprovider", str(ROOT / "examples/testing")], tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "8 passed" in ended.stdout
    assert not (tmp_path / "base/pgworkers-server/data").exists()


def test_the_django_example() -> None:
    ended = run([sys.executable, "manage.py", "test"], ROOT / "examples/django_shop")
    assert ended.returncode == 0, ended.stderr
    assert "Ran 6 tests" in ended.stderr


def test_a_test_that_fails_shows_the_log_of_its_host(dsn: str, tmp_path: Path) -> None:
    test = """
import pytest, shop_app
from pgworkers import JobFailed
from pgworkers.testing.host import HostFailed

def test_it(pgworkers_host):
    with pytest.raises(JobFailed, match="the handler is broken"):
        shop_app.broken.enqueue().result(timeout=60)
    shop_app.broken.using(delay="1h").enqueue()
    with pytest.raises(HostFailed, match="left: #2 broken is scheduled"):
        pgworkers_host.drain(timeout="100ms")
    pgworkers_host.kill()
    with pytest.raises(HostFailed, match="the host has ended"):
        pgworkers_host.drain()
    assert False, "to show the log"
"""
    ended = Project(tmp_path, dsn, test).run()
    assert "1 failed" in ended.stdout, ended.stdout + ended.stderr
    assert "- pgworkers host -" in ended.stdout
    assert "#1 broken() failed" in ended.stdout or "RuntimeError: the handler is broken" in ended.stdout


def test_databases_are_gone_afterwards_and_the_template_is_kept(dsn: str, tmp_path: Path) -> None:
    test = """
import psycopg, shop_app
def test_one(pgworkers_database):
    assert shop_app.broken.enqueue().id == 1
def test_two(pgworkers_database):
    assert shop_app.broken.enqueue().id == 1
def test_three(pgworkers_box):
    shop_app.broken.enqueue()
    pgworkers_box.assert_enqueued(shop_app.broken)
"""
    before = databases_of_tests(dsn)  # a killed run leaves its database
    ended = Project(tmp_path, dsn, test).run("-n", "2")
    assert "3 passed" in ended.stdout, ended.stdout + ended.stderr
    left = databases_of_tests(dsn) - before
    assert all("_template_" in name for name in left), left


def databases_of_tests(dsn: str) -> set[str]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        names = conn.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE 'pgworkers_test_%'"
        ).fetchall()
        return {name for (name,) in names}


def test_a_forgotten_box_is_noticed_with_and_without_the_plugin(dsn: str, tmp_path: Path) -> None:
    test = """
import shop_app
def test_it():
    shop_app.broken.enqueue()
"""
    project = Project(tmp_path, dsn, test)
    with_plugin = project.run()
    without = run([sys.executable, "-m", "pytest", "-q", "-p", "no:pgworkers"], tmp_path)
    for ended in (with_plugin, without):
        assert "1 failed" in ended.stdout, ended.stdout
        assert "a test tried to use the real database of this app; nothing was sent to it" in ended.stdout
    assert not (tmp_path / ".pgworkers").exists(), "no embedded server was started"
    (tmp_path / "pytest.ini").write_text("[pytest]\npgworkers_real_database = true\npythonpath = .\n")
    allowed = run([sys.executable, "-m", "pytest", "-q"], tmp_path)
    assert "1 passed" in allowed.stdout, allowed.stdout


def test_fixtures_say_what_they_need(dsn: str, tmp_path: Path) -> None:
    project = Project(tmp_path, dsn, "def test_it(pgworkers_box): pass")
    (tmp_path / "pytest.ini").write_text("[pytest]")
    assert 'set pgworkers_app = "shop.jobs:app"' in project.run().stdout


@pytest.mark.long
def test_the_example_holds_after_each_fault(dsn: str) -> None:
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--pgworkers-chaos",
        "-k",
        "payment",
        "--pgworkers-dsn",
        dsn,
    ]
    ended = run([*argv, "-p", "no:cacheprovider", str(ROOT / "examples/testing")], ROOT)
    assert "28 of 28 faults happened, the test held after each (seed 7)" in ended.stdout, ended.stdout


@pytest.mark.slow
def test_chaos_finds_a_handler_that_is_not_safe_to_repeat(dsn: str, tmp_path: Path) -> None:
    test = """
import psycopg, pytest, shop_app

@pytest.mark.pgworkers_chaos(moments=0)
def test_total(pgworkers_database, pgworkers_host):
    with psycopg.connect(pgworkers_database, autocommit=True) as conn:
        conn.execute("CREATE TABLE ledger (total int); INSERT INTO ledger VALUES (0)")
        shop_app.add_twice.enqueue()
        pgworkers_host.drain()
        assert conn.execute("SELECT total FROM ledger").fetchone() == (100,)
"""
    project = Project(tmp_path, dsn, test)
    assert "1 passed" in project.run().stdout, "without a fault it is right"
    ended = project.run("--pgworkers-chaos")
    assert "1 failed" in ended.stdout, ended.stdout + ended.stderr
    pattern = r"chaos: broken by this fault: (.+?) \(point \d+ of add_twice\); run \d+ of \d+, seed 1"
    broken = re.search(pattern, ended.stdout)
    assert broken, ended.stdout
    assert re.fullmatch(r"(SIGKILL|its lease was stolen) .+", broken[1])


def test_a_killed_test_run_leaves_no_process(dsn: str, tmp_path: Path) -> None:
    test = """
import shop_app
def test_it(pgworkers_host):
    shop_app.wait.enqueue()
    pgworkers_host.drain()
"""
    project = Project(tmp_path, dsn, test)
    pytest_run = subprocess.Popen(project.argv(), cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120
        while not (tmp_path / "waiting").exists():
            assert time.monotonic() < until, "the job did not begin"
            time.sleep(0.05)
        tree = psutil.Process(pytest_run.pid).children(recursive=True)
        assert len(tree) >= 3
    finally:
        pytest_run.send_signal(signal.SIGKILL)
        pytest_run.wait()
    _, alive = psutil.wait_procs(tree, timeout=30)
    assert alive == []


def test_the_server_of_a_killed_run_is_stopped_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = """
import os, time
def test_it(pgworkers_database):
    open("waiting", "w").close()
    time.sleep(600 if os.environ.get("HANG") else 0)
"""
    Project(tmp_path, "", test)
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", str(tmp_path))
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    hanging = subprocess.Popen(argv, cwd=tmp_path, env=os.environ | {"HANG": "1"}, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120
        while not (tmp_path / "waiting").exists():
            assert time.monotonic() < until, "the test did not begin"
            time.sleep(0.05)
    finally:
        hanging.send_signal(signal.SIGKILL)
        hanging.wait()
    (home,) = tmp_path.glob("pytest-of-*/pytest-0/pgworkers-server")
    assert EmbeddedServer(home).status().pid is not None
    ended = subprocess.run(
        argv, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert "1 passed" in ended.stdout, ended.stdout
    status = EmbeddedServer(home).status()
    assert (status.pid, status.has_data) == (None, False)
