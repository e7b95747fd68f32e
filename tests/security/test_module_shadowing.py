"""S-06: files in the current directory, or next to the app, that have the names of our dependencies are never run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.logins import LoginDatabase
from support.pooler import require_bouncer

from pgworkers import app_import

ROOT = Path(__file__).parents[2]
#: What a stranger would write: it says that it ran, and does not work.
FOREIGN = "open({proof!r}, 'a').write(__name__ + '\\n')\nraise ImportError('a stranger')\n"
APP = """
import os, sys
import neighbour
from pgworkers import App, Ctx
app = App()
app.queue("default", workers=1)

@app.task
def look(ctx: Ctx) -> list:
    import late_neighbour
    with ctx.connect() as conn:
        [(one,)] = conn.execute("SELECT 1").fetchall()
    return [one, neighbour.WORD, late_neighbour.WORD, "psycopg" in sys.modules]
"""


def foreign(directory: Path, proof: Path) -> None:
    """A file with the name of each of our dependencies."""
    for name in sorted(app_import.PROTECTED_MODULES):
        (directory / f"{name}.py").write_text(FOREIGN.format(proof=str(proof)))


def clean_environ() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("PG", "DATABASE_URL", "PYTHON"))}


def run(directory: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pgworkers", *words],
        cwd=directory, env=clean_environ() | environ, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_s06_nothing_is_imported_from_the_current_directory(
    database: LoginDatabase, login_dsn: Callable[[str], str], tmp_path: Path
) -> None:
    here, there, proof = tmp_path / "here", tmp_path / "there", tmp_path / "proof"
    here.mkdir()
    there.mkdir()
    foreign(here, proof)
    (there / "app.py").write_text(APP)
    (there / "neighbour.py").write_text("WORD = 'here'")
    config = str(there / "app.py")
    for dsn, words in (
        (login_dsn("viewer"), ("version",)),
        (login_dsn("owner"), ("-c", config, "migrate", "up")),
        (database.dsn("worker"), ("-c", config, "run", "--check")),  # hosts go past a pooler
        (login_dsn("viewer"), ("queues", "list")),
    ):
        done = run(here, *words, PGWORKERS_DSN=dsn, PGWORKERS_METRICS_ADDRESS="off")
        assert done.returncode == 0, (words, done.stderr)
        assert not proof.exists(), (words, proof.read_text())


def test_s06_files_next_to_the_app_shadow_none_of_our_modules(
    cluster: Cluster, database: LoginDatabase
) -> None:
    require_bouncer()
    proof = cluster.directory / "proof"
    cluster.app.write_text(APP)
    (cluster.directory / "neighbour.py").write_text("WORD = 'early'")
    (cluster.directory / "late_neighbour.py").write_text("WORD = 'late'")
    foreign(cluster.directory, proof)
    cluster.start(queues="default:1", dsn=database.dsn("worker"))  # in that directory, with that app
    for way in ("direct", "pooled"):
        enqueued = run(cluster.directory, "enqueue", "look", PGWORKERS_DSN=database.dsn("web", way))
        assert enqueued.returncode == 0, enqueued.stderr
    jobs = cluster.db.execute("SELECT id FROM pgworkers.jobs").fetchall()
    assert len(jobs) == 2
    for (job,) in jobs:
        assert cluster.until(job, "succeeded")["result"] == [1, "early", "late", True]
    assert not proof.exists(), proof.read_text()


def test_an_installed_app_does_not_bring_the_current_directory_along(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    (tmp_path / "statistics.py").write_text(FOREIGN.format(proof=str(proof)))
    code = (
        "import sys\nfrom pgworkers.app_import import import_app\nimport_app('pgworkers.cli.bench.app:app')\n"
        "import statistics\nprint(sys.path[:1])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not proof.exists()


def test_a_module_of_the_current_directory_that_is_named_is_found_there(tmp_path: Path) -> None:
    (tmp_path / "named.py").write_text("import other_of_it\nfrom pgworkers import App\napp = App()\n")
    (tmp_path / "other_of_it.py").write_text("")
    code = "from pgworkers.app_import import import_app\nimport_app('named:app')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_python_that_we_start_ignores_the_current_directory() -> None:
    starts = 0
    for file in (ROOT / "pgworkers").rglob("*.py"):
        text = re.sub(r"\s+", " ", file.read_text())
        for found in re.finditer(r"sys\.executable, (\S+)", text):
            starts += 1
            assert found[1] == '"-P",', f"{file}: {found[0]}"
        for found in re.finditer(r'"python", (\S+)', text):
            assert found[1] == '"-P",', f"{file}: {found[0]}"
    assert starts >= 3


@pytest.mark.parametrize("group", ["", "otel"])
def test_every_dependency_is_guarded(group: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["optional-dependencies"][group] if group else project["dependencies"]
    names = {re.split(r"[\[<>=!]", one)[0].replace("-", "_") for one in wanted}
    known = {"opentelemetry_api": "opentelemetry"}
    assert {known.get(name, name) for name in names} <= app_import.PROTECTED_MODULES
