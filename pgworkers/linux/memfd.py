"""Files without a name that several processes append to and one of them reads.

Two rules make locks unnecessary: every process writes with O_APPEND, and none ever truncates. So an offset stays valid.
Memory is released by punching a hole into what is not needed any more: the size keeps growing, the pages do not.
"""

from __future__ import annotations

import ctypes
import fcntl
import os

_KEEP_SIZE = 0x01
_PUNCH_HOLE = 0x02
_PAGE_BYTES = 4096

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def create(name: str) -> int:
    """A new file, close-on-exec, every write appended at its end."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    return fd


def size(fd: int) -> int:
    """Size of the file, by seeking: cheaper than fstat(), and harmless because every process appends."""
    return os.lseek(fd, 0, os.SEEK_END)


def read_range(fd: int, start: int, end: int, limit: int) -> bytes:
    """The last `limit` bytes of what was written from `start` to `end`."""
    start = max(start, end - limit, 0)
    parts: list[bytes] = []
    while start < end:
        part = os.pread(fd, min(end - start, 1 << 20), start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def release_pages(fd: int, start: int, end: int) -> int:
    """Give back the memory of whole pages between `start` and `end`; returns where the hole ends."""
    begin = start - start % _PAGE_BYTES
    stop = end - end % _PAGE_BYTES
    if stop <= begin:
        return start
    if _libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, begin, stop - begin) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return stop
