"""The public API as type checkers see it: right calls are accepted with exact types, wrong ones are refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "typing"
ROOT = Path(__file__).parents[2]
PYRIGHT = Path(sys.executable).with_name("pyright")


def mypy() -> dict[str, set[int]]:
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            "--hide-error-context",
            "--no-incremental",
            str(HERE),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert not found.stderr, found.stderr
    errors: dict[str, set[int]] = {}
    for line in found.stdout.splitlines():
        match = re.match(r"(.+?):(\d+): error: ", line)
        if match:
            errors.setdefault(Path(match[1]).name, set()).add(int(match[2]))
    return errors


def pyright() -> dict[str, set[int]]:
    found = subprocess.run(
        [str(PYRIGHT), "--pythonpath", sys.executable, "--outputjson", str(HERE)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
    )
    errors: dict[str, set[int]] = {}
    for said in json.loads(found.stdout)["generalDiagnostics"]:
        errors.setdefault(Path(said["file"]).name, set()).add(said["range"]["start"]["line"] + 1)
    return errors


def expected() -> set[int]:
    lines = (HERE / "refused.py").read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if "# error" in line}


@pytest.mark.timeout(600)  # mypy without its cache is the longest of all tests
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_right_calls_are_accepted_and_wrong_ones_refused(checker: object) -> None:
    if checker is pyright and not PYRIGHT.exists():
        pytest.skip("NOT TESTED: pyright is not installed (scripts/setup dev)")
    errors = checker()  # type: ignore[operator]
    assert len(expected()) > 10
    assert errors == {"refused.py": expected()}
