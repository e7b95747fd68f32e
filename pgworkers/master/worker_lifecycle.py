"""What supervisors report about their workers: forked, stalled, died; and answers to operator requests.

The death of a worker ends its job with the cause of the death. If workers die with their supervisor, no process reports
that: their jobs end here all together, once the processes are gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pgworkers.clock import monotonic
from pgworkers.events import (
    EventBus,
    JobStallChanged,
    OutputDropped,
    WorkerDied,
    WorkerForked,
    WorkerRestartDelayed,
)
from pgworkers.ipc.frames import Frame
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.worker_channel import ChannelDescriptors, WorkerChannel, WorkerState
from pgworkers.supervisor.messages import (
    Alive,
    BytesDropped,
    Died,
    Forked,
    StackDumped,
    StallChanged,
    StartDelayed,
    SupervisorEvent,
    SuspendAnswered,
)
from pgworkers.worker.messages import FrameKind

if TYPE_CHECKING:
    from pgworkers.master.supervisors import SupervisorProcess

#: How a worker died whose death was not reported.
UNREPORTED_DEATH_STATUS = "a death that its supervisor did not report"
_READY_FRAME = Frame(kind=FrameKind.READY, job=0, lease=0, body=b"")


class WorkerLifecycle:
    """Passes messages about workers from the supervisors to the dispatcher."""

    def __init__(self, events: EventBus, dispatcher: Dispatcher) -> None:
        self._events = events
        self._dispatcher = dispatcher
        self.pending_answers: dict[int, asyncio.Future[tuple[bool, str]]] = {}  # by token

    def on_message(self, supervisor: SupervisorProcess, message: SupervisorEvent, fds: list[int]) -> None:
        match message:
            case Forked():
                self._on_forked(supervisor, message, fds)
                return  # the descriptors are the worker's now
            case Died():
                gone = supervisor.workers.pop(message.incarnation, None)
                if gone is not None:
                    self._on_died(gone, message)
            case StallChanged():
                self._on_stalled(supervisor.workers.get(message.incarnation), message)
            case Alive():
                self._on_alive(supervisor, message)
            case BytesDropped():
                self._events.emit(OutputDropped(supervisor.queue, message.count))
            case StartDelayed():
                self._events.emit(
                    WorkerRestartDelayed(
                        supervisor.queue, message.seconds, message.deaths, message.has_been_ready
                    )
                )
            case StackDumped():
                self._on_answer(message.token, True, message.text)
            case SuspendAnswered():
                self._on_answer(message.token, message.is_done, message.text)
        for fd in fds:
            os.close(fd)

    def on_supervisor_died(self, supervisor: SupervisorProcess, *, leaving: bool, dismissed: bool) -> None:
        """End the jobs of the workers of a dead supervisor. The workers are gone with it.

        The jobs run again without using up an attempt. Unless the host is `leaving`, each counts a loss: one of them may be
        what kills supervisors. `dismissed`: the idle workers were asked to leave with their supervisor.
        """
        for worker in supervisor.workers.values():
            how = "was killed because it was unresponsive" if supervisor.was_killed else "died"
            why = f"its supervisor {how} ({supervisor.status})"
            reason = StopReason.KILL if leaving else None
            self._on_unreported_death(worker, why, reason, lost=not leaving, dismissed=dismissed)
        supervisor.workers.clear()

    def finish_jobs_of_unknown_workers(self, supervisors: Iterable[SupervisorProcess]) -> None:
        """End the jobs of workers that no supervisor has. `supervisors`: all, also those that died a moment ago."""
        known = {id(worker) for supervisor in supervisors for worker in supervisor.workers.values()}
        for worker in self._dispatcher.busy_workers():
            if id(worker) not in known:
                self._on_unreported_death(worker, UNREPORTED_DEATH_STATUS)

    def _on_forked(self, supervisor: SupervisorProcess, message: Forked, fds: list[int]) -> None:
        sock, ticket_reader, ticket_writer, *report_page = fds
        worker = WorkerChannel(
            queue=supervisor.queue,
            slot=message.slot,
            pid=message.pid,
            incarnation=message.incarnation,
            version=supervisor.version,
            descriptors=ChannelDescriptors(
                socket=socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, sock),
                ticket_reader=ticket_reader,
                ticket_writer=ticket_writer,
                report_page=report_page[0] if report_page else None,
            ),
            on_frames=self._dispatcher.on_frames,
            on_closed=self._dispatcher.on_channel_closed,
            send_to_supervisor=supervisor.send,
        )
        supervisor.workers[message.incarnation] = worker
        self._dispatcher.add_worker(worker)
        self._events.emit(WorkerForked(supervisor.queue, message.slot, message.pid))
        if supervisor.is_retired:  # it was forked before that
            self._dispatcher.retire(worker)
        if message.is_ready:  # it sends no READY itself
            self._dispatcher.on_frames(worker, [_READY_FRAME])

    def _on_alive(self, supervisor: SupervisorProcess, message: Alive) -> None:
        """End the jobs of workers that their supervisor no longer has, although it has not reported their death."""
        for incarnation in supervisor.workers.keys() - set(message.incarnations):
            self._on_unreported_death(supervisor.workers.pop(incarnation), UNREPORTED_DEATH_STATUS)

    def _on_unreported_death(
        self,
        worker: WorkerChannel,
        why: str,
        reason: StopReason | None = None,
        *,
        lost: bool = False,
        dismissed: bool = False,
    ) -> None:
        """Handle a death without a report of the supervisor. Without a `reason`, the job ends as a crash."""
        worker.read_all()
        self._dispatcher.on_channel_closed(worker)
        if dismissed and worker.current_job is None:
            worker.move_to(WorkerState.LEAVING)
        job, lease = worker.current_job.key if worker.current_job is not None else (0, 0)
        died = Died(
            slot=worker.slot,
            pid=worker.pid,
            incarnation=worker.incarnation,
            job=job,
            lease=lease,
            status=why,
            signal=int(signal.SIGKILL),
            was_ready=True,
            reason=reason.word if reason is not None else None,
            is_lost=lost,
        )
        died.duration = monotonic() - worker.since
        self._on_died(worker, died)

    def _on_stalled(self, worker: WorkerChannel | None, message: StallChanged) -> None:
        if (
            worker is None
            or worker.current_job is None
            or worker.current_job.key != (message.job, message.lease)
        ):
            return
        if worker.current_job.is_stalled == message.is_stalled:  # it was the job before it that stalled
            return
        worker.current_job.is_stalled = message.is_stalled
        self._events.emit(JobStallChanged(*worker.current_job.event_fields, message.is_stalled))

    def _on_answer(self, token: int, done: bool, text: str) -> None:
        waiting = self.pending_answers.pop(token, None)
        if waiting is not None and not waiting.done():
            waiting.set_result((done, text))

    def _on_died(self, worker: WorkerChannel, died: Died) -> None:
        left = worker.state is WorkerState.LEAVING or (
            worker.state is WorkerState.BOOTING and died.status == "exit 0"
        )
        held = self._dispatcher.held_jobs.get(died.job)
        job = held.job if held is not None else None
        verdict = self._dispatcher.on_worker_died(worker, died)
        why = verdict or (("threads" if worker.has_leaked_threads else "left") if left else "while idle")
        self._events.emit(
            WorkerDied(
                queue=worker.queue,
                slot=worker.slot,
                pid=worker.pid,
                job=died.job,
                status=died.status,
                reason=why,
                orphans_killed=died.swept,
                task=job.task if job is not None else "",
                attempt=job.attempt if job is not None else 0,
                unkillable=tuple(died.stuck),
                foreign=tuple(died.foreign),
            )
        )
