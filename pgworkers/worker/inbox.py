"""What the master wants next: a ticket first, then the order that it names.

Orders wait in the socket while this worker has another job. Those whose tickets the master took back are passed over:
tickets come in the order of their orders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pgworkers.process import tickets
from pgworkers.process.descriptors import Channel, Descriptor
from pgworkers.process.frames import Frame, Reader
from pgworkers.process.tickets import Key

_CHUNK = 1 << 16


class Inbox:
    sock: Channel  # from its worker's birth on
    pipe: Descriptor

    def __init__(self, rest: Callable[[], bool], pause: Callable[[int], None]) -> None:
        self._reader = Reader()
        self._frames: deque[Frame] = deque()
        self._pause = pause
        self._rest = rest  # called before we wait; False: we must not go on
        self.waited = False  # was this worker idle before the last ticket?

    def ticket(self) -> Key | None:
        """The next ticket, ours alone from now on; None: we are to leave."""
        self.pipe.check()
        key, self.waited = tickets.wait(self.pipe.fd, self._rest, self._pause)
        return key

    def order(self, key: Key) -> Frame | None:
        """The order of a ticket; None: the master closed the socket first."""
        frames = self._frames
        while True:
            while frames:
                frame = frames.popleft()
                if frame[1:3] == key:
                    return frame
            data = self.sock.recv(_CHUNK)
            if not data:
                return None
            frames.extend(self._reader.feed(data))

    def forget(self) -> None:
        """In a child forked by a handler: the tickets are its parent's."""
        self.pipe.close()
