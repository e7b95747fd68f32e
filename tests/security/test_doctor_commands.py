"""S-14: commands that `doctor` prints to be pasted into a shell, with names that an enqueuer chose."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from support.command import ForkedCommand
from support.database_host import DatabaseHost
from support.hostile_names import HOSTILE_NAMES

#: Names that a queue may have.
HOSTILE = [name for name in HOSTILE_NAMES if "\n" not in name and not name.startswith("-")]


def run_in_a_shell(commands: list[str], directory: Path) -> list[str]:
    """The words that arrive at `pgworkers` when the commands are pasted."""
    script = 'pgworkers() { printf "%s\\0" "$@"; }\n' + "\n".join(commands)
    done = subprocess.run(["sh"], input=script.encode(), cwd=directory, capture_output=True, check=False)
    assert done.stderr == b"", script
    return done.stdout.decode().split("\0")


def test_s14_a_pasted_command_of_the_doctor_runs_nothing_but_pgworkers(
    web: psycopg.Connection[Any],
    admin: psycopg.Connection[Any],
    login_dsn: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """Each name is that of a task and that of a queue."""
    host = DatabaseHost(admin, "pgworkers")
    host.register()
    for name in HOSTILE:
        web.execute("SELECT pgworkers.enqueue(%s, queue => 'default')", [name])
        web.execute("SELECT pgworkers.enqueue('work', queue => %s)", [name])
    admin.execute(
        "UPDATE pgworkers.job SET created_at = now() - interval '1 d', run_at = now() - interval '1 d'"
    )
    admin.execute("INSERT INTO pgworkers.queue (name, paused) VALUES ('$(touch pwned)', true)")
    cli = ForkedCommand(tmp_path, PGWORKERS_DSN=login_dsn("viewer"))
    rows = cli("doctor", "-o", "json", code=None).json()
    shown = [fix[fix.index("pgworkers ") :] for row in rows for fix in row["fix"] if "pgworkers " in fix]
    here = tmp_path / "here"
    here.mkdir()
    arrived = run_in_a_shell(shown, here)
    assert list(here.iterdir()) == []
    for name in HOSTILE:  # run -Q, jobs list --queue, jobs discard --task
        assert arrived.count(name) >= 3, name
