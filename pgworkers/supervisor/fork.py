"""Making a worker. The only place in pgworkers that forks."""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from os import close  # as it was before `noting`
from typing import Any, NoReturn

from pgworkers.app import App
from pgworkers.process import faults, prctl, shelf, signals, tickets
from pgworkers.process.scoreboard import Slot, State
from pgworkers.process.term import Term
from pgworkers.settings import Settings
from pgworkers.specs import QueueSpec
from pgworkers.supervisor import hooks
from pgworkers.supervisor.boot import running_threads
from pgworkers.supervisor.capture import Capture
from pgworkers.supervisor.member import Worker
from pgworkers.worker.birth import Birth
from pgworkers.worker.main import live


@dataclass(slots=True)
class Nursery:
    """What every worker of this queue is made of."""

    app: App
    settings: Settings
    queue: QueueSpec
    term: Term
    signals: list[tuple[int, Any]] = field(default_factory=list)  # that this process hears

    def hears(self) -> None:
        """It has its handlers now: note what a worker must put back."""
        self.signals = signals.changed()


_BLOCKED = signals.Blocked()


class ForkRefused(RuntimeError):
    """This process has threads: a forked copy of it could hang on a lock that nobody will ever release."""


def make(
    nursery: Nursery, index: int, slot: Slot, not_theirs: Iterable[int], *, brief: bool = False
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
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
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
                _child(nursery, index, slot, capture, theirs, (reads, page), parent, not_ours, brief)
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
        os.setpgid(pid, pid)  # the child does it too: whoever comes first
    except OSError:
        pass  # it has done so, or is dead
    return Worker(index, pid, slot, capture), [ours.detach(), reads, writes, *([page] if page >= 0 else [])]


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
    nursery: Nursery,
    index: int,
    slot: Slot,
    capture: Capture,
    sock: socket.socket,
    channel: tuple[int, int],
    parent: int,
    not_ours: list[int],
    brief: bool,
) -> NoReturn:
    """From here on we are a worker, and must never return into the supervisor's frames."""
    status = 70  # EX_SOFTWARE: something below raised that should not have
    try:
        faults.point("fork_child_early")
        if not prctl.die_with_parent(signal.SIGKILL, parent):
            os._exit(0)
        os.setpgid(0, 0)
        prctl.inherit_orphans()
        for fd in not_ours:
            close(fd)
        birth = Birth(
            app=nursery.app,
            settings=nursery.settings,
            queue=nursery.queue,
            index=index,
            slot=slot,
            term=nursery.term,
            sock=sock,
            tickets=channel[0],
            shelf=shelf.Shelf(channel[1]) if channel[1] >= 0 else None,
            output=capture.output,
            dump=capture.dump,
            parent=parent,
            signals=nursery.signals,
            brief=brief,
        )
        status = live(birth)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
