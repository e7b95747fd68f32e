"""Who is whose child, read from /proc."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from typing import NamedTuple

#: When each child started that was sent SIGKILL and is not reaped yet: each is counted once.
_killed: dict[int, int] = {}


class Stat(NamedTuple):
    """The part of /proc/PID/stat that we use."""

    pid: int
    state: str  # R, S, D, T (stopped), Z (zombie) ...
    ppid: int
    group: int
    ticks: int  # user and system time of the process itself
    started: int  # ticks since boot: together with the pid the identity of a process


def read(path: str) -> bytes:
    """A file of /proc. They are read again and again: opened as a Python file each costs three times the system calls."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while piece := os.read(fd, 1 << 16):
            data += piece
        return data
    finally:
        os.close(fd)


def stat(pid: int) -> Stat | None:
    """None: there is no such process."""
    try:
        data = read(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # the name in parentheses may hold anything, also parentheses: cut at the last one
    fields = data[data.rindex(b")") + 2 :].split()
    return Stat(
        pid,
        fields[0].decode(),
        int(fields[1]),
        int(fields[2]),
        int(fields[11]) + int(fields[12]),
        int(fields[19]),
    )


def pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def children(pid: int) -> list[int]:
    """Children of a process, zombies included.

    For the calling process the kernel's list is exact: entries leave it only by our own wait, new ones come
    at its end. For another process it is a snapshot that may miss one that a concurrent exit moved.
    """
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            try:
                text = read(f"/proc/{pid}/task/{task}/children")
            except (FileNotFoundError, ProcessLookupError):
                if os.path.exists(f"/proc/{pid}/task/{task}"):
                    return _children_by_scan(pid)  # a kernel without CONFIG_PROC_CHILDREN
                continue  # the thread ended
            found += map(int, text.split())
    except (FileNotFoundError, ProcessLookupError):
        return []
    return found


def children_of_thread() -> list[int]:
    """Children of the calling thread: in a process that has no other, one look instead of two."""
    try:
        return [int(pid) for pid in read("/proc/thread-self/children").split()]
    except FileNotFoundError:
        return children(os.getpid())


def _children_by_scan(pid: int) -> list[int]:
    stats = (stat(other) for other in pids())
    return [s.pid for s in stats if s is not None and s.ppid == pid]


def family(pid: int) -> list[int]:
    """A process and all its descendants, now."""
    found = [pid]
    for member in found:
        found += (child for child in children(member) if child not in found)
    return found


def kill_strays(
    spared: set[int], dead_groups: Collection[int] = (), *, alone: bool = False
) -> tuple[int, int]:
    """SIGKILL every child of this process that is not spared, and reap those that are dead.

    Returns (killed now, found). When a stray is dead its own children become ours, so only a call that
    found nothing says that nothing is left: repeat until then. Members of `dead_groups`, whose group was
    killed before, are not counted as killed. Only direct children are signalled: nobody else can have their
    pid while we have not reaped them. `alone`: this process has one thread.
    """
    killed = found = 0
    for child in children_of_thread() if alone else children(os.getpid()):
        if child in spared:
            continue
        found += 1
        if reap(child):
            _killed.pop(child, None)
            continue
        seen = stat(child)
        if seen is None or seen.state == "Z" or _killed.get(child) == seen.started:
            continue
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            continue
        _killed[child] = seen.started
        killed += seen.group not in dead_groups
    return killed, found


def reap(pid: int) -> bool:
    """True: the child is dead and reaped (or was nobody's)."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def marked(variable: str, prefix: str) -> list[int]:
    """Processes whose environment, as it was at exec, holds `variable` with a value that begins with `prefix`."""
    wanted = f"{variable}={prefix}".encode()
    found = []
    for pid in pids():
        if _has_marker(pid, wanted):
            found.append(pid)
    return found


def _has_marker(pid: int, wanted: bytes) -> bool:
    try:
        environ = read(f"/proc/{pid}/environ")
    except OSError:
        return False
    return environ.startswith(wanted) or b"\0" + wanted in environ
