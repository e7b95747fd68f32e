"""The master's end of one worker's socketpair: orders out, reports in, never blocking.

A worker that is stopped or slow leaves its orders in our buffer; nobody else waits for it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from pgworkers.clock import monotonic
from pgworkers.master.held import Held
from pgworkers.process.frames import Frame, Reader, encode
from pgworkers.supervisor.messages import Command

_CHUNK = 1 << 18


class Worker:
    """One worker process, as the master sees it: booting, idle, busy, leaving or gone."""

    def __init__(
        self,
        queue: str,
        slot: int,
        pid: int,
        version: str,
        sock: socket.socket,
        on_frame: Callable[[Worker, Frame], None],
        tell: Callable[[Command], None],
    ) -> None:
        self.queue = queue
        self.slot = slot
        self.pid = pid
        self.version = version  # of the user's code it runs
        self.tell = tell  # its supervisor
        self.state = "booting"
        self.held: Held | None = None
        self.retiring = False  # its supervisor was replaced: it leaves after its job
        self.since = monotonic()  # of the present state
        self.jobs = 0
        self._sock: socket.socket | None = sock
        self._reader = Reader()
        self._unsent = bytearray()
        self._on_frame = on_frame
        sock.setblocking(False)
        asyncio.get_running_loop().add_reader(sock.fileno(), self._readable)

    @property
    def name(self) -> str:
        return f"{self.queue}/{self.slot}"

    @property
    def open(self) -> bool:
        return self._sock is not None

    def become(self, state: str) -> None:
        self.state = state
        self.since = monotonic()

    def send(self, kind: int, job: int, lease: int, body: bytes) -> None:
        data = encode(kind, job, lease, body)
        if self._sock is None:
            return  # it is dying; its supervisor will say so
        if not self._unsent:
            try:
                sent = self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                self.hang_up()
                return
            if sent == len(data):
                return
            data = data[sent:]
            asyncio.get_running_loop().add_writer(self._sock.fileno(), self._writable)
        self._unsent += data

    def drain_frames(self) -> None:
        """Read what a dead worker had still sent, so that a report beats the news of its death."""
        while self._sock is not None and self._receive():
            pass

    def hang_up(self) -> None:
        """Close the socket: an idle worker leaves, a busy one is left to its supervisor."""
        sock, self._sock = self._sock, None
        if sock is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(sock.fileno())
            loop.remove_writer(sock.fileno())
            sock.close()

    def leave(self) -> None:
        """Let an idle worker go: its socket closes, it runs its stop hooks and exits."""
        self.become("leaving")
        self.hang_up()

    def _readable(self) -> None:
        self._receive()

    def _receive(self) -> bool:
        if self._sock is None:
            return False
        try:
            data = self._sock.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self.hang_up()
            return False
        for frame in self._reader.feed(data):
            self._on_frame(self, frame)
        return True

    def _writable(self) -> None:
        if self._sock is None:
            return
        try:
            sent = self._sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.hang_up()
            return
        del self._unsent[:sent]
        if not self._unsent:
            asyncio.get_running_loop().remove_writer(self._sock.fileno())
