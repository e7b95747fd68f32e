"""A page of shared memory for frames that a worker has not sent yet. It survives the worker.

What it buys: sending a frame wakes the master and costs more CPU than a very short job. So reports that need not arrive at
once wait on this page and are sent together. The plain version would be one send for each report. The page belongs to
neither process: when the worker is killed, its frames stay, and the master reads them whenever the worker is silent or dead.

There is one writer, one reader and no lock. A frame is written first. Then one word is written that holds the number of
bytes and their checksum. If the reader's copy does not match the word, it has nothing: the writer was at work, or the
processor shows its writes in another order. Those frames are sent, or are read the next time. Of a dead writer everything
has arrived. Frames that were read here may arrive again through the socket, so the reader must recognise them by their keys.
"""

from __future__ import annotations

import mmap
import os
import struct
from zlib import crc32

PAGE_BYTES = 4096
_HEADER = struct.Struct("=Q")  # number of bytes in the lower 16 bits, their checksum above
CAPACITY_BYTES = PAGE_BYTES - _HEADER.size


def create() -> int:
    """Create an empty page. The descriptor is for the reader and for the writer's `ReportPage`."""
    fd = os.memfd_create("pgworkers-report-page", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, PAGE_BYTES)
    except OSError:
        os.close(fd)
        raise
    return fd


def read(fd: int) -> bytes:
    """By the reader: the frames on the page. They may have been sent a moment ago."""
    (word,) = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
    count = word & 0xFFFF
    if not 0 < count <= CAPACITY_BYTES:
        return b""
    found = os.pread(fd, count, _HEADER.size)
    return found if crc32(found) == word >> 16 else b""


class ReportPage:
    """The writer's side. It takes over the descriptor."""

    __slots__ = ("_checksum", "_head", "_page", "used_bytes")

    def __init__(self, fd: int) -> None:
        page = memoryview(mmap.mmap(fd, PAGE_BYTES))
        os.close(fd)
        self._head = page[: _HEADER.size].cast("Q")
        self._page = page[_HEADER.size :]
        self._checksum = 0
        self.used_bytes = 0  # bytes

    def append(self, frame: bytes) -> bool:
        """False: there is no room for it."""
        begin = self.used_bytes
        end = begin + len(frame)
        if end > CAPACITY_BYTES:
            return False
        self._page[begin:end] = frame
        self._checksum = crc32(frame, self._checksum)
        self.used_bytes = end
        self._head[0] = end | self._checksum << 16
        return True

    def unsent(self) -> bytes:
        return bytes(self._page[: self.used_bytes])

    def clear(self) -> None:
        """Empty the page: its frames were sent."""
        self._head[0] = self._checksum = self.used_bytes = 0
