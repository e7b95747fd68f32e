"""In CI a test that is skipped because a program is missing is red; elsewhere it is skipped and says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPTIONS = ["-n0", "-p", "conftest", "-p", "no:cacheprovider", "-p", "no:randomly"]
TESTS = """
import pytest

@pytest.mark.skipif(True, reason="NOT TESTED: pgbouncer is not installed (apt-get install pgbouncer)")
def test_a(): ...

def test_b():
    pytest.skip("NOT TESTED: pyright is not installed (scripts/setup dev)")

def test_c():
    pytest.skip("NOT TESTED: a small disk needs root (mount)")
"""


@pytest.mark.parametrize(
    ("ci", "outcome"), [("true", {"error": 1, "failed": 1, "skipped": 1}), ("", {"skipped": 3})]
)
def test_a_missing_program_is_red_in_ci(tmp_path: Path, ci: str, outcome: dict[str, int]) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-c",
            str(ROOT / "pyproject.toml"),
            *OPTIONS,
            str(tmp_path / "test_it.py"),
        ],
        cwd=tmp_path,
        env={**os.environ, "CI": ci, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    last = done.stdout.splitlines()[-1]
    found = {word: int(number) for number, word in re.findall(r"(\d+) (error|failed|skipped)", last)}
    assert found == outcome, done.stdout + done.stderr
