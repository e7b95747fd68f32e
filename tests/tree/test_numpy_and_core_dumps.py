"""numpy at the top of an app, and core dumps: what a start does about threads and limits, and what --check says of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster import Cluster

NUMPY = """
import numpy
app.queue("many", workers=1, threads=4)

@app.task(queue="many")
def multiply(ctx: Ctx) -> list:
    note(ctx, "START")
    before = len(os.listdir("/proc/self/task"))
    square = numpy.ones((600, 600)) @ numpy.ones((600, 600))
    after = len(os.listdir("/proc/self/task"))
    note(ctx, "END")
    return [float(square[0, 0]), os.environ["OPENBLAS_NUM_THREADS"], after - before]

@app.task
def limits(ctx: Ctx) -> str:
    note(ctx, "START")
    with open("/proc/self/limits") as lines: found = next(line for line in lines if line.startswith("Max core"))
    note(ctx, "END")
    return found
"""
#: A thread that nothing can end, of a library that is not numpy's.
NATIVE = """
import ctypes
if os.environ.get("OPENBLAS_NUM_THREADS") == "4":  # as numeric libraries do: by the number that the queue says
    _libc = ctypes.CDLL(None)
    _libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, ctypes.cast(_libc.pause, ctypes.c_void_p), None)
app.queue("many", workers=1, threads=4)
"""


def check(cluster: Cluster) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pgworkers", "--dsn", cluster.dsn, "-c", str(cluster.app), "run", "--check"],
        capture_output=True, text=True, timeout=120, check=False, cwd="/",
    )  # fmt: skip


def test_numpy_at_the_top_of_the_app_with_threads(cluster: Cluster) -> None:
    pytest.importorskip("numpy")
    cluster.declare(NUMPY)
    found = check(cluster)
    assert (found.returncode, "check     ok" in found.stdout) == (0, True), found.stderr
    master = cluster.start(queues="default:1", wait=False)
    [job] = cluster.enqueue("multiply", queue="many")
    value, threads, more = cluster.until(job, "succeeded")["result"]
    assert (value, threads) == (600.0, "4")
    assert more >= 1, "the pool is back in the worker"
    assert "starts threads" not in master.log()


def test_a_check_refuses_what_a_start_would(cluster: Cluster) -> None:
    cluster.declare(NATIVE)
    found = check(cluster)
    assert found.returncode == 6, found.stdout
    assert "queue many: " in found.stderr
    assert "native thread" in found.stderr
    assert "no worker of it would start" in found.stderr


def test_the_message_names_the_library(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    (tmp_path / "app.py").write_text(
        "import numpy\nfrom pgworkers import App\nfrom pgworkers.supervisor import fork_safety\n"
        "fork_safety.stop_library_threads = lambda: None\napp = App()\napp.queue('default', workers=1)\n"
    )
    code = (
        "from pgworkers.supervisor.describe import describe, threads_error\n"
        "print(threads_error('app.py', describe('app.py', 60, threads=4).threads))"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "openblas" in found.stdout, found.stderr
    assert "(numpy)" in found.stdout


@pytest.mark.parametrize(("setting", "limit"), [({}, "1"), ({"PGWORKERS_CORE_DUMP_LIMIT": "1MB"}, "1048576")])
def test_no_process_writes_a_core_dump_unless_it_may(
    cluster: Cluster, setting: dict[str, str], limit: str
) -> None:
    cluster.declare(NUMPY.replace("import numpy\n", ""))
    unlimited = ("sh", "-c", 'ulimit -c unlimited; exec "$@"', "sh")
    master = cluster.start(queues="default:1", prefix=unlimited, wait=False, **setting)
    [job] = cluster.enqueue("limits")
    assert cluster.until(job, "succeeded")["result"].split()[4:6] == [limit, limit]
    found = next(
        line for line in Path(f"/proc/{master.pid}/limits").read_text().splitlines() if "core" in line
    )
    assert found.split()[4:6] == [limit, limit]
