"""The walks of docs/internals name files and functions that exist, and each step is reached from an earlier one."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INTERNALS = ROOT / "docs" / "internals"
#: The most files that each walk may need. Lower it when a walk becomes shorter.
MAX_FILES = {"enqueue-to-history.md": 27, "cancel-a-stuck-handler.md": 24, "cron-tick.md": 14}
#: How control gets to a step where no Python call leads to it.
HANDOVERS = {
    "callback",
    "database",
    "event loop",
    "exec",
    "fork",
    "pipe",
    "shared memory",
    "signal",
    "socket",
    "sql",
}
#: ``3. `pgworkers/job/claim.py` `claim`: …``, or ``3. (socket) `file` `name`: …``
_STEP = re.compile(
    r"^\d+\. (?:\((?P<handover>[a-z ]+)\) )?`(?P<file>[\w./-]+\.(?:py|sql))`(?: `(?P<name>[\w.]+)`)?: \S"
)
_NUMBERED = re.compile(r"^\d+\. ")
_FILE_COUNT = re.compile(r"^Files: (\d+)\.$", re.MULTILINE)


@dataclass(frozen=True)
class Step:
    line: int
    section: int  # steps of one section are one process, or one part of it
    handover: str | None
    file: str
    name: str | None

    def __str__(self) -> str:
        return f"{self.file} {self.name or ''}".strip()


def read_steps(text: str) -> tuple[list[Step], list[str]]:
    """The steps of a page, and what is wrong with their form."""
    steps: list[Step] = []
    errors: list[str] = []
    section = 0
    for number, line in enumerate(text.splitlines(), 1):
        section += line.startswith("## ")
        if not _NUMBERED.match(line):
            continue
        match = _STEP.match(line)
        if match is None:
            errors.append(f"line {number}: not a step: {line[:60]}")
            continue
        if match["handover"] is not None and match["handover"] not in HANDOVERS:
            errors.append(f"line {number}: unknown hand-over ({match['handover']})")
        steps.append(Step(number, section, match["handover"], match["file"], match["name"]))
    return steps, errors


@cache
def definitions(file: str) -> dict[str, ast.AST]:
    """Functions, classes and methods of a file by their dotted name, also inside `if` and `try`."""
    found: dict[str, ast.AST] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found[prefix + child.name] = child
                if isinstance(child, ast.ClassDef):
                    visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.If | ast.Try):
                visit(child, prefix)

    visit(ast.parse((ROOT / file).read_text(encoding="utf-8")), "")
    return found


def exists(step: Step) -> bool:
    if not (ROOT / step.file).is_file():
        return False
    if step.name is None:
        return True
    if step.file.endswith(".sql"):
        return f"FUNCTION {step.name}(" in (ROOT / step.file).read_text(encoding="utf-8")
    return step.name in definitions(step.file)


def mentioned_names(node: ast.AST) -> set[str]:
    """Every identifier in a body: what it calls, and what it passes on to be called."""
    names = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    return names | {child.attr for child in ast.walk(node) if isinstance(child, ast.Attribute)}


def leads_to(here: Step, there: Step) -> bool:
    """The body of `here` mentions `there`; a statement is named by the module next to it."""
    text = (ROOT / here.file).read_text(encoding="utf-8")
    if here.file.endswith(".sql"):
        if here.name is not None:
            text = text.split(f"FUNCTION {here.name}(", 1)[1].split("CREATE ", 1)[0]
        return there.name is not None and f"{there.name}(" in text
    if there.file.endswith(".sql") and there.name is None:
        path = Path(there.file)
        return path.parent == Path(here.file).parent and f'"{path.stem}"' in text
    if here.name is None or there.name is None:
        return False
    return there.name.rpartition(".")[2] in mentioned_names(definitions(here.file)[here.name])


def page_errors(text: str) -> list[str]:
    """Everything that is wrong with a walk."""
    steps, errors = read_steps(text)
    errors += [f"line {step.line}: there is no {step}" for step in steps if not exists(step)]
    if errors:
        return errors
    for number, step in enumerate(steps):
        earlier = [one for one in steps[:number] if one.section == step.section]
        if step.handover is None and (earlier or number) and not any(leads_to(one, step) for one in earlier):
            errors.append(f"line {step.line}: no earlier step of this section mentions {step}")
    files = len({step.file for step in steps})
    count = _FILE_COUNT.search(text)
    if count is None or int(count[1]) != files:
        errors.append(f"the page must say `Files: {files}.`")
    return errors


@pytest.mark.parametrize("name", list(MAX_FILES))
def test_a_walk_is_true(name: str) -> None:
    text = (INTERNALS / name).read_text(encoding="utf-8")
    assert page_errors(text) == []
    steps, _ = read_steps(text)
    assert len({step.file for step in steps}) <= MAX_FILES[name]


def test_the_spine_exists() -> None:
    """The README of docs/internals names files only."""
    text = (INTERNALS / "README.md").read_text(encoding="utf-8")
    files = re.findall(r"`(pgworkers/[\w./]+\.(?:py|sql))`", text)
    assert len(files) >= 17
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_each_question_is_answered_by_files_that_exist() -> None:
    text = (INTERNALS / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([A-Z][^|]*\?) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) == 35
    for question, answer in rows:
        files = re.findall(r"`(pgworkers/[\w./]+)`", answer)
        assert files, question
        assert [file for file in files if not (ROOT / file).exists()] == [], question


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("`Claimer._claim_once`", "`Claimer._claim_twice`"), "there is no"),
        (("`pgworkers/job/claim.sql`", "`pgworkers/job/claims.sql`"), "there is no"),
        (("(socket) ", "(telepathy) "), "unknown hand-over"),
        (("(pipe) ", ""), "no earlier step"),
        (("`Finisher._write_batch`", "`Finisher.throttle`"), "no earlier step"),
        (("Files: ", "Files: 1"), "the page must say"),
        (("1. `pgworkers/task.py`", "1. pgworkers/task.py"), "not a step"),
    ],
    ids=["function", "file", "hand-over", "no hand-over", "edge", "count", "form"],
)
def test_a_walk_that_is_not_true_is_reported(change: tuple[str, str], error: str) -> None:
    text = (INTERNALS / "enqueue-to-history.md").read_text(encoding="utf-8")
    assert change[0] in text
    assert any(error in found for found in page_errors(text.replace(*change, 1)))
