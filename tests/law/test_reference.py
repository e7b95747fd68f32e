"""The command line and the settings are documented, and the pages are what the code says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest

from pgworkers.cli.reference import commands
from pgworkers.cli.root import COMMANDS, root
from pgworkers.payload import DEPTH
from pgworkers.settings import PREFIX, Settings

HOUSE = Path(__file__).resolve().parents[2]


def gen_docs(house: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(house / "scripts" / "gen-docs"), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_the_reference_pages_are_current() -> None:
    ended = gen_docs(HOUSE, "--check")
    assert ended.returncode == 0, ended.stderr


def test_how_deep_arguments_may_be_nested_is_what_the_code_says() -> None:
    page = (HOUSE / "docs" / "security.md").read_text()
    assert f"nested deeper than {DEPTH} levels" in page


def test_a_stale_page_is_noticed_and_written_again(tmp_path: Path) -> None:
    for name in ("pgworkers", "scripts", "docs"):
        shutil.copytree(HOUSE / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    page = tmp_path / "docs" / "settings.md"
    whole = page.read_text()
    page.write_text(whole.replace("PGWORKERS_DRAIN", "PGWORKERS_DRIAN"))
    assert gen_docs(tmp_path, "--check").returncode == 1
    assert gen_docs(tmp_path).stdout == "wrote docs/settings.md\n"
    assert page.read_text() == whole


def test_every_command_is_documented() -> None:
    page = (HOUSE / "docs" / "cli.md").read_text()
    names = [name for name, command, _ in commands() if command is not root]
    assert len(names) > 20
    assert [name for name in names if f" `{name}`\n" not in page] == []


def test_every_setting_is_documented() -> None:
    page = (HOUSE / "docs" / "settings.md").read_text()
    for setting in fields(Settings):
        assert f"| `{setting.name}` |" in page
        assert f"`{PREFIX}{setting.name.upper()}`" in page


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_line_in_the_help_is_the_commands_own(name: str) -> None:
    command = root.get_command(click.Context(root), name)
    assert command is not None
    assert (command.help or "").splitlines()[0] == COMMANDS[name][1]


def test_every_option_has_a_variable() -> None:
    without = []
    for name, command, ctx in commands():
        for option in command.get_params(ctx):
            if not isinstance(option, click.Option) or option.hidden or option.name in ("help", "version"):
                continue
            record = option.get_help_record(ctx)
            if not (
                option.allow_from_autoenv
                or option.envvar
                or "[env var: PGWORKERS_" in (record or ("", ""))[1]
            ):
                without.append(f"{name} {option.opts[-1]}")
    assert without == []


def test_help_needs_neither_the_driver_nor_rich() -> None:
    code = (
        "import sys; from pgworkers.cli.failure import guarded; assert guarded(['--help']) == 0;"
        "sys.exit(', '.join(sorted({'psycopg', 'rich', 'msgspec', 'psutil', 'asyncio'} & set(sys.modules))) or 0)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("name", [name for name, _, _ in commands()])
def test_every_command_that_acts_teaches_by_example(name: str) -> None:
    command = {name: command for name, command, _ in commands()}[name]
    if isinstance(command, click.Group) or name.startswith("pgworkers pg ") or name == "pgworkers version":
        return
    assert "Example" in (command.help or "")
