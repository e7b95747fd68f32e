"""Tickets: a pipe with two readers decides which process gets an order, the worker or the master.

The master sends orders ahead of time into a worker's socket, and one ticket for each into a pipe of its own. The worker
reads one ticket before it begins the order that it names; the master holds the same pipe's reading end and takes orders
back by reading their tickets itself. The kernel gives each ticket to exactly one of them, so what the master has read
was not begun and never will be, without a word to the worker: it may hold the GIL, be stopped, or be dead.

A ticket has a fixed size that divides PIPE_BUF, and is written whole, so no reader ever sees half of one. The pipe never
blocks its readers and writers (O_NONBLOCK belongs to the open file that they share); the worker polls when it is empty.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
from collections.abc import Callable, Iterable
from itertools import chain

_TICKET = struct.Struct("<qq")
TICKET_BYTES = _TICKET.size
#: This many fit into any pipe: a pipe has one page when its user has very many pipes.
MAX_TICKETS_IN_PIPE = 4096 // TICKET_BYTES

JobKey = tuple[int, int]  # job and lease
#: Not an order: the worker that reads it sends READY again.
READY_REQUEST: JobKey = (0, 0)

_unpack = _TICKET.unpack


def create_pipe() -> tuple[int, int]:
    """A pipe: (reading end, writing end)."""
    return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)


def write_tickets(fd: int, keys: Iterable[JobKey]) -> None:
    """All of them or none (OSError)."""
    flat = [*chain.from_iterable(keys)]
    os.write(fd, struct.pack(f"<{len(flat)}q", *flat))


def wait_until_readable(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll()


def wait_for_ticket(
    fd: int, before_wait: Callable[[], bool] = lambda: True, wait: Callable[[int], None] = wait_until_readable
) -> tuple[JobKey | None, bool]:
    """Wait for the next ticket. Returns it, and whether it had to be waited for. None: the pipe is closed.

    `before_wait` is called before each wait; if it returns False, there is no ticket either. `wait` waits for something to
    read.
    """
    waited = False
    while True:
        try:
            data = os.read(fd, TICKET_BYTES)
        except BlockingIOError:
            waited = True
            if not before_wait():
                return None, waited
            wait(fd)
            continue  # the other reader may have been faster
        return (_unpack(data) if data else None), waited


def take_remaining(fd: int) -> list[JobKey]:
    """Take all tickets that the worker has not read, in their order."""
    found: list[JobKey] = []
    while True:
        try:
            data = os.read(fd, TICKET_BYTES * MAX_TICKETS_IN_PIPE)
        except BlockingIOError:
            return found
        found += _TICKET.iter_unpack(data)
        if len(data) < TICKET_BYTES * MAX_TICKETS_IN_PIPE:
            return found


def count_remaining(fd: int) -> int:
    """Number of tickets that were not read yet."""
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"), "little") // TICKET_BYTES
