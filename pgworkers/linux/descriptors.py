"""Our descriptors in a process that runs the user's code.

A handler may close any number (`os.closerange` closes hundreds), and what it opens next gets the lowest free one. A worker
that used a number without a check would write its frames into the handler's own socket. So its descriptors are

- out of reach: `move_to_high_number` moves them to numbers that open() does not return before a thousand others are
taken, and
- checked: a `OwnedDescriptor` knows its inode, and a number that means another file now is neither used nor closed.

faulthandler writes to a number from a signal handler, where nothing can be checked. The supervisor checks the number before
it asks for a dump, and the heartbeat checks it with each beat. In between the high number has to suffice.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from socket import socket

#: Numbers below this are enough to be out of reach; higher ones would make the kernel's table of this process larger.
MAX_DESCRIPTOR_NUMBER = 1024
#: How many numbers at the top of the table are for us.
RESERVED_DESCRIPTOR_COUNT = 16
_LOST_DESCRIPTOR_TEXT = "this descriptor was closed by other code, and its number may mean another file now"


def move_to_high_number(fd: int) -> int:
    """Move a descriptor out of reach; returns its new number, or the old one where there is no room."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = MAX_DESCRIPTOR_NUMBER if soft == resource.RLIM_INFINITY else min(soft, MAX_DESCRIPTOR_NUMBER)
    try:
        lifted = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(3, top - RESERVED_DESCRIPTOR_COUNT))
    except OSError:
        return fd
    os.close(fd)
    return lifted


class OwnedDescriptor:
    """A descriptor number, and the file that it must mean."""

    __slots__ = ("_identity", "fd")

    def __init__(self, fd: int) -> None:
        found = os.fstat(fd)
        self.fd = fd
        self._identity = found.st_ino, found.st_dev

    def is_still_ours(self) -> bool:
        return self.size() is not None

    def size(self) -> int | None:
        """Size of the file; None: the number means another file or none by now."""
        try:
            found = os.fstat(self.fd)
        except OSError:
            return None
        return found.st_size if (found.st_ino, found.st_dev) == self._identity else None

    def check(self) -> None:
        """Raise OSError (EBADF) if the number means another file or none by now."""
        if self.size() is None:
            raise OSError(errno.EBADF, _LOST_DESCRIPTOR_TEXT)

    def write(self, text: str) -> None:
        """If it is still ours; a text that cannot be written is dropped."""
        try:
            self.check()
            os.write(self.fd, text.encode("utf-8", "backslashreplace"))
        except OSError:
            pass

    def close(self) -> None:
        """Unless the number belongs to other code by now."""
        if self.size() is not None:
            os.close(self.fd)


class OwnedSocket:
    """A connected socket whose number is checked before each use."""

    __slots__ = ("_descriptor", "_socket")

    def __init__(self, sock: socket) -> None:
        self._socket = sock
        self._descriptor = OwnedDescriptor(sock.fileno())

    def fileno(self) -> int:
        return self._descriptor.fd

    def is_still_ours(self) -> bool:
        return self._descriptor.is_still_ours()

    def sendall(self, data: bytes) -> None:
        self._descriptor.check()
        self._socket.sendall(data)

    def send(self, data: bytes, flags: int) -> int:
        self._descriptor.check()
        return self._socket.send(data, flags)

    def recv(self, count: int) -> bytes:
        self._descriptor.check()
        return self._socket.recv(count)

    def close(self) -> None:
        """Unless the number belongs to other code by now."""
        self._socket.detach()
        self._descriptor.close()
