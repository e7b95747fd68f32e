"""What supervisors say of their workers: born, stalled, dead; and what their workers answer to operators.

A worker's death ends its job with the true cause. Those that died with their supervisor are not reported by anybody: they
are buried here all together, once they are really gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterable

from pgworkers import events
from pgworkers.clock import monotonic
from pgworkers.events import EventBus
from pgworkers.ipc.frames import Frame
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.supervisor_process import SupervisorProcess
from pgworkers.master.worker_channel import WorkerChannel
from pgworkers.supervisor.messages import (
    Alive,
    BytesDropped,
    Died,
    Forked,
    StackDumped,
    StallChanged,
    StartDelayed,
    SupervisorFact,
    SuspendAnswered,
)
from pgworkers.worker.messages import FrameKind

#: How a worker died whose death was not reported.
UNREPORTED_DEATH_STATUS = "a death that its supervisor did not report"
_READY_FRAME = Frame(kind=FrameKind.READY, job=0, lease=0, body=b"")


class WorkerLifecycle:
    """Facts of workers, on their way from the supervisors to the dispatcher."""

    def __init__(self, facts: EventBus, dispatch: Dispatcher) -> None:
        self._facts = facts
        self._dispatch = dispatch
        self.pending_answers: dict[int, asyncio.Future[tuple[bool, str]]] = {}  # who waits for one, by token

    def on_message(self, supervisor: SupervisorProcess, fact: SupervisorFact, fds: list[int]) -> None:
        match fact:
            case Forked():
                self._on_forked(supervisor, fact, fds)
                return  # the descriptors are the worker's now
            case Died():
                gone = supervisor.workers.pop(fact.incarnation, None)
                if gone is not None:
                    self._on_died(gone, fact)
            case StallChanged():
                self._on_stalled(supervisor.workers.get(fact.incarnation), fact)
            case Alive():
                self._on_alive(supervisor, fact)
            case BytesDropped():
                self._facts.emit(events.OutputDropped(supervisor.queue, fact.count))
            case StartDelayed():
                self._facts.emit(
                    events.WorkerRestartDelayed(supervisor.queue, fact.seconds, fact.deaths, fact.ready)
                )
            case StackDumped():
                self._on_answer(fact.token, True, fact.text)
            case SuspendAnswered():
                self._on_answer(fact.token, fact.done, fact.text)
        for fd in fds:
            os.close(fd)

    def on_supervisor_died(self, supervisor: SupervisorProcess, *, leaving: bool, dismissed: bool) -> None:
        """The workers of a dead supervisor, which are gone with it, and their jobs.

        The jobs are handed back, which costs them nothing. Unless the host is `leaving`, each counts a loss: one of them
        may be what kills supervisors. `dismissed`: who had nothing to do was told to go with its supervisor.
        """
        for worker in supervisor.workers.values():
            how = "was killed because it said nothing" if supervisor.was_killed else "died"
            why = f"its supervisor {how} ({supervisor.status})"
            reason = "kill" if leaving else None
            self._on_unreported_death(worker, why, reason, lost=not leaving, dismissed=dismissed)
        supervisor.workers.clear()

    def finish_jobs_of_unknown_workers(self, supervisors: Iterable[SupervisorProcess]) -> None:
        """End the jobs of workers that no supervisor has. `supervisors`: all, also those that died a moment ago."""
        known = {id(worker) for supervisor in supervisors for worker in supervisor.workers.values()}
        for worker in self._dispatch.busy_workers():
            if id(worker) not in known:
                self._on_unreported_death(worker, UNREPORTED_DEATH_STATUS)

    def _on_forked(self, supervisor: SupervisorProcess, fact: Forked, fds: list[int]) -> None:
        sock, reads, writes, *shelf = fds
        worker = WorkerChannel(
            supervisor.queue,
            fact.slot,
            fact.pid,
            fact.incarnation,
            supervisor.version,
            (
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, sock),
                reads,
                writes,
                shelf[0] if shelf else -1,
            ),
            self._dispatch.on_frames,
            self._dispatch.on_channel_closed,
            supervisor.send,
        )
        supervisor.workers[fact.incarnation] = worker
        self._dispatch.add_worker(worker)
        self._facts.emit(events.WorkerForked(supervisor.queue, fact.slot, fact.pid))
        if supervisor.is_retired:  # it was on its way
            self._dispatch.retire(worker)
        if fact.is_ready:  # its first order need not wait until it says so itself
            self._dispatch.on_frames(worker, [_READY_FRAME])

    def _on_alive(self, supervisor: SupervisorProcess, fact: Alive) -> None:
        """End the jobs of workers that their supervisor no longer has, although it has not reported their death."""
        for incarnation in supervisor.workers.keys() - set(fact.incarnations):
            self._on_unreported_death(supervisor.workers.pop(incarnation), UNREPORTED_DEATH_STATUS)

    def _on_unreported_death(
        self,
        worker: WorkerChannel,
        why: str,
        reason: str | None = None,
        *,
        lost: bool = False,
        dismissed: bool = False,
    ) -> None:
        """A worker is gone and its supervisor did not say how. Without a `reason` its job ends as that of a crash."""
        worker.read_all()
        self._dispatch.on_channel_closed(worker)
        if dismissed and worker.current_job is None:
            worker.move_to("leaving")
        job, lease = worker.current_job.key if worker.current_job is not None else (0, 0)
        died = Died(
            *(worker.slot, worker.pid, worker.incarnation, job, lease, why, int(signal.SIGKILL)),
            was_ready=True,
            reason=reason,
            is_lost=lost,
        )
        died.duration = monotonic() - worker.since
        self._on_died(worker, died)

    def _on_stalled(self, worker: WorkerChannel | None, fact: StallChanged) -> None:
        if worker is None or worker.current_job is None or worker.current_job.key != (fact.job, fact.lease):
            return
        if worker.current_job.is_stalled == fact.stalled:  # it was the job before it that stalled
            return
        worker.current_job.is_stalled = fact.stalled
        self._facts.emit(events.JobStallChanged(*worker.current_job.event_fields, fact.stalled))

    def _on_answer(self, token: int, done: bool, text: str) -> None:
        waiting = self.pending_answers.pop(token, None)
        if waiting is not None and not waiting.done():
            waiting.set_result((done, text))

    def _on_died(self, worker: WorkerChannel, died: Died) -> None:
        left = worker.state == "leaving" or (worker.state == "booting" and died.status == "exit 0")
        held = self._dispatch.held_jobs.get(died.job)
        job = held.job if held is not None else None
        verdict = self._dispatch.on_worker_died(worker, died)
        why = verdict or (("threads" if worker.has_leaked_threads else "left") if left else "while idle")
        self._facts.emit(
            events.WorkerDied(
                worker.queue,
                worker.slot,
                worker.pid,
                died.job,
                died.status,
                why,
                died.swept,
                job.task if job is not None else "",
                job.attempt if job is not None else 0,
                tuple(died.stuck),
                tuple(died.foreign),
            )
        )
