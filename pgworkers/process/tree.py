"""Who is whose child, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import NamedTuple

#: The most processes that one look at a family counts.
FAMILY_LIMIT = 10_000


class Stat(NamedTuple):
    """The part of /proc/PID/stat that we use."""

    pid: int
    state: str  # R, S, D, T (stopped), Z (zombie) ...
    ppid: int
    group: int
    ticks: int  # user and system time of the process itself
    started: int  # ticks since boot: together with the pid the identity of a process
    threads: int


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
        int(fields[17]),
    )


def pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def children(pid: int) -> list[int]:
    """Children of a process, zombies included. None of a process that /proc hides from us.

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
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # gone, or hidden from us (`hidepid`)
        return []
    return found


def children_of_thread() -> list[int]:
    """Children of the calling thread: in a process that has no other, one look instead of two."""
    try:
        return [int(pid) for pid in read("/proc/thread-self/children").split()]
    except (FileNotFoundError, PermissionError):
        return children(os.getpid())


def _children_by_scan(pid: int) -> list[int]:
    stats = (stat(other) for other in pids())
    return [s.pid for s in stats if s is not None and s.ppid == pid]


def family(pid: int, limit: int = FAMILY_LIMIT) -> list[int]:
    """A process and its descendants, now. Of more than `limit` the rest is left out: each costs several system calls.

    Zombies are left out, so that a crowd of them hides no living process.
    """
    found, seen = [pid], {pid}
    for member in found:
        for child in children(member):
            if len(found) >= limit:
                return found
            if child not in seen:
                seen.add(child)
                if not _is_dead(child):
                    found.append(child)
    return found


def _is_dead(pid: int) -> bool:
    """True if no thread of it lives. A process whose main thread alone has ended is shown as a zombie, too."""
    one = stat(pid)
    return one is None or (one.state in "ZXx" and one.threads <= 1)


def reap(pid: int) -> bool:
    """True: the child is dead and reaped (or was nobody's)."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def marked(variable: str, prefix: str, among: Iterable[int] | None = None) -> list[int]:
    """Processes whose environment, as it was at exec, holds `variable` with a value that begins with `prefix`."""
    wanted = f"{variable}={prefix}".encode()
    return [pid for pid in (pids() if among is None else among) if _has_marker(pid, wanted)]


def _has_marker(pid: int, wanted: bytes) -> bool:
    try:
        environ = read(f"/proc/{pid}/environ")
    except OSError:
        return False
    return environ.startswith(wanted) or b"\0" + wanted in environ


def names_of_children(spared: Collection[int], most: int = 20) -> list[str]:
    """Children of this process that are not spared, for people: `ffmpeg (pid 812)`. Zombies have a name, too."""
    found = [child for child in children(os.getpid()) if child not in spared]
    names = [f"{_name(child)} (pid {child})" for child in found[:most]]
    return names if len(found) <= most else [*names, f"{len(found) - most} more"]


def _name(pid: int) -> str:
    try:
        return read(f"/proc/{pid}/comm").decode("utf-8", "replace").strip()
    except OSError:
        return "?"
