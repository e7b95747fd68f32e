"""Names in the package have one meaning and say what they are."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pgworkers"
MODULES = sorted(PACKAGE.rglob("*.py"))
#: Names of constants that need a subject and a unit: BUFFER_TIMEOUT_SECONDS, not `PATIENCE`.
VAGUE_CONSTANTS = {
    "MOST", "LEAST", "PATIENCE", "STEP", "LOOK", "SHARE", "AGAIN", "LATE", "MANY", "FEW", "REST",
    "TURN", "PIECE", "GRAIN", "DEEP", "SLOW", "QUICK", "STALE", "WHOLE", "LONGEST", "SHORTEST",
    "SECOND", "AHEAD",
}  # fmt: skip


def class_places(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Where each class is defined, nested classes too. A leading underscore does not make another name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(f"{path.name}:{node.lineno}")
    return found


def constants(path: Path) -> set[str]:
    """Names that are assigned at the top level of a module."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_a_class_name_has_one_meaning() -> None:
    found = class_places(MODULES)
    found.pop("Meta")  # the options of a model, which Django finds by this name
    doubled = {name: places for name, places in found.items() if len(places) > 1}
    assert doubled == {}


def test_a_second_class_of_a_name_is_reported(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("class Worker: ...\n")
    other.write_text("def make():\n    class _Worker: ...\n    return _Worker\n")
    assert class_places([one, other]) == {"Worker": ["one.py:1", "other.py:2"]}


def test_constants_have_a_subject() -> None:
    vague = {
        (str(path.relative_to(PACKAGE)), name)
        for path in MODULES
        for name in constants(path)
        if name.lstrip("_") in VAGUE_CONSTANTS
    }
    assert vague == set()


def test_no_module_is_called_after_nothing() -> None:
    """`utils` and the like attract what belongs elsewhere."""
    directories = [PACKAGE, ROOT / "tests", ROOT / "scripts"]
    found = {path for directory in directories for path in directory.rglob("*.py")}
    assert {p for p in found if p.stem in {"utils", "helpers", "common", "base", "manager", "misc"}} == set()
