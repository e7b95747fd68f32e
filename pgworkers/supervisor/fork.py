"""Fork a worker. This is the only module of pgworkers that forks.

Before the first fork, supervisor/app_loader.py imports the app, and supervisor/fork_safety.py checks that no threads run.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from socket import AF_UNIX, SOCK_STREAM, socket, socketpair
from typing import Any, NoReturn

from pgworkers.app import App
from pgworkers.ipc import report_page, tickets
from pgworkers.ipc.lease_deadline import LeaseDeadline
from pgworkers.ipc.report_page import ReportPage
from pgworkers.ipc.scoreboard import Slot, SlotState
from pgworkers.linux import fault_points, signals
from pgworkers.linux.descriptors import OwnedDescriptor, OwnedSocket, move_to_high_number
from pgworkers.linux.prctl import become_subreaper, set_parent_death_signal
from pgworkers.settings import Settings
from pgworkers.specs import QueueSpec
from pgworkers.supervisor.fork_safety import running_threads
from pgworkers.supervisor.output import OutputCapture
from pgworkers.supervisor.stack_dump import StackDumpFile
from pgworkers.supervisor.worker_record import WorkerRecord
from pgworkers.worker.main import WorkerProcess
from pgworkers.worker.startup import WorkerHandles, WorkerSetup

_BLOCKED_SIGNALS = signals.BlockedSignals()
_SOFTWARE_ERROR_STATUS = 70  # EX_SOFTWARE: something raised that should not have


class ForkRefused(RuntimeError):
    """This process has threads: a forked copy of it could wait for ever for a lock that one of them held."""


@dataclass(slots=True)
class WorkerTemplate:
    """What all workers of this queue have in common."""

    app: App
    settings: Settings
    queue: QueueSpec
    lease_deadline: LeaseDeadline
    signals_to_reset: list[tuple[int, Any]] = field(default_factory=list)  # signals that this process handles
    _workers: dict[int, WorkerProcess] = field(default_factory=dict)  # by slot

    def note_signals(self) -> None:
        """Note which signal handlers a worker must reset.

        Call it when this process has installed its own.
        """
        set_by_worker = (signal.SIGUSR1, signal.SIGUSR2)
        self.signals_to_reset = signals.signals_to_reset(set_by_worker)

    def worker_for_slot(self, index: int, slot: Slot) -> WorkerProcess:
        """The worker of this slot before its fork.

        Every process that is forked for the slot is a copy of it.
        """
        found = self._workers.get(index)
        if found is None:
            setup = WorkerSetup(
                app=self.app,
                settings=self.settings,
                queue=self.queue,
                index=index,
                slot=slot,
                lease_deadline=self.lease_deadline,
                supervisor_pid=os.getpid(),
                signals_to_reset=self.signals_to_reset,
            )
            found = self._workers[index] = WorkerProcess(setup)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkedWorker:
    """A worker that was just forked."""

    record: WorkerRecord
    #: For the master: its end of the socket, both ends of the ticket pipe, and the report page if there is one. The caller
    #: sends them away, so that only the master can write a ticket.
    master_descriptors: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Descriptors:
    """The worker's side of everything that it shares with the master and the supervisor."""

    socket: socket
    tickets: int
    report_page: int | None
    output: int
    dump: int

    def take_over(self, *, is_short_lived: bool) -> WorkerHandles:
        """By the worker: move them to numbers that the user's code does not reach."""
        channel = socket(AF_UNIX, SOCK_STREAM, 0, move_to_high_number(self.socket.detach()))
        return WorkerHandles(
            socket=OwnedSocket(channel),
            tickets=OwnedDescriptor(move_to_high_number(self.tickets)),
            report_page=ReportPage(self.report_page) if self.report_page is not None else None,
            output=OwnedDescriptor(move_to_high_number(self.output)),
            dump=OwnedDescriptor(move_to_high_number(self.dump)),
            is_short_lived=is_short_lived,
        )


def fork_worker(
    template: WorkerTemplate,
    *,
    index: int,
    incarnation: int,
    slot: Slot,
    private_descriptors: Iterable[int],
    is_short_lived: bool = False,
) -> ForkedWorker:
    """Fork a worker.

    `private_descriptors` are descriptors of this process that the child must not have: the control socket, the files of
    other workers. `is_short_lived`: the worker will likely end soon, so its heartbeat starts later.
    """
    threads = running_threads()
    if threads:
        raise ForkRefused(f"no worker was forked: this process has threads ({', '.join(threads)})")
    worker = template.worker_for_slot(index, slot)
    masters_socket, workers_socket = socketpair(AF_UNIX, SOCK_STREAM)
    name = f"{template.queue.name}-{index}"[:200]
    capture, dump = OutputCapture(name, template.settings.output_limit), StackDumpFile(name)
    masters: list[int] = []  # descriptors for the master
    slot.clear()
    slot.state = SlotState.BOOTING
    parent_pid = os.getpid()
    sys.stdout and sys.stdout.flush()
    sys.stderr and sys.stderr.flush()
    try:
        ticket_reader, ticket_writer = tickets.create_pipe()
        masters += ticket_reader, ticket_writer
        page = report_page.create() if template.queue.max_jobs != 1 else None
        masters += [page] if page is not None else []
        with _BLOCKED_SIGNALS:  # until the child has signal handlers of its own
            pid = os.fork()
            if pid == 0:
                _run_child(
                    worker,
                    _Descriptors(
                        socket=workers_socket,
                        tickets=ticket_reader,
                        report_page=page,
                        output=capture.output,
                        dump=dump.fd,
                    ),
                    parent_pid=parent_pid,
                    private_descriptors=[*private_descriptors, masters_socket.fileno(), ticket_writer],
                    is_short_lived=is_short_lived,
                )
    except OSError:
        masters_socket.close()
        workers_socket.close()
        for fd in masters:
            os.close(fd)
        capture.close()
        dump.close()
        slot.clear()
        raise
    workers_socket.close()
    try:
        os.setpgid(pid, pid)  # the child does it too, whichever comes first
    except OSError:
        pass  # the child has done it, or is dead
    return ForkedWorker(
        record=WorkerRecord(
            index=index, pid=pid, incarnation=incarnation, slot=slot, capture=capture, dump=dump
        ),
        master_descriptors=[masters_socket.detach(), *masters],
    )


def _run_child(
    worker: WorkerProcess,
    descriptors: _Descriptors,
    *,
    parent_pid: int,
    private_descriptors: list[int],
    is_short_lived: bool,
) -> NoReturn:
    """Be the worker. This function must never return into the supervisor's frames."""
    status = _SOFTWARE_ERROR_STATUS
    try:
        if fault_points.IS_ARMED:
            fault_points.fault_point("fork_child_early")
        if not set_parent_death_signal(signal.SIGKILL, parent_pid):
            os._exit(0)
        os.setpgid(0, 0)
        become_subreaper()
        for fd in private_descriptors:
            os.close(fd)
        status = worker.run(descriptors.take_over(is_short_lived=is_short_lived))
    except BaseException:
        worker.write_traceback()
    finally:
        os._exit(status)
