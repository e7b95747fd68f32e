"""S-16: a password on the command line is not in `ps`, and a file keeps the address out of the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from support.cluster import wait_for
from support.command import Command
from support.terminal import Screen

CANARY = "c4n4ry-w1th-@-and-%"


def test_s16_no_command_shows_the_password_of_its_command_line(
    login_dsn: Callable[[str], str], admin: psycopg.Connection[Any]
) -> None:
    """What another user of the machine reads: /proc/PID/cmdline of commands that stay."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PGWORKERS_DSN")}
    own = [sys.executable, "-m", "pgworkers"]
    worker = make_conninfo(login_dsn("worker"), password=CANARY)
    viewer = make_conninfo(login_dsn("viewer"), password=CANARY)
    enqueue = ["enqueue", "nobody", "--no-app", "--wait", "10m"]
    waiting = [
        subprocess.Popen([*own, *address, *enqueue], env=environ)
        for address in (["--dsn", worker], [f"--dsn={worker}"])
    ]
    screens = [
        Screen([*own, *address, "top"], environ) for address in (["--dsn", viewer], [f"--dsn={viewer}"])
    ]
    try:
        count = "SELECT count(*) FROM pgworkers.job"
        wait_for(lambda: admin.execute(count).fetchone() == (2,), what="both jobs")
        for screen in screens:
            screen.until("no hosts")
        shown = {process.pid: "enqueue" for process in waiting} | {s.process.pid: "top" for s in screens}
        for pid, word in shown.items():
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
            assert word in line
            assert "c4n4ry" not in line
    finally:
        for process in waiting:
            process.kill()
            process.wait()
        for screen in screens:
            screen.type("q")
            screen.process.wait(60)


def test_s16_a_file_keeps_the_address_out_of_the_command_line(
    login_dsn: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "dsn").write_text(make_conninfo(login_dsn("viewer"), password=CANARY) + "\n")
    cli = Command(tmp_path)
    assert cli("--dsn-file", "dsn", "jobs", "list").err == "no jobs\n"
    assert cli("jobs", "list", PGWORKERS_DSN_FILE="dsn").err == "no jobs\n"
    pipe = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m pgworkers jobs list --dsn-file <(cat dsn)"],
        cwd=tmp_path, env=cli.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (pipe.returncode, pipe.stderr) == (0, "no jobs\n")
