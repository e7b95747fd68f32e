"""What a job uses of its worker process: CPU time and peak memory. Also gives freed memory back to the kernel."""

from __future__ import annotations

import ctypes
import gc
import os
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from time import process_time_ns
from typing import Any

from pgworkers.linux.descriptors import OwnedDescriptor, move_to_high_number

PEAK_RESET_INTERVAL_NS = 10_000_000  #: nanoseconds


class JobMeter:
    """CPU time and largest resident size of this process from `start` to the end of a job, waited-for children included.

    The end of a job is the beginning of the next one that follows at once. The kernel's high-water mark is set back when a
    job moved it, and every PEAK_RESET_INTERVAL_NS otherwise: of very short jobs in a row, one may be told the size that
    the process had a moment before it.

    Of the shortest nothing is asked (`guess`): to ask takes as long as they do. Their CPU time is the time they took, and
    their peak that of the job before. What they really used is divided by durations among them and the next job that is
    measured, which so is told its share, whatever the process did between them.

    Clocks are in nanoseconds, answers in microseconds.
    """

    def __init__(self) -> None:
        self._clear_refs: OwnedDescriptor | None = None  # the peak is that of the whole life
        self._cpu = 0
        self._guessed = 0  # what jobs took that were not measured since
        self._last = 0  # what the kernel said last; kB
        self._peak = -1  # of this process, as it was when the mark was set back; kB
        self._children = 0
        self.growth_bytes = 0  # bytes by which the last job needed more than there was before it
        self._next_reset = 0

    def open(self) -> None:
        """By the process that is measured, unless there is one job in its life and nothing before it."""
        try:
            self._clear_refs = OwnedDescriptor(
                move_to_high_number(os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC))
            )
        except OSError:
            pass  # not allowed

    def start(self, now: int, fresh: bool) -> int:
        """Returns the CPU time used so far. `fresh`: time has passed since the last end."""
        if fresh or self._peak < 0 or now >= self._next_reset:
            self._reset_peak(now)
        return (self._cpu + self._guessed) // 1000

    def guess(self, took: int) -> tuple[int, int]:
        """CPU time and peak in bytes of a job that was too short for children, and to move the peak much."""
        self._guessed += took
        return took // 1000, self._last * 1024

    def stop(self, took: int) -> tuple[int, int]:
        """CPU time since `start`, and the peak in bytes."""
        own, waited = getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN)
        peak = self._last = own.ru_maxrss
        cpu = process_time_ns() + int((waited.ru_utime + waited.ru_stime) * 1e9)
        used, self._cpu = cpu - self._cpu, cpu
        if self._guessed:
            used = used * took // (took + self._guessed)
            self._guessed = 0
        self.growth_bytes = (peak - self._peak) * 1024
        if peak > self._peak:
            self._peak = -1
        if waited.ru_maxrss > self._children:  # the largest child ever waited for was one of this job
            self._children = waited.ru_maxrss
            peak = max(peak, waited.ru_maxrss)
        return used // 1000, peak * 1024

    def _reset_peak(self, now: int) -> None:
        if self._clear_refs is not None:
            try:
                self._clear_refs.check()
                os.write(self._clear_refs.fd, b"5")  # resets the high-water mark
            except OSError:
                self._clear_refs = None
        own, waited = getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN)
        self._cpu = process_time_ns() + int((waited.ru_utime + waited.ru_stime) * 1e9)
        self._guessed = 0
        self._peak = self._last = own.ru_maxrss
        self._children = waited.ru_maxrss
        self._next_reset = now + PEAK_RESET_INTERVAL_NS


_libc: Any = ctypes.CDLL(None)


def release_memory() -> None:
    """What nobody holds any more: first what only holds itself, then what the C library keeps for later."""
    gc.collect()
    if hasattr(_libc, "malloc_trim"):  # not in every C library
        _libc.malloc_trim(0)
