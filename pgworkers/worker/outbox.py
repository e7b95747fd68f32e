"""Frames to the master, from the main thread and from the heartbeat thread.

The main thread may wait for the master; the heartbeat never does: a beat that waits is no beat. What the
socket did not take of a frame is kept and goes first next time.
"""

from __future__ import annotations

import socket
import threading


class Outbox:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest = b""
        self.lock = threading.Lock()

    def send(self, frame: bytes) -> None:
        """All of it, however long the master takes. Raises OSError when nobody reads any more."""
        with self.lock:
            rest, self._rest = self._rest, b""
            self._sock.sendall(rest + frame)

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
            return self._sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            return 0

    def forget(self) -> None:
        """In a child forked by a handler: the socket is its parent's."""
        self.lock = threading.Lock()
        self._rest = b""
        self._sock.close()
