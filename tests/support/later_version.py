"""A later version of pgworkers: a copy of the package with more migrations."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from pgworkers.postgres import migrate
from pgworkers.postgres.migrate import Migration

PACKAGE = Path(migrate.__file__).parents[1]
NEWEST = migrate.known_migrations()[-1].version


def later_migrations(**texts: str) -> list[Migration]:
    """Migrations that follow the ones of this version, in order: name and text without the `serves` line."""
    return [
        Migration(number, f"{number:04d}_{name}", f"-- serves: {number:04d}\n{text}\n")
        for number, (name, text) in enumerate(texts.items(), start=NEWEST + 1)
    ]


def later_version(directory: Path, **migrations: str) -> str:
    """Copy the package and put these migrations on top. Returns what PYTHONPATH must be."""
    directory.mkdir()
    shutil.copytree(PACKAGE, directory / "pgworkers")
    for number, (name, text) in enumerate(migrations.items(), start=NEWEST + 1):
        (directory / "pgworkers" / "schema" / f"{number:04d}_{name}.sql").write_text(text)
    where = "import pgworkers; print(pgworkers.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where],
        env={"PYTHONPATH": str(directory)}, cwd=directory.parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.startswith(str(directory)), "not the later version: nothing would be tested"
    return str(directory)
