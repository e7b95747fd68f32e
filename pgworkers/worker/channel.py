"""Both directions of a worker's channel to the master.

`OrderInbox` reads a ticket first, then the order that it names. Orders wait in the socket while the worker has another job.
An order whose ticket the master has reclaimed is skipped: tickets come in the order of their orders.

`ReportOutbox` sends frames from the main thread and from the heartbeat thread. A report that can wait is put on the report
page until something is sent; it survives the death of the worker there. The main thread may wait for the master, the
heartbeat thread never does. What the socket did not take of a frame is kept and goes first next time.
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
MAX_QUEUE_NS = 2_000_000


class OrderInbox:
    socket: OwnedSocket  # set by the worker after the fork
    ticket_pipe: OwnedDescriptor

    def __init__(self, before_wait: Callable[[], bool], wait_readable: Callable[[int], None]) -> None:
        self._reader = FrameReader()
        self._frames: deque[Frame] = deque()
        self._wait_readable = wait_readable
        self._before_wait = before_wait  # called before a wait; False: this process must end
        self.has_waited = False  # the worker was idle before the last ticket

    def next_ticket(self) -> JobKey | None:
        """The next ticket, which no other process can get any more; None: this worker must end."""
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
    socket: OwnedSocket  # set by the worker after the fork

    def __init__(self) -> None:
        self.report_page: ReportPage | None = None
        self._unsent = b""
        self._oldest_queued_at = 0  # of the frames on the page
        self.lock = threading.Lock()

    def send(self, frame: bytes) -> None:
        """Send a frame after what waits on the report page, however long the master takes.

        Raises OSError when the master has closed the channel.
        """
        page = self.report_page
        with self.lock:
            rest, self._unsent = self._unsent, b""
            self.socket.sendall(rest + frame if page is None else rest + page.unsent() + frame)
        if page is not None:
            page.clear()

    def queue(self, frame: bytes, now: int) -> None:
        """From the main thread: put a frame on the report page, or send it with those that have waited long enough."""
        page = self.report_page
        if page is not None and not page.used_bytes:
            self._oldest_queued_at = now
        if page is None or now - self._oldest_queued_at >= MAX_QUEUE_NS or not page.append(frame):
            self.send(frame)

    def flush(self) -> None:
        """Send what waits on the report page."""
        if self.report_page is not None and self.report_page.used_bytes:
            self.send(b"")

    def is_clear(self) -> bool:
        """With the lock held: True if no part of an earlier frame waits."""
        if self._unsent:
            self._unsent = self._unsent[self._try(self._unsent) :]
        return not self._unsent

    def offer(self, frame: bytes) -> None:
        """With the lock held, after `is_clear`: send as much of a frame as the socket takes now."""
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
