"""What the master wants next: a ticket first, then the order that it names.

Orders wait in the socket while this worker has another job. Those whose tickets the master took back are passed over:
tickets come in the order of their orders.

Frames to the master, from the main thread and from the heartbeat thread.

What can wait lies on the shelf until something is sent: the kernel keeps it if we are killed.

The main thread may wait for the master; the heartbeat never does: a beat that waits is no beat. What the
socket did not take of a frame is kept and goes first next time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from socket import MSG_DONTWAIT, MSG_NOSIGNAL

from pgworkers.ipc import tickets
from pgworkers.ipc.frames import Frame, FrameReader
from pgworkers.ipc.report_page import ReportPage
from pgworkers.ipc.tickets import JobKey
from pgworkers.linux.descriptors import OwnedDescriptor, OwnedSocket

_RECEIVE_BYTES = 1 << 16
#: A queued report waits at most this long while other jobs run, and less when the worker has nothing to do.
MAX_QUEUE_NS = 1_000_000


class OrderInbox:
    socket: OwnedSocket  # from its worker's birth on
    ticket_pipe: OwnedDescriptor

    def __init__(self, before_wait: Callable[[], bool], wait_readable: Callable[[int], None]) -> None:
        self._reader = FrameReader()
        self._frames: deque[Frame] = deque()
        self._wait_readable = wait_readable
        self._before_wait = before_wait  # called before we wait; False: we must not go on
        self.has_waited = False  # was this worker idle before the last ticket?

    def next_ticket(self) -> JobKey | None:
        """The next ticket, ours alone from now on; None: we are to leave."""
        self.ticket_pipe.check()
        key, self.has_waited = tickets.wait_for_ticket(
            self.ticket_pipe.fd, self._before_wait, self._wait_readable
        )
        return key

    def order_for(self, key: JobKey) -> Frame | None:
        """The order of a ticket; None: the master closed the socket first."""
        frames = self._frames
        while True:
            while frames:
                frame = frames.popleft()
                if frame.key == key:
                    return frame
            data = self.socket.recv(_RECEIVE_BYTES)
            if not data:
                return None
            frames.extend(self._reader.feed(data))

    def close_in_child(self) -> None:
        """In a child forked by a handler: the tickets are its parent's."""
        self.ticket_pipe.close()


class ReportOutbox:
    socket: OwnedSocket  # from its worker's birth on

    def __init__(self) -> None:
        self.report_page: ReportPage | None = None
        self._unsent = b""
        self._oldest_queued_at = 0  # of the frames on the page
        self.lock = threading.Lock()

    def send(self, frame: bytes) -> None:
        """All of it, after what waits on the shelf, however long the master takes.

        Raises OSError when nobody reads any more.
        """
        shelf = self.report_page
        with self.lock:
            rest, self._unsent = self._unsent, b""
            self.socket.sendall(rest + frame if shelf is None else rest + shelf.unsent() + frame)
        if shelf is not None:
            shelf.clear()

    def queue(self, frame: bytes, now: int) -> None:
        """From the main thread: put a frame on the report page, or send it with those that have waited long enough."""
        page = self.report_page
        if page is not None and not page.used_bytes:
            self._oldest_queued_at = now
        if page is None or now - self._oldest_queued_at >= MAX_QUEUE_NS or not page.append(frame):
            self.send(frame)

    def flush(self) -> None:
        """What lies on the shelf."""
        if self.report_page is not None and self.report_page.used_bytes:
            self.send(b"")

    def is_clear(self) -> bool:
        """With the lock held: would a frame be the next thing on the wire?"""
        if self._unsent:
            self._unsent = self._unsent[self._try(self._unsent) :]
        return not self._unsent

    def offer(self, frame: bytes) -> None:
        """With the lock held, after `is_clear`: as much as the socket takes now."""
        self._unsent = frame[self._try(frame) :]

    def _try(self, data: bytes) -> int:
        try:
            return self.socket.send(data, MSG_DONTWAIT | MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            return 0

    def close_in_child(self) -> None:
        """In a child forked by a handler: the socket is its parent's."""
        self.lock = threading.Lock()
        self._unsent = b""
        self.socket.close()
