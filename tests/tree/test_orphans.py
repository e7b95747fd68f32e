"""Workers that outlived their master and their supervisor: the next master on the machine ends them before it serves."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.cgroups import NoCgroup, cgroup
from support.cluster import Cluster, Master, wait_for

from pgworkers.linux import environment, proc
from pgworkers.master import orphan_processes
from pgworkers.master.orphan_processes import ProcessOrigin

#: In its first lease it clears its death signal and stays in C code that holds the GIL: no beat looks for its parents.
STUBBORN = """
@app.task
def stubborn(ctx: Ctx) -> None:
    note(ctx, "START")
    if ctx.lease == 1:
        ctypes.CDLL(None).prctl(1, 0)
        with open(os.environ["PGWORKERS_LEDGER"] + ".cleared", "w") as out: out.write(str(os.getpid()))
        sum(itertools.repeat(1, 1 << 50))
    note(ctx, "END")

@app.task
def sees(ctx: Ctx, pid: int) -> bool:
    note(ctx, "START")
    try:
        with open(f"/proc/{pid}/stat") as stat: found = stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError: found = False
    note(ctx, "END")
    return found
"""


def is_alive(pid: int) -> bool:
    found = proc.read_stat(pid)
    return found is not None and found.state not in "ZX"


@contextlib.contextmanager
def pid_namespace() -> Iterator[tuple[str, ...]]:
    """A prefix for commands that are to run in a pid namespace of their own, all in the same one."""
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sleep", "9999"]
    ) as outside:
        try:
            inside = wait_for(lambda: proc.children(outside.pid), what="the first process of the namespace")
            wait_for(
                lambda: proc.read_file(f"/proc/{inside[0]}/cmdline").startswith(b"sleep"), what="its /proc"
            )
            yield "nsenter", "--target", str(inside[0]), "--pid", "--mount"
        finally:
            outside.kill()


def outlives(cluster: Cluster, master: Master) -> tuple[int, int, int]:
    """Kill a master and its supervisor at one moment. (the job, its worker, its worker in its own pid namespace)

    The worker cleared its death signal and holds the GIL: it looks for no parent.
    """
    [job] = cluster.enqueue("stubborn")
    cleared = cluster.ledger.with_name(cluster.ledger.name + ".cleared")
    inside = int(
        wait_for(lambda: cleared.exists() and cleared.read_text(), what="its death signal is cleared")
    )
    [orphan] = master.worker_pids("default")
    above = [pid for pid, _ in master.titles("pgworkers: master", "pgworkers: queue")]
    assert len(above) == 2
    for number in (signal.SIGSTOP, signal.SIGKILL):  # at the same moment from their point of view
        for pid in above:
            os.kill(pid, number)
    master.signal(signal.SIGCONT)  # `nsenter` stops itself when its child is stopped
    master.wait()
    wait_for(lambda: not any(is_alive(pid) for pid in above))
    return job, orphan, inside


needs_namespaces = pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("unshare") or not shutil.which("nsenter"),
    reason="NOT TESTED: a pid namespace needs root, unshare and nsenter",
)


@needs_namespaces
def test_the_next_master_ends_an_orphan_before_it_serves(cluster: Cluster) -> None:
    """In a pid namespace of their own: masters of other tests on this machine end orphans, too, but not those in it."""
    cluster.declare(STUBBORN)
    with pid_namespace() as prefix:
        job, orphan, inside = outlives(cluster, cluster.start(queues="default:1", prefix=prefix))
        assert is_alive(orphan), "it is not what this test is about"
        [look] = cluster.enqueue("sees", args={"pid": inside})
        second = cluster.start(queues="default:1", prefix=prefix)
        assert "1 process left by a former host of this machine killed" in second.log()
        assert not is_alive(orphan)
        assert cluster.until(look, "succeeded")["result"] is False
        assert cluster.until(job, "succeeded")["lease"] > 1
        [(pid, _)] = second.titles("pgworkers: master")
        os.kill(pid, signal.SIGTERM)
        assert second.wait() == 0


@needs_namespaces
def test_in_a_container_an_orphan_ends_with_the_master(cluster: Cluster) -> None:
    """The master is the first process of its pid namespace: the kernel ends all others there when it ends."""
    cluster.declare(STUBBORN)
    first = cluster.start(
        queues="default:1", prefix=("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    )
    job, orphan, _ = outlives(cluster, first)
    wait_for(lambda: not is_alive(orphan), what="the kernel ends the orphan")
    wait_for(lambda: first.processes() == [], what="nothing of that tree is left")
    second = cluster.start(queues="default:1")
    assert cluster.until(job, "succeeded")["lease"] > 1
    assert second.terminate() == 0


@needs_namespaces
def test_in_the_cgroup_of_a_unit_an_orphan_ends_when_systemd_kills_the_unit(cluster: Cluster) -> None:
    """`KillMode=mixed`: when the main process is gone, systemd kills what is left in the cgroup of the unit.

    In a pid namespace, but not as its first process: so neither the kernel nor a master of another test ends the orphan.
    """
    cluster.declare(STUBBORN)
    try:
        with cgroup("unified") as unit, pid_namespace() as prefix:
            if not (unit / "cgroup.kill").exists():
                pytest.skip(f"NOT TESTED: {unit} has no cgroup.kill (Linux 5.14, cgroup v2)")
            first = cluster.start(queues="default:1", cgroup=unit, prefix=prefix)
            job, orphan, _ = outlives(cluster, first)
            assert (unit / "cgroup.procs").read_text() == f"{orphan}\n", "nothing else is left of the tree"
            assert is_alive(orphan)
            (unit / "cgroup.kill").write_text("1")
            wait_for(lambda: not is_alive(orphan), what="the orphan ends")
            wait_for(lambda: (unit / "cgroup.procs").read_text() == "", what="nothing is left in the unit")
            second = cluster.start(queues="default:1", cgroup=unit)
            assert cluster.until(job, "succeeded")["lease"] > 1
            assert second.terminate() == 0
    except NoCgroup as error:
        pytest.skip(f"NOT TESTED: {error}")


def test_a_second_living_host_of_the_machine_is_not_hurt(cluster: Cluster) -> None:
    first = cluster.start(queues="default:1")
    [job] = cluster.enqueue("gate")
    wait_for(lambda: cluster.state(job) == "running" and cluster.ledger.exists())
    before = {process.pid for process in first.processes()}
    second = cluster.start(queues="default:1")
    assert {process.pid for process in first.processes()} == before
    assert "left by a former host" not in second.log()
    cluster.open_gate()
    row = cluster.until(job, "succeeded")
    assert (row["attempt"], row["crashes"]) == (1, 0)


@pytest.fixture
def gone() -> int:
    """The number of a process that is dead and reaped."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


@contextlib.contextmanager
def marked(value: str) -> Iterator[int]:
    with subprocess.Popen(
        ["sleep", "999"], env={"PATH": os.environ["PATH"], environment.ORIGIN_VARIABLE: value}
    ) as process:
        try:
            wait_for(
                lambda: environment.ORIGIN_VARIABLE.encode() in proc.read_file(f"/proc/{process.pid}/environ")
            )
            yield process.pid
        finally:
            process.kill()


def test_a_process_with_a_living_master_is_not_an_orphan() -> None:
    with marked(orphan_processes.origin_value("other")) as pid:  # this very process is its master
        assert pid not in orphan_processes.find_orphans("mine")


def test_a_process_whose_master_is_gone_is_an_orphan_and_so_are_its_children(gone: int) -> None:
    own = ProcessOrigin.parse(orphan_processes.origin_value("other"))
    assert own is not None
    dead = own._replace(pid=gone)
    with marked(str(dead)) as pid:
        assert pid in orphan_processes.find_orphans("mine")
        assert pid not in orphan_processes.find_orphans("other"), (
            "our own host's are not left by a former one"
        )
    later = own._replace(start_ticks=own.start_ticks - 1)  # the number was given again
    with marked(str(later)) as pid:
        assert pid in orphan_processes.find_orphans("mine")


def test_a_host_of_another_pid_namespace_cannot_be_judged(gone: int) -> None:
    own = ProcessOrigin.parse(orphan_processes.origin_value("other"))
    assert own is not None
    with marked(str(own._replace(pid=gone, namespace=own.namespace + 1))) as pid:
        assert pid not in orphan_processes.find_orphans("mine")


def test_a_process_whose_environment_came_from_another_machine_is_left_alone(gone: int) -> None:
    """Slurm, mpirun and `ssh -o SendEnv` take the environment of a handler along."""
    mark = orphan_processes.origin_value("other")
    own = ProcessOrigin.parse(mark)
    assert own is not None
    here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert here in mark
    there = mark.replace(here, "11111111-2222-3333-4444-555555555555").replace(
        f"/{own.pid}/", f"/{gone}/"
    )  # a master of that number is not here
    with marked(there) as pid, marked(there.replace("11111111-2222-3333-4444-555555555555", here)) as ours:
        found = orphan_processes.find_orphans("mine")
        assert ours in found
        assert pid not in found


@pytest.mark.parametrize("refused", [False, True], ids=["ours to signal", "of another user"])
def test_a_master_that_proc_hides_is_not_gone(monkeypatch: pytest.MonkeyPatch, refused: bool) -> None:
    """`hidepid` hides the processes of other users; the kernel still says that there is one."""
    own = ProcessOrigin.parse(orphan_processes.origin_value("other"))
    assert own is not None
    monkeypatch.setattr(proc, "read_stat", lambda pid: None)
    if refused:

        def refuse(pid: int, number: int) -> None:
            raise PermissionError("another user's")

        monkeypatch.setattr(os, "kill", refuse)
    assert not own.is_master_gone()


@pytest.mark.parametrize(
    "value",
    ["", "x", "a/b/c/d", "uuid/1/2/boot", "uuid/1/2/3", "uuid/-1/2/3/boot", "uuid/1/2/3/4/5", "u/²/1/1/boot"],
)
def test_a_marker_that_is_none_says_nothing(value: str) -> None:
    assert ProcessOrigin.parse(value) is None
    with marked(value) as pid:
        assert psutil.pid_exists(pid)
        assert pid not in orphan_processes.find_orphans("mine")
