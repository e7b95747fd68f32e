"""What must stay true of the code itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pgworkers.postgres.statements import read_sql

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pgworkers"
MODULES = sorted(PACKAGE.rglob("*.py"))


def calls(path: Path) -> set[str]:
    """Dotted names that a module calls."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            found.add(ast.unparse(node.func))
    return found


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_imports_run_down_the_tree() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    if not lint.exists():
        pytest.skip("import-linter is not installed; .ci/run has it")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_each_module_has_a_docstring(module: Path) -> None:
    assert ast.get_docstring(ast.parse(module.read_text())), f"{module} has no docstring"


def test_only_the_supervisor_forks() -> None:
    forking = {str(m.relative_to(PACKAGE)) for m in MODULES if "os.fork" in calls(m)}
    assert forking == {"supervisor/fork.py"}


def test_the_master_never_imports_what_imports_the_users_code() -> None:
    for module in (PACKAGE / "master").glob("*.py"):
        assert not imports(module) & {
            "pgworkers.app",
            "pgworkers.app_import",
            "importlib",
        }, module


def test_what_a_command_prints_goes_through_the_room_that_escapes_it() -> None:
    """`output` escapes what would control a terminal or forge a line; click itself prints only its help and our version."""
    printing = {"click.echo", "click.secho", "click.prompt", "print", "sys.stdout.write", "sys.stderr.write"}
    found = {
        str(m.relative_to(PACKAGE / "cli")): calls(m) & printing
        for m in (PACKAGE / "cli").rglob("*.py")
        if calls(m) & printing
    }
    assert found == {
        "output.py": {"click.echo", "print"},
        "invocation.py": {"click.echo"},
        "root.py": {"click.echo"},
        "error_report.py": {"print"},
    }


def test_nothing_is_ever_pickled() -> None:
    for module in MODULES:
        assert not imports(module) & {"pickle", "marshal", "shelve"}, module


def test_loops_have_no_sql_and_verbs_have_no_loops_over_time() -> None:
    for package in ("job", "schedule", "limits"):
        for module in (PACKAGE / package).glob("*.py"):
            if package == "limits" and module.name == "rate.py":
                continue  # `Rate.acquire` waits in the user's process
            assert not imports(module) & {"time", "asyncio", "threading"}, f"{module}: a verb with a clock"
    for room in ("master", "supervisor", "worker"):
        for module in (PACKAGE / room).glob("*.py"):
            text = module.read_text()
            assert "SELECT " not in text, f"{module}: a loop with SQL"
            assert "UPDATE pgworkers" not in text, f"{module}: a loop with SQL"


def test_every_statement_that_ends_jobs_notifies_waiters() -> None:
    exempt = ("pgworkers.settle_dependents(", "pgworkers.archive_waiting_jobs(", "pgworkers.move_kept_rows(")
    for path in sorted(PACKAGE.rglob("*.sql")):
        if path.name.endswith(".fragment.sql"):
            continue
        for part in read_sql(path).split("CREATE FUNCTION"):
            if part.lstrip().startswith(exempt):
                continue  # the function itself, a helper of its callers, and one that moves jobs that ended long ago
            if "INSERT INTO pgworkers.history" in part or "FROM pgworkers.archive_waiting_jobs(" in part:
                assert "pgworkers.settle_dependents(" in part, (
                    f"{path}: dependents and batches are not notified of these results"
                )


def test_no_two_test_files_share_a_name() -> None:
    """pytest imports them by name: a second file of the same name would end the whole run."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_commands_to_paste_are_written_in_one_place() -> None:
    """Any login that may enqueue chooses names: `observe.escape.shell_command` quotes them for the shell."""
    found = []
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text())):
            if not isinstance(node, ast.JoinedStr):
                continue
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
            if re.search(r"\bpgworkers(?: [a-z]+){1,2}(?: -\S+)? \{\}|\bpgworkers -\S+ \{\}", text):
                found.append(f"{module.relative_to(PACKAGE)}:{node.lineno}: {text}")
    assert [line for line in found if not line.startswith(_NO_COMMANDS)] == []


#: f-strings that start with our name and are not commands: the key of a lock.
_NO_COMMANDS = ("postgres/migrate.py",)


def test_the_parts_of_a_master_do_not_know_their_host() -> None:
    """`Host` connects them. A part that is handed the host takes out of it whatever it likes."""
    users = [module.name for module in MODULES if "pgworkers.master.host" in imports(module)]
    assert users == ["main.py"]
