"""A script with no database configured uses an embedded server next to its file, which stops when the script ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pgworkers.embedded.server import EmbeddedServer

SCRIPT = """
import os, sys
from pgworkers import App
app = App()
app.queue("default")
@app.task
def job(n: int) -> int:
    return n
if __name__ == "__main__":
    made = job.enqueue(1)
    if os.fork() == 0:
        job.enqueue(2)      # a child of the user
        sys.exit(0)
    assert os.wait()[1] == 0
    assert job.enqueue(3).state == "ready"
    print(made.id, flush=True)
"""


@pytest.mark.parametrize("where", ["beside the script", "PGWORKERS_EMBEDDED_DIRECTORY"])
def test_a_script_needs_no_database(tmp_path: Path, where: str) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    (directory / "script.py").write_text(SCRIPT)
    environ = {name: value for name, value in os.environ.items() if name != "PGWORKERS_EMBEDDED_DIRECTORY"}
    home = directory / ".pgworkers"
    if where == "PGWORKERS_EMBEDDED_DIRECTORY":
        home = tmp_path / "elsewhere"
        environ["PGWORKERS_EMBEDDED_DIRECTORY"] = str(home)
    server = EmbeddedServer(home)
    try:
        found = [
            subprocess.run(
                [sys.executable, "-W", "error", str(directory / "script.py")],
                cwd="/",
                env=environ,
                check=True,
                capture_output=True,
                text=True,
                timeout=100,
            ).stdout.strip()
            for _ in range(2)
        ]
        assert found == ["1", "4"]  # the second run finds the data of the first
        status = server.status()
        assert (status.has_data, status.pid, status.user_pids) == (True, None, [])
    finally:
        server.stop(force=True)
        server.reset()
