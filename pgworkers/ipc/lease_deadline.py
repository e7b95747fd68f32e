"""The time until which the leases of this host hold, on a page that its processes share.

The master extends it with each renewal. Supervisors and workers only read it: a worker compares it before each job
(`Attempt.run` in worker/attempt.py), a supervisor in its limits. So when a whole machine was stopped and goes on, a
worker knows at once that another host may have its next job by now.

Handlers have the page too, but cannot write it: it is sealed.

The page holds one aligned 64-bit number with one writer, in nanoseconds of CLOCK_BOOTTIME like those of the scoreboard. It
is 0 at first, and then the time that the database promised with the last renewal.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from pgworkers import clock

_PAGE_BYTES = mmap.PAGESIZE
_FUTURE_WRITE = 0x10  # F_SEAL_FUTURE_WRITE, Linux 5.1: only earlier mappings can write
_SEALS = _FUTURE_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class LeaseDeadline:
    """The reader's side. It takes over the descriptor."""

    __slots__ = ("_page",)

    def __init__(self, fd: int) -> None:
        self._page = memoryview(mmap.mmap(fd, _PAGE_BYTES, prot=mmap.PROT_READ)).cast("q")
        os.close(fd)

    @property
    def expires_at(self) -> int:
        return self._page[0]


class LeaseDeadlineWriter:
    """The master's side. `fd` is for the readers."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("pgworkers-lease-deadline", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, _PAGE_BYTES)
        self._page = memoryview(mmap.mmap(self.fd, _PAGE_BYTES)).cast("q")
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)

    def extend_to(self, expires_at: float) -> None:
        """Extend it to a later time, in seconds of CLOCK_BOOTTIME."""
        self._page[0] = max(self._page[0], int(expires_at * 1e9))

    def is_held(self) -> bool:
        return clock.boottime_ns() < self._page[0]
