"""A shelf: frames that a process has not sent yet, where its death does not take them along.

To send a frame wakes its reader, and costs more than a very short job. So what need not be heard at once is laid on a page
of memory that writer and reader share, and sent later, in one piece. The page belongs to neither process: whoever kills the
writer leaves everything that lies there, and the reader looks at it whenever the writer is silent or dead.

One writer, one reader, no lock. A frame is written first and counted then; after what lay there was sent, the count becomes
0 and the edition grows. A reader whose copy was overtaken by the next edition has nothing: those frames were sent.
Frames that were read here may come again through the socket, and the reader must know them by their keys.
"""

from __future__ import annotations

import mmap
import os
import struct

SIZE = 4096
_HEAD = struct.Struct("=qq")  # edition, bytes that lie behind this head
_EDITION, _COUNT = 0, 1
ROOM = SIZE - _HEAD.size


def make() -> int:
    """An empty one, as a descriptor: for the reader, and for the `Shelf` of the writer."""
    fd = os.memfd_create("pgworkers-shelf", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, SIZE)
    except OSError:
        os.close(fd)
        raise
    return fd


def read(fd: int) -> bytes:
    """By the reader: what lies there, and has perhaps been sent a moment ago."""
    edition, count = _HEAD.unpack(os.pread(fd, _HEAD.size, 0))
    if not 0 < count <= ROOM:
        return b""
    found = os.pread(fd, count, _HEAD.size)
    return found if _HEAD.unpack(os.pread(fd, _HEAD.size, 0))[_EDITION] == edition else b""


class Shelf:
    """The writer's side; the descriptor is its own from now on."""

    __slots__ = ("_head", "_page", "used")

    def __init__(self, fd: int) -> None:
        page = memoryview(mmap.mmap(fd, SIZE))
        os.close(fd)
        self._head = page[: _HEAD.size].cast("q")
        self._page = page[_HEAD.size :]
        self.used = 0  # bytes

    def lay(self, frame: bytes) -> bool:
        """False: there is no room for it."""
        begin = self.used
        end = begin + len(frame)
        if end > ROOM:
            return False
        self._page[begin:end] = frame
        self._head[_COUNT] = self.used = end
        return True

    def lying(self) -> bytes:
        return bytes(self._page[: self.used])

    def clear(self) -> None:
        """It was sent."""
        self._head[_COUNT] = self.used = 0
        self._head[_EDITION] += 1
