"""The master's end of one worker's channel: orders and tickets out, reports in.

It never blocks.

Orders for a worker that is stopped or slow stay in a buffer here, and delay no other worker. What a ticket is, and why an
order without one is never started: ipc/tickets.py.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import NamedTuple

import msgspec
from msgspec import Raw

from pgworkers.clock import monotonic
from pgworkers.ipc import frames, report_page, tickets
from pgworkers.ipc.frames import Frame, FrameError, FrameReader
from pgworkers.master.held_job import HeldJob
from pgworkers.states import WorkerState
from pgworkers.supervisor.messages import Command
from pgworkers.worker import messages
from pgworkers.worker.messages import FrameKind, Order

_RECEIVE_BYTES = 1 << 18


#: From each state, the states that may follow it. No state follows GONE: a frame that is read after the death of a worker
#: must not make it idle again.
WORKER_MOVES: Mapping[WorkerState, frozenset[WorkerState]] = {
    WorkerState.BOOTING: frozenset({WorkerState.READY, WorkerState.LEAVING, WorkerState.GONE}),
    WorkerState.READY: frozenset({WorkerState.IDLE, WorkerState.LEAVING, WorkerState.GONE}),
    WorkerState.IDLE: frozenset({WorkerState.BUSY, WorkerState.LEAVING, WorkerState.GONE}),
    WorkerState.BUSY: frozenset(
        {
            WorkerState.IDLE,
            WorkerState.SUSPENDED,
            WorkerState.UNRESPONSIVE,
            WorkerState.LEAVING,
            WorkerState.GONE,
        }
    ),
    WorkerState.SUSPENDED: frozenset(
        {
            WorkerState.BUSY,
            WorkerState.IDLE,  # it was suspended when its report was already on the way
            WorkerState.UNRESPONSIVE,
            WorkerState.LEAVING,
            WorkerState.GONE,
        }
    ),
    WorkerState.UNRESPONSIVE: frozenset({WorkerState.READY, WorkerState.LEAVING, WorkerState.GONE}),
    WorkerState.LEAVING: frozenset({WorkerState.GONE}),
    WorkerState.GONE: frozenset(),
}
#: States of a worker that has started and stays.
STARTED_STATES = frozenset({WorkerState.READY, WorkerState.IDLE, WorkerState.BUSY, WorkerState.SUSPENDED})


class ChannelDescriptors(NamedTuple):
    """The master's ends of a worker's channel."""

    socket: socket.socket
    ticket_reader: int
    ticket_writer: int
    report_page: int | None


class WorkerChannel:
    """One worker process, as the master sees it."""

    def __init__(
        self,
        *,
        queue: str,
        slot: int,
        pid: int,
        incarnation: int,
        version: str,
        descriptors: ChannelDescriptors,
        on_frames: Callable[[WorkerChannel, list[Frame]], None],
        on_closed: Callable[[WorkerChannel], None],
        send_to_supervisor: Callable[[Command], None],
    ) -> None:
        self.queue = queue
        self.slot = slot
        self.pid = pid
        self.incarnation = incarnation  # the number of its fork in the life of its supervisor
        self.name = f"{queue}/{slot}"
        self.label = f"{queue}/{slot} pid {pid}"
        self.version = version  # of the user's code it runs
        self.send_to_supervisor = send_to_supervisor
        self.state = WorkerState.BOOTING
        #: What it has not reported yet: the first runs, or is about to; the others wait behind it.
        self.orders: deque[HeldJob] = deque()
        self.expected_load_seconds = 0.0  # seconds that they should take together
        self.is_awaiting_write = False  # its last result must be written before it starts anything
        self.is_retiring = False  # it leaves after its job
        self.protocol_error = ""  # why its frames are no longer trusted
        self.has_leaked_threads = False  # threads that its jobs left use CPU
        self.last_job_id = (0, "")  # the job that it reported last, and its task
        self.since = monotonic()  # start of the present state, or of the present job
        self.predicted_end = inf  # the present job, if it is foreseen
        self.jobs_reported = 0
        self._socket: socket.socket | None = descriptors.socket
        self._ticket_reader: int | None = descriptors.ticket_reader
        self._ticket_writer: int | None = descriptors.ticket_writer
        self._report_page = descriptors.report_page
        self._reader = FrameReader()
        self._unsent = bytearray()
        self._is_write_closed = False  # it reads no more; what it had reported is still to be read
        self._on_frames = on_frames
        self._on_closed = on_closed
        descriptors.socket.setblocking(False)
        asyncio.get_running_loop().add_reader(descriptors.socket.fileno(), self._on_readable)

    @property
    def current_job(self) -> HeldJob | None:
        """The job that it runs, or is about to run."""
        return self.orders[0] if self.orders else None

    @property
    def is_suspended(self) -> bool:
        return self.state is WorkerState.SUSPENDED

    @property
    def is_open(self) -> bool:
        return self._socket is not None and not self._is_write_closed

    @property
    def has_unsent_orders(self) -> bool:
        """True if it has not even read what it was sent."""
        return bool(self._unsent)

    def move_to(self, state: WorkerState) -> None:
        """Change the state, unless `WORKER_MOVES` has no such move: then the worker stays as it is."""
        if state is self.state or state in WORKER_MOVES[self.state]:
            self.state = state
            self.since = monotonic()

    def mark_busy(self) -> None:
        """It has an order. `since` stays: it says when the worker could start it."""
        if WorkerState.BUSY in WORKER_MOVES[self.state]:
            self.state = WorkerState.BUSY

    # -- orders --------------------------------------------------------------------------------------------------------

    def send_orders(self, jobs: list[HeldJob], data: bytes) -> bool:
        """Send orders (`data` are their frames), then their tickets.

        False: the worker is dying and gets nothing.
        """
        self._send(data)
        return self._send_tickets(jobs)

    def reclaim(self) -> list[HeldJob]:
        """Remove the orders that it has not started, and return them.

        Those that remain it has started, or even ended.
        """
        if self._ticket_reader is None:
            return []
        keys = set(tickets.take_remaining(self._ticket_reader))
        if not keys:
            return []
        if tickets.READY_REQUEST in keys and self._ticket_writer is not None:
            tickets.write_tickets(self._ticket_writer, [tickets.READY_REQUEST])
        back = [held for held in self.orders if held.key in keys]
        self.orders = deque(held for held in self.orders if held.key not in keys)
        self.expected_load_seconds = sum(held.expected_seconds for held in self.orders)
        for held in back:
            held.worker = held.began_at = None
        return back

    def resend_tickets(self, jobs: list[HeldJob]) -> bool:
        """Send the tickets of orders that were just reclaimed.

        The orders are in its socket already.
        """
        return self._send_tickets(jobs)

    def ping(self) -> None:
        """The worker is unresponsive. It sends READY once it resumes."""
        self.move_to(WorkerState.UNRESPONSIVE)
        if self._ticket_writer is not None:
            tickets.write_tickets(self._ticket_writer, [tickets.READY_REQUEST])

    @property
    def idle_mark(self) -> int | None:
        """A number that is the same as long as it stays idle; None while it is not idle."""
        return self.jobs_reported if self.state is WorkerState.IDLE else None

    def unstarted_orders(self) -> int:
        """How many of its orders it has not started."""
        return tickets.count_remaining(self._ticket_reader) if self._ticket_reader is not None else 0

    def pop_reported(self, frames: list[Frame]) -> list[tuple[HeldJob, Frame]]:
        """Remove the orders that these frames report, in their order, and return them.

        Other frames are ignored.
        """
        orders = self.orders
        found: list[tuple[HeldJob, Frame]] = []
        for frame in frames:
            if not orders:
                break
            claimed = orders[0].job
            if claimed.id == frame.job and claimed.lease == frame.lease:
                held = orders.popleft()
                self.expected_load_seconds -= held.expected_seconds
                found.append((held, frame))
        if found:
            self.since = now = monotonic()
            self.jobs_reported += len(found)
            last = found[-1][0].job
            self.last_job_id = last.id, last.task
            if orders:
                orders[0].began_at = now
        return found

    def _send_tickets(self, jobs: list[HeldJob]) -> bool:
        if self._ticket_writer is None or self._is_write_closed:
            return False
        tickets.write_tickets(self._ticket_writer, [held.key for held in jobs])
        if not self.orders:
            jobs[0].began_at = self.since = monotonic()
            self.expected_load_seconds = 0.0
        for held in jobs:
            held.worker = self
            self.expected_load_seconds += held.expected_seconds
        self.orders += jobs
        return True

    # -- the socket ------------------------------------------------------------------------------------------------------

    def read_all(self) -> None:
        """Read all its reports, also those on the report page: a report counts more than a death."""
        while self._socket is not None and self._receive():
            pass
        waiting = report_page.read(self._report_page) if self._report_page is not None else b""
        if waiting:
            self._decode(FrameReader(), waiting)

    def close(self) -> None:
        """Close the socket and the pipe: an idle worker leaves, a busy one is its supervisor's matter."""
        sock, self._socket = self._socket, None
        if sock is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(sock.fileno())
            loop.remove_writer(sock.fileno())
            sock.close()
        if self._ticket_writer is not None:
            os.close(self._ticket_writer)
            self._ticket_writer = None

    def dispose(self) -> None:
        """Close everything after its death."""
        self.close()
        for fd in (self._ticket_reader, self._report_page):
            if fd is not None:
                os.close(fd)
        self._ticket_reader = self._report_page = None
        self.move_to(WorkerState.GONE)

    def stop_reading(self) -> None:
        """Stop reading after its last report. The supervisor reports its exit."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())

    def dismiss(self) -> None:
        """Let an idle worker leave: its channel closes, it runs its stop hooks and exits."""
        self.move_to(WorkerState.LEAVING)
        self.close()

    def _on_readable(self) -> None:
        self._receive()

    def _receive(self) -> bool:
        if self._socket is None:
            return False
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            self._on_closed(self)
            return False
        return self._decode(self._reader, data)

    def _decode(self, reader: FrameReader, data: bytes) -> bool:
        """Pass the frames on. False: no worker sends such data.

        It gets no more orders, and its job ends as a crash.
        """
        try:
            self._on_frames(self, reader.feed(data))
        except (FrameError, msgspec.MsgspecError) as error:
            self.protocol_error = self.protocol_error or str(error)
            self.close()
            self._on_closed(self)
            return False
        return True

    def _send(self, data: bytes) -> None:
        if self._socket is None or self._is_write_closed:
            return  # it is dying; its supervisor reports that
        if not self._unsent:
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                self._is_write_closed = True
                return
            if sent == len(data):
                return
            data = data[sent:]
            asyncio.get_running_loop().add_writer(self._socket.fileno(), self._on_writable)
        self._unsent += data

    def _on_writable(self) -> None:
        if self._socket is None:
            return
        try:
            sent = self._socket.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._is_write_closed = True
            self._unsent.clear()
            asyncio.get_running_loop().remove_writer(self._socket.fileno())
            return
        del self._unsent[:sent]
        if not self._unsent:
            asyncio.get_running_loop().remove_writer(self._socket.fileno())


_ORDER_KIND = int(FrameKind.ORDER)


def encode_order(held: HeldJob) -> bytes:
    """The order as a frame for the worker's socket.

    A deadline is encoded relative to the present time.
    """
    job, spec = held.job, held.task
    order = Order(
        task=job.task,
        queue=job.queue,
        attempt=job.attempt,
        crashes=job.crashes,
        timeout=held.timeout_seconds(),
        memory=job.memory_bytes if job.memory_bytes is not None else spec.memory,
        checkpoint=messages.JSON_NULL if job.checkpoint is None else Raw(job.checkpoint.encode()),
        meta=messages.JSON_NULL if job.meta is None else Raw(job.meta.encode()),
        errors=job.errors,
        exclusive=spec.exclusive,
        stall_timeout=spec.stall_timeout,
        deadline=held.job_deadline_ns(),
    )
    header = messages.encode_order_header(order)
    return frames.encode(_ORDER_KIND, job.id, job.lease, header + job.args.encode())
