"""The master's end of one worker's channel: orders and tickets out, reports in, never blocking.

A worker that is stopped or slow leaves its orders in our buffer; nobody else waits for it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from math import inf

import msgspec

from pgworkers.clock import monotonic
from pgworkers.master.held import Held
from pgworkers.process import shelf, tickets
from pgworkers.process.frames import Frame, FrameError, Reader
from pgworkers.supervisor.messages import Command

_CHUNK = 1 << 18


class Worker:
    """One worker process, as the master sees it: booting, idle, busy, suspended, silent, leaving or gone."""

    def __init__(
        self,
        queue: str,
        slot: int,
        pid: int,
        incarnation: int,
        version: str,
        channel: tuple[socket.socket, int, int, int],
        on_frames: Callable[[Worker, list[Frame]], None],
        on_end: Callable[[Worker], None],
        tell: Callable[[Command], None],
    ) -> None:
        self.queue = queue
        self.slot = slot
        self.pid = pid
        self.incarnation = incarnation  # the number of its fork in the life of its supervisor
        self.name = f"{queue}/{slot}"
        self.label = f"{queue}/{slot} pid {pid}"
        self.version = version  # of the user's code it runs
        self.tell = tell  # its supervisor
        self.state = "booting"
        #: What it has not reported yet: the first runs, or is about to; the others wait in front of it.
        self.orders: deque[Held] = deque()
        self.load = 0.0  # seconds that they should take together
        self.settling = False  # its last end must be written before it begins anything
        self.retiring = False  # its supervisor was replaced, or it is not wanted: it leaves after its job
        self.broken = ""  # why nothing that comes from it is believed any more
        self.burns = False  # threads that its jobs left use CPU
        self.last = (0, "")  # the job that it reported last, and its task
        self.since = monotonic()  # of the present state, or of the present job
        self.ends_at = inf  # the present job, if it is foreseen
        self.jobs = 0
        self._sock: socket.socket | None = channel[0]
        _, self._reads, self._writes, self._shelf = channel
        self._reader = Reader()
        self._unsent = bytearray()
        self._deaf = False  # it reads no more; what it had reported is still to be read
        self._on_frames = on_frames
        self._on_end = on_end
        channel[0].setblocking(False)
        asyncio.get_running_loop().add_reader(channel[0].fileno(), self._readable)

    @property
    def held(self) -> Held | None:
        """The job that it runs, or is about to."""
        return self.orders[0] if self.orders else None

    @property
    def open(self) -> bool:
        return self._sock is not None and not self._deaf

    @property
    def behind(self) -> bool:
        """Has it not even taken what it was sent?"""
        return bool(self._unsent)

    def become(self, state: str) -> None:
        self.state = state
        self.since = monotonic()

    # -- orders --------------------------------------------------------------------------------------------------------

    def give(self, given: list[Held], data: bytes) -> bool:
        """Send orders (`data` are their frames), and after them their tickets. False: it is dying, they are not sent."""
        self._send(data)
        return self._admit(given)

    def take_back(self) -> list[Held]:
        """The orders that it has not begun, and never will. Those that are left here it has begun, or even ended."""
        if self._reads < 0:
            return []
        keys = set(tickets.take_all(self._reads))
        if not keys:
            return []
        if tickets.CALL in keys and self._writes >= 0:
            tickets.write(self._writes, [tickets.CALL])
        back = [held for held in self.orders if held.key in keys]
        self.orders = deque(held for held in self.orders if held.key not in keys)
        self.load = sum(held.expected for held in self.orders)
        for held in back:
            held.worker = held.began = None
        return back

    def give_again(self, given: list[Held]) -> bool:
        """Orders that were just taken back, in their old sequence: they are in its socket already."""
        return self._admit(given)

    def call(self) -> None:
        """It took no ticket for a while. It will say READY when it comes to itself."""
        self.become("silent")
        if self._writes >= 0:
            tickets.write(self._writes, [tickets.CALL])

    @property
    def rest(self) -> int | None:
        """A number for each time that it rests; None while it does not."""
        return self.jobs if self.state == "idle" else None

    def unbegun(self) -> int:
        """How many of its orders it has not begun."""
        return tickets.left(self._reads) if self._reads >= 0 else 0

    def ended(self, frames: list[Frame]) -> list[tuple[Held, Frame]]:
        """It has reported these, one after the other: the next one, if there is one, begins. Only what it had counts."""
        orders = self.orders
        found: list[tuple[Held, Frame]] = []
        for frame in frames:
            if not orders:
                break
            claimed = orders[0].claimed
            if claimed.id == frame.job and claimed.lease == frame.lease:
                held = orders.popleft()
                self.load -= held.expected
                found.append((held, frame))
        if found:
            self.since = now = monotonic()
            self.jobs += len(found)
            last = found[-1][0].claimed
            self.last = last.id, last.task
            if orders:
                orders[0].began = now
        return found

    def _admit(self, given: list[Held]) -> bool:
        if self._writes < 0 or self._deaf:
            return False
        tickets.write(self._writes, [held.claimed[:2] for held in given])
        if not self.orders:
            given[0].began = self.since = monotonic()
            self.load = 0.0
        for held in given:
            held.worker = self
            self.load += held.expected
        self.orders += given
        return True

    # -- the socket ------------------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Hear all that it has to say, sent or not: a report beats the news of a death, and any guess of ours."""
        while self._sock is not None and self._receive():
            pass
        waiting = shelf.read(self._shelf) if self._shelf >= 0 else b""
        if waiting:
            self._hear(Reader(), waiting)

    def hang_up(self) -> None:
        """Close the socket and the pipe: an idle worker leaves, a busy one is left to its supervisor."""
        sock, self._sock = self._sock, None
        if sock is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(sock.fileno())
            loop.remove_writer(sock.fileno())
            sock.close()
        if self._writes >= 0:
            os.close(self._writes)
            self._writes = -1

    def bury(self) -> None:
        """It is dead: nothing of its channel is left."""
        self.hang_up()
        for fd in (self._reads, self._shelf):
            if fd >= 0:
                os.close(fd)
        self._reads = self._shelf = -1
        self.become("gone")

    def hear_no_more(self) -> None:
        """It has said its last word and is on its way out: that it hangs up is no news, its supervisor will tell."""
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock.fileno())

    def leave(self) -> None:
        """Let an idle worker go: its channel closes, it runs its stop hooks and exits."""
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
            self._on_end(self)
            return False
        return self._hear(self._reader, data)

    def _hear(self, reader: Reader, data: bytes) -> bool:
        """False: that is nothing that a worker of ours says. It gets no more orders, and its job ends as a crash."""
        try:
            self._on_frames(self, reader.feed(data))
        except (FrameError, msgspec.MsgspecError) as error:
            self.broken = self.broken or str(error)
            self.hang_up()
            self._on_end(self)
            return False
        return True

    def _send(self, data: bytes) -> None:
        if self._sock is None or self._deaf:
            return  # it is dying; its supervisor will say so
        if not self._unsent:
            try:
                sent = self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                self._deaf = True
                return
            if sent == len(data):
                return
            data = data[sent:]
            asyncio.get_running_loop().add_writer(self._sock.fileno(), self._writable)
        self._unsent += data

    def _writable(self) -> None:
        if self._sock is None:
            return
        try:
            sent = self._sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._deaf = True
            self._unsent.clear()
            asyncio.get_running_loop().remove_writer(self._sock.fileno())
            return
        del self._unsent[:sent]
        if not self._unsent:
            asyncio.get_running_loop().remove_writer(self._sock.fileno())
