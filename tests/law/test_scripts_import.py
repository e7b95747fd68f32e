"""Every script starts, and every module that only scripts import can be imported.

The soak, the proofs with several hosts and the benchmarks are run by hand. A renamed module would break them unseen.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
#: Packages below tests/ that pytest does not collect.
PACKAGES = ("bench", "chaos", "many_hosts", "mutants")
#: The app of the soak. It runs in a directory of its own, next to a copy of tests/support/misbehaving_app.py.
COPIED_APP = "chaos.app"
MODULES = sorted(
    f"{package}.{path.stem}"
    for package in PACKAGES
    for path in (ROOT / "tests" / package).glob("*.py")
    if not path.stem.startswith("__") and f"{package}.{path.stem}" != COPIED_APP
)
PYTHON_SCRIPTS = sorted(
    path
    for path in SCRIPTS.iterdir()
    if path.is_file() and path.read_bytes().startswith(b"#!/usr/bin/env python3")
)
#: Scripts with argparse. `--help` runs their imports and parses their options.
WITH_HELP = (
    "cancel-latency",
    "chaos",
    "failover",
    "faults",
    "mutants",
    "prove-hosts",
    "prove-metrics",
    "sql-cost",
    "stop-matrix",
)
#: Scripts that read `sys.argv` themselves; tests/law/test_reference.py, test_prose.py and test_dashboards.py run them.
WITHOUT_HELP = ("check-grafana", "gen-docs", "gen-grafana", "gen-roles", "lint-prose")


def test_every_python_script_is_in_one_of_the_two_lists() -> None:
    assert [path.name for path in PYTHON_SCRIPTS] == sorted(WITH_HELP + WITHOUT_HELP)


@pytest.mark.parametrize("path", PYTHON_SCRIPTS, ids=lambda path: path.name)
def test_a_script_compiles(path: Path) -> None:
    compile(path.read_text(encoding="utf-8"), str(path), "exec")


@pytest.mark.parametrize("name", WITH_HELP)
def test_a_script_prints_its_help(name: str) -> None:
    _run(sys.executable, SCRIPTS / name, "--help")


@pytest.mark.parametrize("words", ["", "quick", "peers", "curve", "store", "report"])
def test_every_command_of_the_benchmark_prints_its_help(words: str) -> None:
    _run(sys.executable, ROOT / "tests" / "bench", *words.split(), "--help")


def test_every_module_that_only_scripts_use_can_be_imported() -> None:
    """In one process of its own, so that nothing that pytest has imported helps."""
    paths = [str(ROOT), str(ROOT / "tests")]
    _run(
        sys.executable,
        "-c",
        f"import sys; sys.path[:0] = {paths!r}\nfrom importlib import import_module\n"
        f"for name in {MODULES!r}: import_module(name)",
    )


def test_the_files_that_a_benchmark_copies_for_its_peers_exist(tmp_path: Path) -> None:
    """The peers' scripts run in other environments, next to copies of the support modules that they import."""
    paths = [str(ROOT), str(ROOT / "tests")]
    _run(
        sys.executable,
        "-c",
        f"import sys; sys.path[:0] = {paths!r}\nfrom pathlib import Path\n"
        "from bench.environment import BenchDirectory\n"
        f"BenchDirectory(Path({str(tmp_path)!r}), None).link_scripts()",
    )
    copied = {path.stem for path in (tmp_path / "scripts").glob("*.py")}
    assert {path.stem for path in (ROOT / "tests" / "bench" / "peers").glob("*.py")} < copied
    for path in (tmp_path / "scripts").glob("*.py"):
        source = path.read_text(encoding="utf-8")
        compile(source, str(path), "exec")
        assert "from support" not in source, f"{path.name} imports tests/support, which is not copied"
    assert "history_partitions" in copied


def _run(*argv: str | Path) -> None:
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
