"""Which master a process belongs to: a variable in the environment of all that a master starts.

It names the host's id, the master's pid, start time and pid namespace, and the boot of its machine. With those, another
master on the machine knows whether that master is gone: a pid alone may have been given to another process. A pid of another
namespace (a container that is visible from here) or of another machine (Slurm, mpirun and ssh can take an environment along)
means nothing here.

Linux shows the environment as it was at exec. So a process that forked has the variable of its parent, and one that was
started with an empty environment has none: it is found as a descendant.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from pgworkers.process import tree

VARIABLE = "PGWORKERS_TREE"
_PREFIX = f"{VARIABLE}=".encode()
_UNKNOWN_BOOT = "unknown"


class Origin(NamedTuple):
    """A master that starts processes, or once did."""

    host: str
    pid: int
    started: int  # ticks since the machine's boot
    namespace: int  # inode of its pid namespace
    boot: str  # id that the kernel of its machine drew when it booted

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Origin | None:
        """None: no master of ours wrote it."""
        parts = text.split("/")
        if len(parts) != 5:
            return None
        host, *numbers, boot = parts
        if not all(part.isascii() and part.isdigit() and len(part) < 20 for part in numbers):
            return None
        pid, started, namespace = map(int, numbers)
        return cls(host, pid, started, namespace, boot)

    def is_of_this_kernel(self) -> bool:
        """Do its pids mean the processes that we see?"""
        boot = _boot()
        return self.boot == boot != _UNKNOWN_BOOT and self.namespace == _namespace()

    def is_gone(self) -> bool:
        """Is the master dead? Only to be asked of one of our own machine and pid namespace."""
        found = tree.stat(self.pid)
        if found is None:
            return not _exists(self.pid)  # /proc may hide a master of another user (`hidepid`)
        return found.started != self.started or found.state in "ZX"


def mark(host: str) -> str:
    """The value of VARIABLE for the children of this process, the master of `host`."""
    own = tree.stat(os.getpid())
    return str(Origin(host, os.getpid(), own.started if own is not None else 0, _namespace(), _boot()))


def orphans(host: str) -> dict[int, int]:
    """Processes whose master is dead, and their descendants: pid -> start time. Those marked with `host` are left out."""
    found: dict[int, int] = {}
    for pid in tree.pids():
        origin = _of(pid)
        if origin is None or origin.host == host or not origin.is_of_this_kernel() or not origin.is_gone():
            continue
        for member in tree.family(pid):
            seen = tree.stat(member)
            if seen is not None and seen.state not in "ZX":
                found[member] = seen.started
    found.pop(os.getpid(), None)
    return found


def _of(pid: int) -> Origin | None:
    """None as well if we may not look: its user is another one."""
    try:
        variables = tree.read(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return None
    value = next((one[len(_PREFIX) :] for one in variables if one.startswith(_PREFIX)), b"")
    return Origin.parse(value.decode("utf-8", "replace"))


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _boot() -> str:
    try:
        return (
            tree.read("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip() or _UNKNOWN_BOOT
        )
    except OSError:
        return _UNKNOWN_BOOT


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
