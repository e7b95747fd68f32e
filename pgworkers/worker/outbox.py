"""Frames to the master, from the main thread and from the heartbeat thread.

What can wait lies on the shelf until something is sent: the kernel keeps it if we are killed.

The main thread may wait for the master; the heartbeat never does: a beat that waits is no beat. What the
socket did not take of a frame is kept and goes first next time.
"""

from __future__ import annotations

import threading
from _socket import MSG_DONTWAIT, MSG_NOSIGNAL

from pgworkers.process.descriptors import Channel
from pgworkers.process.shelf import Shelf


class Outbox:
    sock: Channel  # from its worker's birth on

    def __init__(self) -> None:
        self.shelf: Shelf | None = None
        self._rest = b""
        self.lock = threading.Lock()

    def send(self, frame: bytes) -> None:
        """All of it, after what waits on the shelf, however long the master takes.

        Raises OSError when nobody reads any more.
        """
        shelf = self.shelf
        with self.lock:
            rest, self._rest = self._rest, b""
            self.sock.sendall(rest + frame if shelf is None else rest + shelf.lying() + frame)
        if shelf is not None:
            shelf.clear()

    def lay(self, frame: bytes) -> None:
        """From the main thread: to be sent with what comes next, and soon."""
        if self.shelf is None or not self.shelf.lay(frame):
            self.send(frame)

    def send_waiting(self) -> None:
        """What lies on the shelf."""
        if self.shelf is not None and self.shelf.used:
            self.send(b"")

    def is_clear(self) -> bool:
        """With the lock held: would a frame be the next thing on the wire?"""
        if self._rest:
            self._rest = self._rest[self._try(self._rest) :]
        return not self._rest

    def offer(self, frame: bytes) -> None:
        """With the lock held, after `is_clear`: as much as the socket takes now."""
        self._rest = frame[self._try(frame) :]

    def _try(self, data: bytes) -> int:
        try:
            return self.sock.send(data, MSG_DONTWAIT | MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            return 0

    def forget(self) -> None:
        """In a child forked by a handler: the socket is its parent's."""
        self.lock = threading.Lock()
        self._rest = b""
        self.sock.close()
