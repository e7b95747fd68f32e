"""What the README shows is what happens, and what the pages link to is there."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import textwrap
from pathlib import Path
from typing import Any

import click
import msgspec

from pgworkers import Ctx, settings
from pgworkers.cli.root import walk_commands
from pgworkers.master import boot
from pgworkers.postgres import migrate

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def code() -> dict[str, Any]:
    """The Python of the README, run from the top to the bottom."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 3
    space: dict[str, Any] = {"__name__": "readme", "draw": lambda page: None}
    for block in blocks:
        exec(block, space)
    return space


def test_its_tasks_can_be_called_and_their_results_kept() -> None:
    space = code()
    assert space["primes"](None, 100) == 25
    assert space["render"](None, 7) == {"url": "/reports/7.pdf"}
    result = space["render"](Ctx.for_test(checkpoint={"page": 498}), 7)
    assert json.loads(space["render"].encode_result(result, 16 << 10)) == {"url": "/reports/7.pdf"}
    assert [task.name for task in space["app"].describe().tasks] == ["primes", "render", "nightly"]
    assert [one.cron for one in space["app"].describe().schedules] == ["0 3 * * *"]


def test_its_start_is_the_start_of_a_host() -> None:
    app = msgspec.structs.replace(code()["app"].describe(), name="app.py", version="files-483ea18783")
    plan = boot.BootPlan(
        app=app,
        loaded_settings=settings.load_settings(environ={}),
        dsn="",
        queues={queue.name: queue for queue in app.queues if queue.name == "default"},
        database_text="Postgres 18, embedded server in /home/you/hello/.pgworkers/data",
        schema_text=f"pgworkers, migrated ({', '.join(migration.name for migration in migrate.known_migrations())})",
        embedded_server=None,
    )
    lines = boot.start_lines(plan, "http://127.0.0.1:9911/metrics")
    lines[0] = lines[0].replace(boot.PACKAGE_VERSION, "0.1.0")
    assert "\n".join(lines).replace(f"-TERM {os.getpid()}:", "-TERM 31230:") in README


def test_its_commands_exist() -> None:
    known = {name for name, _, _ in walk_commands()}
    for line in re.findall(r"^\$ (pgworkers [^\n#]*)", README, re.MULTILINE):
        words = line.split()
        assert " ".join(words[:2]) in known, line
    groups = "jobs|queues|workers|schedules|migrate|pg|export|config"
    found = re.findall(rf"`(?:pgworkers )?({groups}) ([a-z0-9|]+)`", README)
    assert {group for group, _ in found} == set(groups.split("|"))
    for group, verbs in found:
        for verb in verbs.split("|"):
            assert f"pgworkers {group} {verb}" in known
    for name in re.findall(r"`pgworkers ([a-z]+)`", README):
        assert f"pgworkers {name}" in known


def pages() -> list[Path]:
    """Every page with links or code that a reader follows."""
    found = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    return found + sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "adr")


def test_the_python_of_the_pages_can_be_parsed() -> None:
    found = 0
    for page in pages():
        if page.name == "api.md":  # signatures
            continue
        for block in re.findall(r"^( *)```python\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE):
            compile(textwrap.dedent(block[1]), page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            found += 1
    assert found > 20


def wrong_commands(text: str) -> list[str]:
    """Commands and options of a page, in consoles and inline code, that do not exist."""
    commands = {name: command for name, command, _ in walk_commands()}
    wrong = []
    for line in re.findall(r"(?:^ *\$ |`)pgworkers ([a-z][^\n`|]*)", text, re.MULTILINE):
        words = line.partition("#")[0].split()
        command = commands.get(f"pgworkers {words[0]}")
        if isinstance(command, click.Group) and re.match("[a-z]", "".join(words[1:2])):
            command = commands.get(f"pgworkers {words[0]} {words[1]}")
        if command is None:
            wrong.append(f"pgworkers {line}")
            continue
        parameters = [*command.params, *commands["pgworkers"].params]
        known = {option for one in parameters for option in (*one.opts, *one.secondary_opts)}
        named = re.findall(r"(?<=\s)--?[a-zA-Z][a-z-]*", " ".join(words))
        wrong += [f"pgworkers {line}: {option}" for option in named if option not in known]
    return wrong


def test_the_commands_of_the_pages_exist() -> None:
    for page in pages():
        assert wrong_commands(page.read_text()) == [], page


def test_a_command_that_does_not_exist_is_reported() -> None:
    assert wrong_commands("`pgworkers jobs lost` and `pgworkers jobs list --sate dead`") == [
        "pgworkers jobs lost",
        "pgworkers jobs list --sate dead: --sate",
    ]


def test_the_variables_of_the_pages_exist() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "pgworkers").rglob("*.py"))
    known = {f"PGWORKERS_{field.name.upper()}" for field in dataclasses.fields(settings.Settings)}
    for page in pages():
        if page.name == "cli.md":  # generated, with variables that click derives from commands
            continue
        named = set(re.findall(r"\bPGWORKERS_[A-Z_]+\b", page.read_text()))
        assert {name for name in named - known if f'"{name}"' not in sources} == set(), page


def test_the_files_that_pages_name_exist() -> None:
    """Paths from the root of the repository in inline code, also with `: name` or `::test` behind them."""
    for page in pages():
        for name in re.findall(
            r"`((?:pgworkers|tests|scripts|grafana|examples)/[\w./-]+)[`:]", page.read_text()
        ):
            assert (ROOT / name).exists(), f"{page.relative_to(ROOT)}: {name}"


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
        if target.startswith(("http:", "https:")):
            continue
        path = page.parent / target if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    return broken


def test_the_links_of_all_pages_resolve() -> None:
    """Relative links and anchors, also those of the decision records and of tests/README.md."""
    linking = [*pages(), *sorted((ROOT / "docs" / "adr").glob("*.md")), ROOT / "tests" / "README.md"]
    assert [link for page in linking for link in broken_links(page)] == []


def test_pages_named_in_the_code_exist() -> None:
    """Messages, docstrings and scripts name a page by its path."""
    sources = [
        *(ROOT / "pgworkers").rglob("*.py"),
        *(ROOT / "pgworkers").rglob("*.sql"),
        *(ROOT / "scripts").iterdir(),
        *(ROOT / "scripts").rglob("*.py"),
    ]
    for source in sources:
        if source.is_file():
            for name in re.findall(r"\bdocs/(?!adr/)[\w/.-]+\.md\b", source.read_text(encoding="utf-8")):
                assert (ROOT / name).exists(), f"{source.relative_to(ROOT)}: {name}"
