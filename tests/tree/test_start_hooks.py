"""A start hook that fails is named, with its traceback, wherever an operator looks."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request

from support.cluster import Cluster, wait_for

HOOK = """
def connect_to_the_model_server():
    if os.path.exists(os.environ["PGWORKERS_LEDGER"] + ".repaired"): return
    raise ConnectionRefusedError("the model server is not there")

@app.on_worker_start
def warm_up() -> None:
    connect_to_the_model_server()
"""
ERROR = "a start hook failed: ConnectionRefusedError: the model server is not there"
PLACE = "in connect_to_the_model_server"


def command(cluster: Cluster, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pgworkers", "--dsn", cluster.dsn, *words],
        capture_output=True, text=True, timeout=60, check=False, cwd="/",
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_start_hook_that_fails_is_named_everywhere(cluster: Cluster) -> None:
    cluster.declare(HOOK)
    master = cluster.start("--metrics", "127.0.0.1:0", queues="default:1", wait=False)
    lines = wait_for(lambda: [line for line in master.log().splitlines() if line.startswith("metrics ")])
    address = lines[0].split()[1].removesuffix("/metrics")

    def readyz() -> str:
        try:
            with urllib.request.urlopen(f"{address}/readyz?verbose", timeout=5) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except OSError:
            return ""

    wait_for(lambda: ERROR in readyz(), what="/readyz names the hook")
    assert PLACE in readyz()
    wait_for(lambda: cluster.db.execute("SELECT 1 FROM pgworkers.host WHERE problems <> '[]'").fetchone())
    [job] = cluster.enqueue("work")
    shown = command(cluster, "jobs", "show", str(job))
    assert (
        f"cannot start on {cluster.db.execute('SELECT name FROM pgworkers.host').fetchall()[0][0]}: {ERROR}"
        in shown
    )
    assert PLACE in shown
    doctor = command(cluster, "doctor")
    assert "no worker of default starts" in doctor
    assert ERROR in doctor
    assert PLACE in doctor
    top = json.loads(command(cluster, "-o", "json", "top", "--once"))
    [host] = top["hosts"]
    error, traceback = host["problems"]["default"]
    assert error == ERROR
    assert PLACE in traceback
    assert "cannot start" in command(cluster, "top", "--once")
    cluster.ledger.with_name(cluster.ledger.name + ".repaired").touch()
    cluster.until(job, "succeeded")
    wait_for(lambda: readyz().startswith("ok"), what="what is mended is not shown any more")
    wait_for(lambda: cluster.db.execute("SELECT 1 FROM pgworkers.host WHERE problems = '[]'").fetchone())


def test_a_start_hook_that_ends_its_process_is_named_too(cluster: Cluster) -> None:
    cluster.declare("@app.on_worker_start\ndef warm_up() -> None:\n    ctypes.string_at(0)\n")
    cluster.start(queues="default:1", wait=False)
    query = "SELECT problems -> 0 FROM pgworkers.host WHERE problems <> '[]'"
    [problem] = wait_for(lambda: cluster.db.execute(query).fetchone(), what="the host's problems")
    assert problem["error"] == "a worker ended by SIGSEGV before it was ready"
    assert "in warm_up" in problem["traceback"]
