"""Making a worker. The only place in pgworkers that forks."""

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
from pgworkers.ipc.scoreboard import Slot, SlotState
from pgworkers.linux import fault_points, signals
from pgworkers.linux.descriptors import move_to_high_number
from pgworkers.linux.prctl import become_subreaper, set_parent_death_signal
from pgworkers.settings import Settings
from pgworkers.specs import QueueSpec
from pgworkers.supervisor.fork_safety import running_threads
from pgworkers.supervisor.output import OutputCapture
from pgworkers.supervisor.worker_record import WorkerRecord
from pgworkers.worker.main import WorkerProcess
from pgworkers.worker.startup import WorkerSetup


@dataclass(slots=True)
class WorkerTemplate:
    """What every worker of this queue is made of."""

    app: App
    settings: Settings
    queue: QueueSpec
    lease_deadline: LeaseDeadline
    signals_to_reset: list[tuple[int, Any]] = field(default_factory=list)  # that this process hears
    _workers: dict[int, WorkerProcess] = field(default_factory=dict)  # by slot

    def note_signals(self) -> None:
        """It has its handlers now: note what a worker must put back."""
        self.signals_to_reset = signals.signals_to_reset(
            (signal.SIGUSR1, signal.SIGUSR2)
        )  # which are its own

    def worker_for_slot(self, index: int, slot: Slot) -> WorkerProcess:
        """The worker of this slot as it is before its birth. Each that is born there is a copy of it."""
        found = self._workers.get(index)
        if found is None:
            birth = WorkerSetup(
                *(
                    self.app,
                    self.settings,
                    self.queue,
                    index,
                    slot,
                    self.lease_deadline,
                    os.getpid(),
                    self.signals_to_reset,
                )
            )
            found = self._workers[index] = WorkerProcess(birth)
        return found


_BLOCKED = signals.BlockedSignals()


class ForkRefused(RuntimeError):
    """This process has threads: a forked copy of it could hang on a lock that nobody will ever release."""


def fork_worker(
    template: WorkerTemplate,
    index: int,
    incarnation: int,
    slot: Slot,
    private_descriptors: Iterable[int],
    *,
    has_deferred_heartbeat: bool = False,
) -> tuple[WorkerRecord, list[int]]:
    """Fork a worker. Returns it and what is the master's: its end of the socket, both ends of the ticket pipe, and
    the report page, if it can have one job after another.

    The caller sends them away, so that nobody but the master can write a ticket.

    `private_descriptors` are our descriptors that the child must not have: our control socket, the files of its
    siblings. `has_deferred_heartbeat`: its life will likely be brief.
    """
    threads = running_threads()
    if threads:
        raise ForkRefused(f"no worker was forked: this process has threads ({', '.join(threads)})")
    worker = template.worker_for_slot(index, slot)
    ours, theirs = socketpair(AF_UNIX, SOCK_STREAM)
    reads = writes = page = -1
    capture = OutputCapture(f"{template.queue.name}-{index}"[:200], template.settings.output_limit)
    slot.clear()
    slot.state = SlotState.BOOTING
    parent = os.getpid()
    sys.stdout and sys.stdout.flush()
    sys.stderr and sys.stderr.flush()
    try:
        reads, writes = tickets.create_pipe()
        if template.queue.max_jobs != 1:
            page = report_page.create()
        with _BLOCKED:  # until the child has handlers of its own
            pid = os.fork()
            if pid == 0:
                not_ours = [*private_descriptors, ours.fileno(), writes]
                _child(
                    worker,
                    capture.output,
                    capture.dump,
                    theirs,
                    reads,
                    page,
                    parent,
                    not_ours,
                    has_deferred_heartbeat,
                )
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
    return WorkerRecord(index, pid, incarnation, slot, capture), [
        ours.detach(),
        reads,
        writes,
        *([page] if page >= 0 else []),
    ]


def _child(
    worker: WorkerProcess,
    output: int,
    dump: int,
    sock: socket,
    reads: int,
    page: int,
    parent: int,
    private_descriptors: list[int],
    has_deferred_heartbeat: bool,
) -> NoReturn:
    """From here on we are a worker, and must never return into the supervisor's frames."""
    status = 70  # EX_SOFTWARE: something below raised that should not have
    try:
        if fault_points.IS_ARMED:
            fault_points.fault_point("fork_child_early")
        if not set_parent_death_signal(signal.SIGKILL, parent):
            os._exit(0)
        os.setpgid(0, 0)
        become_subreaper()
        for fd in private_descriptors:
            os.close(fd)
        channel = socket(AF_UNIX, SOCK_STREAM, 0, move_to_high_number(sock.detach()))
        reads, output, dump = (
            move_to_high_number(reads),
            move_to_high_number(output),
            move_to_high_number(dump),
        )
        status = worker.run(
            channel,
            reads,
            report_page.ReportPage(page) if page >= 0 else None,
            output,
            dump,
            has_deferred_heartbeat,
        )
    except BaseException:
        worker.write_traceback()
    finally:
        os._exit(status)
