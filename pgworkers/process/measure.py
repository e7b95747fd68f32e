"""CPU and memory of processes, from /proc and getrusage."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from pgworkers.process import tree

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid: int) -> int:
    """Bytes in memory, shared pages counted in full; 0: no such process."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def proportional(pid: int) -> int:
    """Bytes in memory, shared pages divided by those who share them; falls back to `resident`."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resident(pid)


def over(pid: int, limit: int) -> int:
    """Bytes that a process and its descendants use if that is more than `limit`, else 0.

    The proportional size is the honest one but walks every page table, so the cheap upper bound is asked
    first.
    """
    members = tree.family(pid)
    if sum(map(resident, members)) <= limit:
        return 0
    used = sum(map(proportional, members))
    return used if used > limit else 0


class Meter:
    """CPU seconds and largest resident size of this process from `begin` to `end`, waited-for children included."""

    def __init__(self) -> None:
        try:
            self._reset = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            self._reset = -1  # not allowed: the peak is then that of the whole life
        self._cpu = 0.0
        self._children = 0

    @property
    def descriptor(self) -> int:
        return self._reset

    def begin(self) -> float:
        """Returns the CPU seconds used so far."""
        if self._reset >= 0:
            try:
                os.write(self._reset, b"5")  # the high-water mark begins anew
            except OSError:
                self._reset = -1
        own, waited = _usage()
        self._cpu = _cpu(own) + _cpu(waited)
        self._children = waited.ru_maxrss
        return self._cpu

    def end(self) -> tuple[float, int]:
        """CPU seconds since `begin`, and the peak in bytes."""
        own, waited = _usage()
        grown = waited.ru_maxrss > self._children  # the largest child ever waited for was one of this job
        peak = max(own.ru_maxrss, waited.ru_maxrss) if grown else own.ru_maxrss
        return _cpu(own) + _cpu(waited) - self._cpu, peak * 1024


def _usage() -> tuple[resource.struct_rusage, resource.struct_rusage]:
    return resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)


def _cpu(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime
