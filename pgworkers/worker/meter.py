"""What a job uses of its worker process: CPU time and peak memory.

Also gives freed memory back to the kernel.
"""

from __future__ import annotations

import ctypes
import gc
import os
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage, struct_rusage
from typing import Any

import msgspec

from pgworkers.clock import boottime_ns
from pgworkers.linux.descriptors import OwnedDescriptor, move_to_high_number

#: Time after which the kernel's high-water mark is set back although no job moved it.
PEAK_RESET_INTERVAL_NS = 10_000_000
#: A job that takes less time cannot have started a process: fork() alone takes longer.
MIN_FORK_NS = 100_000


class Usage(msgspec.Struct, gc=False):
    """What a job used. Times are microseconds."""

    wall: int
    cpu: int  # waited-for children included
    peak_rss: int  # bytes


class JobMeter:
    """CPU time and largest resident size of this process during a job, waited-for children included.

    The end of a job is the start of the next one that follows at once. The kernel's high-water mark is set back when a job
    moved it, and every PEAK_RESET_INTERVAL_NS otherwise. So of very short jobs in a row, one may get the size that the
    process had shortly before it.
    """

    def __init__(self) -> None:
        self._clear_refs: OwnedDescriptor | None = None  # None: the peak is that of the whole process
        self._cpu = 0
        self._peak = -1  # kB, when the mark was set back; -1: set it back before the next job
        self._children = getrusage(RUSAGE_CHILDREN)  # after the last job that may have had children
        self._children_peak = 0
        self.growth_bytes = 0  # by which the last job needed more than there was before it
        self._next_reset = 0
        self._started_at = 0

    def open(self) -> None:
        """Open the file that resets the high-water mark.

        Not needed in a process that runs one job and no start hooks.
        """
        try:
            self._clear_refs = OwnedDescriptor(
                move_to_high_number(os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC))
            )
        except OSError:
            pass  # not allowed

    def start(self, now: int, has_waited: bool) -> int:
        """Returns the CPU microseconds used so far.

        `has_waited`: time has passed since the last job ended.
        """
        self._started_at = now
        if has_waited or self._peak < 0 or now >= self._next_reset:
            self._reset_peak(now)
        return self._cpu

    def stop(self) -> Usage:
        """What was used since `start`."""
        wall = boottime_ns() - self._started_at
        if wall >= MIN_FORK_NS:
            self._children = getrusage(RUSAGE_CHILDREN)
        own, children = getrusage(RUSAGE_SELF), self._children
        cpu = _cpu_microseconds(own, children)
        used, self._cpu = cpu - self._cpu, cpu
        peak = own.ru_maxrss
        self.growth_bytes = (peak - self._peak) * 1024
        if peak > self._peak:
            self._peak = -1
        if children.ru_maxrss > self._children_peak:  # the largest child so far was one of this job
            self._children_peak = children.ru_maxrss
            peak = max(peak, children.ru_maxrss)
        return Usage(wall=wall // 1000, cpu=used, peak_rss=peak * 1024)

    def _reset_peak(self, now: int) -> None:
        if self._clear_refs is not None:
            try:
                self._clear_refs.check()
                os.write(self._clear_refs.fd, b"5")  # resets the high-water mark
            except OSError:
                self._clear_refs = None
        own, self._children = getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN)
        self._cpu = _cpu_microseconds(own, self._children)
        self._peak = own.ru_maxrss
        self._children_peak = self._children.ru_maxrss
        self._next_reset = now + PEAK_RESET_INTERVAL_NS


def _cpu_microseconds(own: struct_rusage, children: struct_rusage) -> int:
    return round((own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime) * 1e6)


_libc: Any = ctypes.CDLL(None)


def release_memory() -> None:
    """Give freed memory back to the kernel: cycles first, then what the C library keeps for later."""
    gc.collect()
    if hasattr(_libc, "malloc_trim"):  # not in every C library
        _libc.malloc_trim(0)
