"""Processes as /proc shows them: state, children, CPU time, memory.

Read by hand for speed: limits and sweeps read them many times a second (see the package).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from time import process_time_ns
from typing import NamedTuple

#: Maximum number of processes that `process_with_descendants` returns.
MAX_COUNTED_PROCESSES = 10_000


class ProcessStat(NamedTuple):
    """The part of /proc/PID/stat that we use."""

    pid: int
    state: str  # R, S, D, T (stopped), Z (zombie) ...
    ppid: int
    process_group: int
    cpu_ticks: int  # user and system time of the process itself
    start_ticks: int  # ticks since boot: together with the pid the identity of a process
    thread_count: int


def read_file(path: str) -> bytes:
    """Read a file of /proc, with a third of the system calls that a Python file object needs."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while piece := os.read(fd, 1 << 16):
            data += piece
        return data
    finally:
        os.close(fd)


def read_stat(pid: int) -> ProcessStat | None:
    """None: there is no such process."""
    try:
        data = read_file(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # the name in parentheses may hold anything, also parentheses: cut at the last one
    fields = data[data.rindex(b")") + 2 :].split()
    return ProcessStat(
        pid=pid,
        state=fields[0].decode(),
        ppid=int(fields[1]),
        process_group=int(fields[2]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        start_ticks=int(fields[19]),
        thread_count=int(fields[17]),
    )


def list_pids() -> list[int]:
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
                text = read_file(f"/proc/{pid}/task/{task}/children")
            except (FileNotFoundError, ProcessLookupError):
                if os.path.exists(f"/proc/{pid}/task/{task}"):
                    return _children_by_scan(pid)  # a kernel without CONFIG_PROC_CHILDREN
                continue  # the thread ended
            found += map(int, text.split())
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # gone, or hidden from us (`hidepid`)
        return []
    return found


def children_of_this_thread() -> list[int]:
    """Children of the calling thread: in a process with one thread all of them, by one system call less."""
    try:
        return [int(pid) for pid in read_file("/proc/thread-self/children").split()]
    except (FileNotFoundError, PermissionError):
        return children(os.getpid())


def _children_by_scan(pid: int) -> list[int]:
    stats = (read_stat(other) for other in list_pids())
    return [s.pid for s in stats if s is not None and s.ppid == pid]


def process_with_descendants(pid: int, limit: int = MAX_COUNTED_PROCESSES) -> list[int]:
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
    one = read_stat(pid)
    return one is None or (one.state in "ZXx" and one.thread_count <= 1)


def reap(pid: int) -> bool:
    """True: the child is dead and reaped, or there is no such child."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def pids_with_variable(variable: str, prefix: str, among: Iterable[int] | None = None) -> list[int]:
    """Processes whose environment, as it was at exec, holds `variable` with a value that begins with `prefix`."""
    wanted = f"{variable}={prefix}".encode()
    return [pid for pid in (list_pids() if among is None else among) if _has_variable(pid, wanted)]


def _has_variable(pid: int, wanted: bytes) -> bool:
    try:
        environ = read_file(f"/proc/{pid}/environ")
    except OSError:
        return False
    return environ.startswith(wanted) or b"\0" + wanted in environ


def describe_children(spared: Collection[int], limit: int = 20) -> list[str]:
    """Children of this process that are not spared, for people: `ffmpeg (pid 812)`. Zombies have a name, too."""
    found = [child for child in children(os.getpid()) if child not in spared]
    names = [f"{_name(child)} (pid {child})" for child in found[:limit]]
    return names if len(found) <= limit else [*names, f"{len(found) - limit} more"]


def _name(pid: int) -> str:
    try:
        return read_file(f"/proc/{pid}/comm").decode("utf-8", "replace").strip()
    except OSError:
        return "?"


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Bytes in memory, shared pages counted in full; 0: no such process."""
    try:
        return int(read_file(f"/proc/{pid}/statm").split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def proportional_bytes(pid: int) -> int:
    """Bytes in memory, shared pages divided by the processes that share them; falls back to `resident_bytes`."""
    try:
        for line in read_file(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resident_bytes(pid)


def memory_over_limit(pid: int, limit: int) -> int:
    """Bytes that a process and its descendants use if that is more than `limit`, else 0.

    The proportional size is the honest one but walks every page table, so the cheap upper bound is asked
    first.
    """
    members = process_with_descendants(pid)
    if sum(map(resident_bytes, members)) <= limit:
        return 0
    used = sum(map(proportional_bytes, members))
    return used if used > limit else 0


def own_thread_ids() -> list[int]:
    """The kernel's numbers of all threads of this process but the main one."""
    return [tid for tid in map(int, os.listdir("/proc/self/task")) if tid != os.getpid()]


def own_cpu_ns_without(spared: list[int]) -> int:
    """Nanoseconds that this process has used, without what these threads of it used while they lived."""
    used = process_time_ns()
    for tid in spared:
        try:
            data = read_file(f"/proc/self/task/{tid}/stat")
        except OSError:
            continue
        fields = data[data.rindex(b")") + 2 :].split()
        used -= (int(fields[11]) + int(fields[12])) * 1_000_000_000 // CLOCK_TICKS_PER_SECOND
    return used
