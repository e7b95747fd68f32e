"""The example project examples/django_orders: its own tests, our tests inside it, and a host that runs its jobs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from support.cluster import FAST, wait_for

pytest.importorskip("django")
pytest.importorskip("django_tasks")

ROOT = Path(__file__).parents[2]


class Project:
    """A copy of the example with a database of its own."""

    def __init__(self, directory: Path, dsn: str) -> None:
        self.directory = directory
        shutil.copytree(ROOT / "examples" / "django_orders", directory)
        found = conninfo_to_dict(dsn)
        port = f":{found['port']}" if "port" in found else ""
        self.url = (
            f"postgresql://{found['user']}@{quote(str(found['host']), safe='')}{port}/{found['dbname']}"
        )
        self.environ = {
            **os.environ,
            **FAST,
            "DATABASE_URL": self.url,
            "PYTHONPATH": str(ROOT / "tests" / "support"),
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "manage.py", *words]

    def manage(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=self.directory,
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )

    def python(self, code: str) -> str:
        done = self.manage("shell", "--verbosity", "0", "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def project(empty_dsn: str, tmp_path: Path) -> Project:
    return Project(tmp_path / "django_orders", empty_dsn)


def test_the_tests_of_the_example_and_ours_pass_in_a_real_django(project: Project, db_names: Any) -> None:
    done = project.manage("test", "orders", "django_suite", "--verbosity", "2", "--noinput")
    assert done.returncode == 0, done.stderr[-6000:]
    ran = re.search(r"Ran (\d+) tests", done.stderr)
    assert ran is not None
    assert int(ran[1]) >= 25
    # Nothing reached the database that DATABASE_URL names, not even the schema.
    with psycopg.connect(project.url) as conn:
        assert conn.execute("SELECT to_regnamespace('pgworkers')").fetchone() == (None,)


@pytest.fixture
def db_names(empty_dsn: str, server: Any) -> Any:
    """Drop the test database of Django if the run was ended before it could."""
    yield
    server.drop(f"test_{conninfo_to_dict(empty_dsn)['dbname']}")


APP_WITH_A_LOOK = """

import os
import signal
import subprocess


@task()
def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@task()
def raises() -> None:
    raise LookupError("not there")


@app.task(retries=0)
def look() -> list[str]:
    child = subprocess.run(["env"], capture_output=True, text=True).stdout
    return [name for name in ("DATABASE_URL", "PGWORKERS_DSN") if name in os.environ or name + "=" in child]
"""


def test_a_host_runs_the_jobs_of_the_project(project: Project) -> None:
    tasks = project.directory / "orders" / "tasks.py"
    tasks.write_text(tasks.read_text() + APP_WITH_A_LOOK)
    done = project.manage("migrate")
    assert done.returncode == 0, done.stderr
    assert "Applied pgworkers 0001_initial" in done.stdout
    again = project.manage("migrate")
    assert "Applied pgworkers" not in again.stdout

    log = project.directory / "host.log"
    with log.open("wb") as output:
        host = subprocess.Popen(
            project.command("pgworkers", "run"),
            cwd=project.directory,
            env=project.environ,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        project.python(
            "from django.test import Client\n"
            "from orders.tasks import is_killed, look, raises\n"
            "Client().post('/buy/lamp/')\n"
            "client = Client(raise_request_exception=False)\n"
            "assert client.post('/buy/unicorn/').status_code == 500\n"
            "assert look.enqueue().result(60) == [], 'a handler sees the password'\n"
            "is_killed.enqueue(), raises.enqueue()\n"
        )
        with psycopg.connect(project.url, autocommit=True) as conn:

            def is_done() -> bool:
                return conn.execute("SELECT receipt, is_thanked FROM orders_order").fetchall() == [
                    ("Receipt for lamp", True)
                ]

            wait_for(is_done, what=log.read_text())
            ends = "SELECT state::text, count(*)::int FROM pgworkers.history GROUP BY 1 ORDER BY 1"
            wait_for(lambda: conn.execute(ends).fetchall() == [("dead", 2), ("succeeded", 3)])
        shown = project.python(
            "from django_tasks import default_task_backend\n"
            "from pgworkers.django.models import JobRecord\n"
            "for job in JobRecord.objects.filter(task='django_task').order_by('pk'):\n"
            "    result = default_task_backend.get_result(str(job.pk))\n"
            "    print(result.status, result._return_value, result.attempts, len(result.worker_ids),\n"
            "          *[error.exception_class.__name__ for error in result.errors])\n"
        )
        assert shown.splitlines() == [
            "SUCCESSFUL thanked for order 1 1 1",
            "FAILED None 1 1 JobFailed",
            "FAILED None 1 1 LookupError",
        ]
        listed = project.manage("pgworkers", "jobs", "list", "-o", "ndjson")
        assert listed.returncode == 0, listed.stderr
        assert "write_receipt" in listed.stdout
    finally:
        host.terminate()
        host.wait(60)
    assert "password" not in log.read_text()


def test_a_command_passes_its_exit_code_through(project: Project) -> None:
    assert project.manage("pgworkers", "no-such-command").returncode == 2
    assert project.manage("pgworkers", "--version").stdout.startswith("pgworkers ")
    done = project.manage("pgworkers", "jobs", "show", "1")
    assert done.returncode == 5, done.stderr
    assert "migrate" in done.stderr
