"""Jobs whose children take time to die: stopped, crashed and drained through the real command."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support import leftover_processes
from support.cluster import Cluster, Master, wait_for

from pgworkers.linux import proc

HANGS = Path(__file__).parents[1] / "support" / "hanging_app.py"
#: The application drops the first report of a death: as if the packet were lost on its way to the master.
LOSES_A_DEATH = """
from pgworkers.supervisor import main as _main
from pgworkers.supervisor.messages import Died as _Died

_emit = _main.Supervisor._emit
_lost = []

def _forgetful(self, fact, *fds):
    if isinstance(fact, _Died) and not _lost:
        _lost.append(fact)
        return
    _emit(self, fact, *fds)

_main.Supervisor._emit = _forgetful
"""


def start(cluster: Cluster, **environ: str) -> Master:
    shutil.copy(HANGS, cluster.app)
    notes = str(cluster.directory / "notes")
    return cluster.start(
        queues="default:1", HANGS_NOTES=notes, HANGS_BIG_MB="400", HANGS_NAP="0.005", **environ
    )


@pytest.fixture
def one_crowd() -> Iterator[None]:
    """Only one test on this machine at a time has children that respawn: they take all of its cores."""
    with open(Path(tempfile.gettempdir()) / "pgworkers-respawning-children.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def begins(cluster: Cluster, child: str, **options: str) -> int:
    """A job that has started its children and hangs through every exception."""
    notes = cluster.directory / "notes"
    [job] = cluster.enqueue("swallow", args={"child": child}, max_attempts=1, **options)
    wait_for(lambda: notes.exists() and f"{job} " in notes.read_text(), what="the job has its children")
    return job


def left_of(cluster: Cluster, job: int) -> list[int]:
    found = []
    for pid in leftover_processes.with_variable("HANGS_JOB", f"{cluster.directory / 'notes'} {job}"):
        try:
            found += [pid] * (psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.usefixtures("one_crowd")
@pytest.mark.parametrize("child", ["big", "many", "respawn"])
@pytest.mark.parametrize(
    ("how", "state", "verdict"),
    [("deadline", "dead", "timeout"), ("cancel", "cancelled", "cancelled"), ("kill", "dead", "crash")],
)
def test_a_job_with_children_ends_and_its_slot_goes_on(
    cluster: Cluster, how: str, state: str, verdict: str, child: str
) -> None:
    master = start(cluster)
    job = begins(cluster, child, **({"timeout": "8 seconds"} if how == "deadline" else {}))
    if how == "cancel":
        cluster.db.execute("SELECT pgworkers.cancel(%s)", (job,))
    elif how == "kill":
        os.kill(master.worker_pids()[0], signal.SIGKILL)
    assert cluster.until(job, state)["verdict"] == verdict
    assert left_of(cluster, job) == []
    [polite] = cluster.enqueue("sleep", timeout="0.1 seconds", max_attempts=1)
    cluster.until(polite, "dead")
    assert len(re.findall(r"worker default/0 .*died", master.log())) == 1
    assert "without a job" not in master.log(), "no worker was forked in vain"
    assert master.terminate() == 0


@pytest.mark.usefixtures("one_crowd")
def test_orphans_that_end_while_a_job_runs_do_not_fill_the_table_of_processes(cluster: Cluster) -> None:
    master = start(cluster)
    job = begins(cluster, "respawn")
    [worker] = master.worker_pids()

    def ended() -> set[int]:
        found = (proc.read_stat(pid) for pid in proc.children(worker))
        return {one.pid for one in found if one is not None and one.state == "Z"}

    before = wait_for(ended, what="some have ended")
    wait_for(lambda: not before & ended(), what="they are reaped")
    assert cluster.state(job) == "running"
    cluster.db.execute("SELECT pgworkers.cancel(%s)", (job,))
    cluster.until(job, "cancelled")


def test_a_drain_waits_for_the_children_and_leaves_no_row(cluster: Cluster) -> None:
    master = start(cluster, PGWORKERS_DRAIN_TIMEOUT="0s")
    job = begins(cluster, "big")
    assert master.terminate() == 0
    assert cluster.state(job) == "ready", "handed back"
    assert (left_of(cluster, job), master.processes()) == ([], [])
    cluster.db.execute("SELECT pgworkers.cancel(%s)", (job,))


def test_a_death_whose_report_is_lost_is_noticed_by_the_host(cluster: Cluster) -> None:
    cluster.declare(LOSES_A_DEATH)
    master = cluster.start(queues="default:1")
    [job] = cluster.enqueue("gate", max_attempts=1)
    wait_for(cluster.ledger.exists, what="it runs")
    os.kill(master.worker_pids()[0], signal.SIGKILL)
    row = cluster.until(job, "dead")
    assert row["verdict"] == "crash"
    [attempt] = cluster.attempts(job)
    assert attempt["error"].startswith("the worker was ended by a death that its supervisor did not report")
    cluster.open_gate()
    [after] = cluster.enqueue("gate")
    cluster.until(after, "succeeded")
