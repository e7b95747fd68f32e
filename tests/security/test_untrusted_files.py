"""The row "low": what commands find by themselves: an app.py or a .pgworkers that may be another user's doing is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command import Command, ForkedCommand

STRANGER = 12345
APP = "from pgworkers import App\nopen('was loaded', 'w')\napp = App()\napp.queue('default')\n"


def given_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root can give a file to another user")
    os.chown(path, STRANGER, STRANGER)


def open_to_all(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o002)


FOREIGN: list[tuple[Callable[[Path], None], str]] = [
    (given_away, f"belongs to the user id {STRANGER}"),
    (open_to_all, "can be written by every user of this machine"),
]


@pytest.fixture
def cli(tmp_path: Path) -> Command:
    (tmp_path / "app.py").write_text(APP)
    return ForkedCommand(tmp_path)


@pytest.mark.parametrize(("spoil", "why"), FOREIGN)
def test_a_foreign_app_is_not_loaded_unless_it_is_named(
    cli: Command, spoil: Callable[[Path], None], why: str
) -> None:
    spoil(cli.cwd / "app.py")
    loaded = cli.cwd / "was loaded"
    for words in (["run", "--check"], ["jobs", "list"], ["enqueue", "x"], ["pg", "status"]):
        said = cli(*words, code=None)
        assert not loaded.exists(), f"{words} loaded it"
        if words[0] != "pg":
            assert said.code == 6, said.err
            assert f"app.py {why}" in said.err
            assert "--config app.py" in said.err
    assert cli("run", "--check", "--config", "app.py").code == 0
    assert loaded.exists()


def test_a_world_writable_directory_is_refused_too(cli: Command) -> None:
    cli.cwd.chmod(0o777)
    assert "in which every user of this machine can replace it" in cli.fails("run", "--check", code=6)
    cli.cwd.chmod(0o1777)
    assert cli("run", "--check").code == 0


def test_with_a_known_database_a_foreign_app_is_only_a_warning(
    cli: Command, login_dsn: Callable[[str], str]
) -> None:
    open_to_all(cli.cwd / "app.py")
    said = cli("jobs", "list", DATABASE_URL=login_dsn("viewer"))
    assert "warning" in said.err
    assert "no jobs" in said.err
    assert not (cli.cwd / "was loaded").exists()


@pytest.mark.parametrize(("spoil", "why"), FOREIGN)
def test_a_foreign_directory_is_not_used_as_the_embedded_servers(
    cli: Command, spoil: Callable[[Path], None], why: str
) -> None:
    home = cli.cwd / ".pgworkers"
    home.mkdir(0o755)
    spoil(home)
    for words in (["run", "--check"], ["jobs", "list"], ["pg", "start"], ["run"]):
        said = cli.fails(*words, code=2)
        assert f".pgworkers {why}" in said
        assert f"PGWORKERS_EMBEDDED_DIRECTORY={home}" in said
    assert list(home.iterdir()) == [], "nothing was made in it"
    script = "import app\napp.app.client.database.dsn()\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=cli.cwd,
        env=cli.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f".pgworkers {why}" in done.stderr
    assert list(home.iterdir()) == []
