"""Scripts that measure are run by hand, so only these tests notice when one of them no longer fits the code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def test_what_statements_cost_is_measured() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPTS / "sql-cost", "--jobs", "100", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    each = json.loads(done.stdout)["per_job"]
    assert {"claim 50", "finish 500", "enqueue", "enqueue_many", "plain COPY"} <= set(each)
    assert each["claim 50"]["server_us"] > 0
    assert each["enqueue"]["server_us"] > 0


@pytest.mark.parametrize("words", ["faults --help", "chaos --list", "mutants --list", "gen-docs --check"])
def test_a_script_finds_the_projects_python_by_itself(words: str) -> None:
    """They are started with the system's Python first on PATH, which has none of our dependencies."""
    plain = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    name, *rest = words.split()
    done = subprocess.run(
        [plain, "-S", SCRIPTS / name, *rest], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
