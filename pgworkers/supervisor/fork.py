"""Making a worker. The only place in pgworkers that forks."""

from __future__ import annotations

import os
import signal
import sys
from _socket import AF_UNIX, SOCK_STREAM, socket, socketpair
from collections.abc import Iterable
from dataclasses import dataclass, field
from os import _exit, close, setpgid  # as they were before `noting`
from typing import Any, NoReturn

from pgworkers.app import App
from pgworkers.process import faults, shelf, signals, tickets
from pgworkers.process.descriptors import lift
from pgworkers.process.prctl import die_with_parent, inherit_orphans
from pgworkers.process.scoreboard import Slot, State
from pgworkers.process.term import Term
from pgworkers.settings import Settings
from pgworkers.specs import QueueSpec
from pgworkers.supervisor import hooks
from pgworkers.supervisor.boot import running_threads
from pgworkers.supervisor.capture import Capture
from pgworkers.supervisor.member import Worker
from pgworkers.worker.birth import Birth
from pgworkers.worker.main import Worker as Crib


@dataclass(slots=True)
class Nursery:
    """What every worker of this queue is made of."""

    app: App
    settings: Settings
    queue: QueueSpec
    term: Term
    signals: list[tuple[int, Any]] = field(default_factory=list)  # that this process hears
    cribs: dict[int, Crib] = field(default_factory=dict)  # by slot

    def hears(self) -> None:
        """It has its handlers now: note what a worker must put back."""
        self.signals = signals.changed((signal.SIGUSR1, signal.SIGUSR2))  # which are its own

    def crib(self, index: int, slot: Slot) -> Crib:
        """The worker of this slot as it is before its birth. Each that is born there is a copy of it."""
        found = self.cribs.get(index)
        if found is None:
            birth = Birth(
                *(self.app, self.settings, self.queue, index, slot, self.term, os.getpid(), self.signals)
            )
            found = self.cribs[index] = Crib(birth)
        return found


_BLOCKED = signals.Blocked()
_SIGKILL = int(signal.SIGKILL)


class ForkRefused(RuntimeError):
    """This process has threads: a forked copy of it could hang on a lock that nobody will ever release."""


def make(
    nursery: Nursery,
    index: int,
    incarnation: int,
    slot: Slot,
    not_theirs: Iterable[int],
    *,
    brief: bool = False,
) -> tuple[Worker, list[int]]:
    """Fork a worker. Returns it and what is the master's: its end of the socket, both ends of the ticket pipe, and
    the shelf, if it can have one job after another.

    The caller sends them away, so that nobody but the master can write a ticket.

    `not_theirs` are our descriptors that the child must not have: our control socket, the files of its
    siblings. `brief`: its life will likely be.
    """
    threads = running_threads()
    if threads:
        raise ForkRefused(f"no worker was forked: this process has threads ({', '.join(threads)})")
    crib = nursery.crib(index, slot)
    ours, theirs = socketpair(AF_UNIX, SOCK_STREAM)
    reads = writes = page = -1
    capture = Capture(f"{nursery.queue.name}-{index}"[:200], nursery.settings.output_limit)
    slot.clear()
    slot.state = State.BOOTING
    parent = os.getpid()
    sys.stdout and sys.stdout.flush()
    sys.stderr and sys.stderr.flush()
    try:
        reads, writes = tickets.make()
        if nursery.queue.max_jobs != 1:
            page = shelf.make()
        with _BLOCKED:  # until the child has handlers of its own
            pid = _fork()
            if pid == 0:
                not_ours = [*not_theirs, ours.fileno(), writes]
                _child(crib, capture.output, capture.dump, theirs, reads, page, parent, not_ours, brief)
    except OSError:
        ours.close()
        theirs.close()
        for fd in {reads, writes, page} - {-1}:
            os.close(fd)
        capture.close()
        slot.clear()
        raise
    theirs.close()
    try:
        setpgid(pid, pid)  # the child does it too: whoever comes first
    except OSError:
        pass  # it has done so, or is dead
    return Worker(index, pid, incarnation, slot, capture), [
        ours.detach(),
        reads,
        writes,
        *([page] if page >= 0 else []),
    ]


def _fork() -> int:
    hooks.before()
    try:
        pid = os.fork()
    except OSError:
        hooks.in_parent()
        raise
    if pid:
        hooks.in_parent()
    else:
        hooks.in_child()
    return pid


def _child(
    crib: Crib,
    output: int,
    dump: int,
    sock: socket,
    reads: int,
    page: int,
    parent: int,
    not_ours: list[int],
    brief: bool,
) -> NoReturn:
    """From here on we are a worker, and must never return into the supervisor's frames."""
    status = 70  # EX_SOFTWARE: something below raised that should not have
    try:
        if faults.ARMED:
            faults.point("fork_child_early")
        if not die_with_parent(_SIGKILL, parent):
            _exit(0)
        setpgid(0, 0)
        inherit_orphans()
        for fd in not_ours:
            close(fd)
        channel = socket(AF_UNIX, SOCK_STREAM, 0, lift(sock.detach()))
        reads, output, dump = lift(reads), lift(output), lift(dump)
        status = crib.live(channel, reads, shelf.Shelf(page) if page >= 0 else None, output, dump, brief)
    except BaseException:
        crib.complain()
    finally:
        _exit(status)
