"""Processes that outlived their supervisor, or a former master of this machine (`kill_former_hosts`).

The master is the subreaper of its tree, so it inherits those of a dead supervisor: it kills and reaps them.

Where the master is PID 1 it also inherits strangers, of `docker exec` for instance: those are reaped, never killed.

A variable in the environment of everything that a master starts says which master it belongs to. It names the host's id, the
master's pid, start time and pid namespace, and the boot of its machine. With those, another master on the machine knows
whether that master is gone: a pid alone may have been given to another process. A pid of another namespace (a container that
is visible from here) or of another machine (Slurm, mpirun and ssh can take an environment along) means nothing here.

Linux shows the environment as it was at exec. So a process that forked has the variable of its parent, and one that was
started with an empty environment has none: it is found as a descendant.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import NamedTuple

from pgworkers.clock import monotonic
from pgworkers.linux import proc, signals
from pgworkers.linux.environment import ORIGIN_VARIABLE
from pgworkers.linux.sweep import ProcessSweep
from pgworkers.supervisor.describe import FORK_IN_PROGRESS, FORK_LOCK

ORPHAN_POLL_SECONDS = 0.01
#: How long one call of `reap` may keep the loop from its other work.
MAX_REAP_SECONDS = 0.02
#: How long killed orphans of a dead supervisor are waited for.
MAX_ORPHAN_WAIT_SECONDS = 5.0
#: How long a start waits for processes of former hosts to be gone. One that SIGKILL does not end hangs in the kernel.
MAX_FORMER_HOST_WAIT_SECONDS = 10.0


async def kill_former_hosts(host_id: str) -> tuple[int, int]:
    """Kill what masters that are gone left on this machine.

    Returns how many were killed, and how many are still there.

    A worker whose handler cleared its death signal and holds the GIL outlives a master and a supervisor that were killed
    at the same moment.
    """
    killed: set[tuple[int, int]] = set()
    give_up = monotonic() + MAX_FORMER_HOST_WAIT_SECONDS
    while found := find_orphans(host_id):
        for pid, started in found.items():
            if signals.kill_by_start_time(pid, started):
                killed.add((pid, started))
        if monotonic() > give_up:
            break
        await asyncio.sleep(ORPHAN_POLL_SECONDS)
    return len(killed), len(found)


async def kill_strays(host_id: str, spared: Callable[[], set[int]]) -> int:
    """Kill every child that is not spared, and theirs, until none is left.

    How many were killed.

    Processes that SIGKILL does not end hang in the kernel and execute nothing more: they are not waited for.
    """
    killed = 0
    strays = ProcessSweep()
    give_up = monotonic() + MAX_ORPHAN_WAIT_SECONDS
    while True:
        if not FORK_LOCK.acquire(blocking=False):
            await asyncio.sleep(ORPHAN_POLL_SECONDS)
            continue
        try:
            keep = spared() | (_unrelated_children(host_id) if os.getpid() == 1 else set())
            now_killed, left = strays.step(keep)
        finally:
            FORK_LOCK.release()
        killed += now_killed
        if not left or (strays.is_waiting_for_kernel and monotonic() > give_up):
            return killed
        await asyncio.sleep(ORPHAN_POLL_SECONDS)


def reap_strays(spared: set[int]) -> None:
    """Reap the zombies that nothing else waits for.

    After MAX_REAP_SECONDS the rest is left to the next call.
    """
    if FORK_IN_PROGRESS in spared:
        return
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return  # there is none
    except ChildProcessError:
        return
    until = monotonic() + MAX_REAP_SECONDS
    for child in proc.children(os.getpid()):
        if child not in spared:
            proc.reap(child)
            if monotonic() > until:
                return


def _unrelated_children(host_id: str) -> set[int]:
    """Children of PID 1 that are not of this tree."""
    children = proc.children(os.getpid())
    return set(children).difference(proc.pids_with_variable(ORIGIN_VARIABLE, f"{host_id}/", among=children))


_ORIGIN_PREFIX = f"{ORIGIN_VARIABLE}=".encode()
_UNKNOWN_BOOT = "unknown"


class ProcessOrigin(NamedTuple):
    """A master that starts processes, or once did."""

    host_id: str
    pid: int
    start_ticks: int  # ticks since the machine's boot
    namespace: int  # inode of its pid namespace
    boot_id: str  # id that the kernel of its machine drew when it booted

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> ProcessOrigin | None:
        """None if no master of pgworkers wrote it."""
        parts = text.split("/")
        if len(parts) != 5:
            return None
        host_id, *numbers, boot = parts
        if not all(part.isascii() and part.isdigit() and len(part) < 20 for part in numbers):
            return None
        pid, started, namespace = map(int, numbers)
        return cls(host_id, pid, started, namespace, boot)

    def is_of_this_kernel(self) -> bool:
        """True if its pids are of this machine, since its last boot, and of this pid namespace."""
        boot = _boot_id()
        return self.boot_id == boot != _UNKNOWN_BOOT and self.namespace == _pid_namespace()

    def is_master_gone(self) -> bool:
        """True if the master is dead. Call it only if `is_of_this_kernel()`."""
        found = proc.read_stat(self.pid)
        if found is None:
            return not _process_exists(self.pid)  # /proc may hide a master of another user (`hidepid`)
        return found.start_ticks != self.start_ticks or found.state in "ZX"


def origin_value(host_id: str) -> str:
    """The value of ORIGIN_VARIABLE for the children of this process, the master of the host `host_id`."""
    own = proc.read_stat(os.getpid())
    return str(
        ProcessOrigin(
            host_id, os.getpid(), own.start_ticks if own is not None else 0, _pid_namespace(), _boot_id()
        )
    )


def find_orphans(host_id: str) -> dict[int, int]:
    """Processes whose master is dead, and their descendants: pid -> start time.

    Those of the host `host_id` are left out.
    """
    found: dict[int, int] = {}
    for pid in proc.list_pids():
        origin = _origin_of(pid)
        if (
            origin is None
            or origin.host_id == host_id
            or not origin.is_of_this_kernel()
            or not origin.is_master_gone()
        ):
            continue
        for member in proc.process_with_descendants(pid):
            seen = proc.read_stat(member)
            if seen is not None and seen.state not in "ZX":
                found[member] = seen.start_ticks
    found.pop(os.getpid(), None)
    return found


def _origin_of(pid: int) -> ProcessOrigin | None:
    """The origin of a process.

    None if it has none, or if it belongs to another user, so that we may not read it.
    """
    try:
        variables = proc.read_file(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return None
    value = next((one[len(_ORIGIN_PREFIX) :] for one in variables if one.startswith(_ORIGIN_PREFIX)), b"")
    return ProcessOrigin.parse(value.decode("utf-8", "replace"))


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _boot_id() -> str:
    try:
        return (
            proc.read_file("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()
            or _UNKNOWN_BOOT
        )
    except OSError:
        return _UNKNOWN_BOOT


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
