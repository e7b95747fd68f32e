"""The master about itself, under the names that every client library uses: `process_*`. From /proc."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable

_PAGE = os.sysconf("SC_PAGE_SIZE")
_booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _started() -> float:
    """Unix time: when the machine was started, and how long after that this process was."""
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    return _booted + ticks / os.sysconf("SC_CLK_TCK")


def _pages(at: int) -> float:
    with open("/proc/self/statm", "rb") as file:
        return float(int(file.read().split()[at]) * _PAGE)


def _most_descriptors() -> float:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else float(limit)


ITSELF: dict[str, Callable[[], float]] = {
    "process_cpu_seconds_total": time.process_time,
    "process_resident_memory_bytes": lambda: _pages(1),
    "process_virtual_memory_bytes": lambda: _pages(0),
    "process_start_time_seconds": _started,
    "process_open_fds": lambda: float(len(os.listdir("/proc/self/fd"))),
    "process_max_fds": _most_descriptors,
}
