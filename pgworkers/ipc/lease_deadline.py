"""The term: until when the leases of this host hold, on a page that its processes share.

The master moves it on with each renewal; supervisors and workers only read it. So a worker that comes to itself after
its whole machine stood still knows, before anybody could tell it, that its next job may be somebody else's by now.

A handler has the page too, and cannot write it: it is sealed.

One aligned 64-bit number with one writer, in nanoseconds of CLOCK_BOOTTIME, like those of the scoreboard. It only ever says
what the database has promised: 0 at first, and what was promised last when nobody moves it any more.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from pgworkers import clock

_SIZE = mmap.PAGESIZE
_FUTURE_WRITE = 0x10  # F_SEAL_FUTURE_WRITE, Linux 5.1: only who has mapped the page by now can write it
_SEALS = _FUTURE_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class LeaseDeadline:
    """The reader's side; the descriptor is its own from now on."""

    __slots__ = ("_page",)

    def __init__(self, fd: int) -> None:
        self._page = memoryview(mmap.mmap(fd, _SIZE, prot=mmap.PROT_READ)).cast("q")
        os.close(fd)

    @property
    def expires_at(self) -> int:
        return self._page[0]


class LeaseDeadlineWriter:
    """The master's side. `fd` is for those who will read it."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("pgworkers-lease-deadline", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, _SIZE)
        self._page = memoryview(mmap.mmap(self.fd, _SIZE)).cast("q")
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)

    def extend_to(self, expires_at: float) -> None:
        """On to a later time, in seconds of CLOCK_BOOTTIME."""
        self._page[0] = max(self._page[0], int(expires_at * 1e9))

    def is_held(self) -> bool:
        return clock.boottime_ns() < self._page[0]
