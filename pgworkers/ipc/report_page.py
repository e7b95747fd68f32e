"""A shelf: frames that a process has not sent yet, where its death does not take them along.

To send a frame wakes its reader, and costs more than a very short job. So what need not be heard at once is laid on a page
of memory that writer and reader share, and sent later, in one piece. The page belongs to neither process: whoever kills the
writer leaves everything that lies there, and the reader looks at it whenever the writer is silent or dead.

One writer, one reader, no lock. A frame is written first; then one word says how many bytes lie there and what their
checksum is. A reader whose copy does not fit the word has nothing: the writer was at work (or its processor lets others see
its writes in another order), and what lay there was sent or is seen by the next look. Of a dead writer all has arrived.
Frames that were read here may come again through the socket, and the reader must know them by their keys.
"""

from __future__ import annotations

import mmap
import os
import struct
from zlib import crc32

PAGE_BYTES = 4096
_HEAD = struct.Struct("=Q")  # the word: bytes that lie behind it, and above those 16 bits their checksum
CAPACITY_BYTES = PAGE_BYTES - _HEAD.size


def create() -> int:
    """An empty one, as a descriptor: for the reader, and for the `ReportPage` of the writer."""
    fd = os.memfd_create("pgworkers-report-page", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, PAGE_BYTES)
    except OSError:
        os.close(fd)
        raise
    return fd


def read(fd: int) -> bytes:
    """By the reader: what lies there, and has perhaps been sent a moment ago."""
    (word,) = _HEAD.unpack(os.pread(fd, _HEAD.size, 0))
    count = word & 0xFFFF
    if not 0 < count <= CAPACITY_BYTES:
        return b""
    found = os.pread(fd, count, _HEAD.size)
    return found if crc32(found) == word >> 16 else b""


class ReportPage:
    """The writer's side; the descriptor is its own from now on."""

    __slots__ = ("_checksum", "_head", "_page", "used_bytes")

    def __init__(self, fd: int) -> None:
        page = memoryview(mmap.mmap(fd, PAGE_BYTES))
        os.close(fd)
        self._head = page[: _HEAD.size].cast("Q")
        self._page = page[_HEAD.size :]
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
        """It was sent."""
        self._head[0] = self._checksum = self.used_bytes = 0
