"""The command line, the settings and the Python API are documented, and the pages are what the code says."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest
from docs_generator import api_page

import pgworkers
import pgworkers.errors
from pgworkers.cli.root import COMMANDS, root, walk_commands
from pgworkers.payload import MAX_PAYLOAD_NESTING
from pgworkers.settings import ENVIRONMENT_PREFIX, Settings

HOUSE = Path(__file__).resolve().parents[2]


def gen_docs(house: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(house / "scripts" / "gen-docs"), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_the_reference_pages_are_current() -> None:
    ended = gen_docs(HOUSE, "--check")
    assert ended.returncode == 0, ended.stderr


def test_how_deep_arguments_may_be_nested_is_what_the_code_says() -> None:
    page = (HOUSE / "docs" / "explanation" / "security.md").read_text()
    assert f"nested deeper than {MAX_PAYLOAD_NESTING} levels" in page


def test_a_stale_page_is_noticed_and_written_again(tmp_path: Path) -> None:
    for name in ("pgworkers", "scripts", "docs"):
        shutil.copytree(HOUSE / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    page = tmp_path / "docs" / "reference" / "settings.md"
    whole = page.read_text()
    page.write_text(whole.replace("PGWORKERS_DRAIN_TIMEOUT", "PGWORKERS_DRIAN"))
    assert gen_docs(tmp_path, "--check").returncode == 1
    assert gen_docs(tmp_path).stdout == "wrote docs/reference/settings.md\n"
    assert page.read_text() == whole


def test_every_command_is_documented() -> None:
    page = (HOUSE / "docs" / "reference" / "cli.md").read_text()
    names = [name for name, command, _ in walk_commands() if command is not root]
    assert len(names) > 20
    assert [name for name in names if f" `{name}`\n" not in page] == []


def test_every_setting_is_documented() -> None:
    page = (HOUSE / "docs" / "reference" / "settings.md").read_text()
    for setting in fields(Settings):
        assert f"| `{setting.name}` |" in page
        assert f"`{ENVIRONMENT_PREFIX}{setting.name.upper()}`" in page


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_line_in_the_help_is_the_commands_own(name: str) -> None:
    command = root.get_command(click.Context(root), name)
    assert command is not None
    assert (command.help or "").splitlines()[0] == COMMANDS[name][1]


def test_every_option_has_a_variable() -> None:
    without = []
    for name, command, ctx in walk_commands():
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
        "import sys; from pgworkers.cli.error_report import run_command_line; assert run_command_line(['--help']) == 0;"
        "sys.exit(', '.join(sorted({'psycopg', 'rich', 'msgspec', 'psutil', 'asyncio'} & set(sys.modules))) or 0)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("name", [name for name, _, _ in walk_commands()])
def test_every_command_that_acts_teaches_by_example(name: str) -> None:
    command = {name: command for name, command, _ in walk_commands()}[name]
    if isinstance(command, click.Group):
        return
    _, found, examples = (command.help or "").partition("Examples:\n")
    assert found
    assert f" {name.removeprefix('pgworkers ').removesuffix(' list')}" in examples


@pytest.mark.parametrize(
    "name",
    [name for name, found, _ in walk_commands() if isinstance(found, click.Group) and found is not root],
)
def test_a_list_of_commands_is_not_cut_off_on_80_columns(name: str) -> None:
    [(group, ctx)] = [(command, ctx) for known, command, ctx in walk_commands() if known == name]
    assert isinstance(group, click.Group)
    below = {one: group.get_command(ctx, one) for one in group.list_commands(ctx)}
    room = 80 - 2 - 6 - max(map(len, below))  # as click counts it
    lines = [one.get_short_help_str(room) for one in below.values() if one is not None and not one.hidden]
    assert [line for line in lines if line.endswith("...")] == []


@pytest.mark.parametrize(
    "kind", [chapter.kind for chapter in api_page.CHAPTERS], ids=lambda kind: kind.__name__
)
def test_everything_a_user_may_call_is_in_the_reference_and_explained(kind: type) -> None:
    (shown,) = (chapter.members for chapter in api_page.CHAPTERS if chapter.kind is kind)
    twins = {api_page.async_twin(kind, name) for name in shown}
    public = {name for name, _ in inspect.getmembers(kind, _is_method) if not name.startswith("_")}
    forgotten = public - set(shown) - twins - api_page.INTERNAL_MEMBERS.get(kind, frozenset())
    assert forgotten == set(), (
        "name it in CHAPTERS of scripts/docs_generator/api_page.py, or in INTERNAL_MEMBERS"
    )
    assert [name for name in {*shown, *twins} if name and not inspect.getdoc(getattr(kind, name))] == []


def test_every_public_name_and_option_is_in_the_reference_and_explained() -> None:
    page = (HOUSE / "docs" / "reference" / "api.md").read_text()
    assert [name for name in pgworkers.__all__ if name not in page and name != "__version__"] == []
    for taken, _ in api_page.OPTIONS.values():
        told = {name: meaning for name, _, meaning in api_page.options_with_comments(taken)}
        assert list(told) == list(taken.__annotations__)
        assert [name for name, meaning in told.items() if not meaning] == []


@pytest.mark.parametrize(
    "kind", [chapter.kind for chapter in api_page.CHAPTERS], ids=lambda kind: kind.__name__
)
def test_every_explained_attribute_is_in_the_reference(kind: type) -> None:
    """A formatter that breaks a line must not hide its comment."""
    assert len(api_page.attributes_with_comments(kind)) == inspect.getsource(kind).count("#: ")


def test_every_public_name_is_where_the_package_looks_for_it() -> None:
    errors = {
        name
        for name, kind in vars(pgworkers.errors).items()
        if isinstance(kind, type) and kind.__module__ == "pgworkers.errors"
    }
    for name in pgworkers.__all__:
        assert getattr(pgworkers, name) is not None
        assert name == "__version__" or (name in errors) != (name in pgworkers._MODULES)
    assert set(pgworkers._MODULES) <= set(pgworkers.__all__)


def _is_method(member: object) -> bool:
    return inspect.isroutine(member) or isinstance(member, property)
