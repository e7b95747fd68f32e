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

from pgworkers import events, lives
from pgworkers.clock import monotonic
from pgworkers.facts import Facts
from pgworkers.master.child import Supervisor
from pgworkers.master.crew import Worker
from pgworkers.master.dispatch import Dispatch
from pgworkers.process.frames import Frame
from pgworkers.supervisor.messages import (
    Alive,
    Died,
    Dropped,
    Fact,
    Forked,
    Resting,
    Stack,
    Stalled,
    Suspended,
)
from pgworkers.worker.messages import Kind

#: How a worker died whose death was not reported.
UNREPORTED = "a death that its supervisor did not report"
_READY = Frame(Kind.READY, 0, 0, b"")


class Hearing:
    """Facts of workers, on their way from the supervisors to the dispatcher."""

    def __init__(self, facts: Facts, dispatch: Dispatch) -> None:
        self._facts = facts
        self._dispatch = dispatch
        self.answers: dict[int, asyncio.Future[tuple[bool, str]]] = {}  # who waits for one, by token

    def heard(self, supervisor: Supervisor, fact: Fact, fds: list[int]) -> None:
        match fact:
            case Forked():
                self._forked(supervisor, fact, fds)
                return  # the descriptors are the worker's now
            case Died():
                gone = supervisor.workers.pop(fact.incarnation, None)
                if gone is not None:
                    self._bury(gone, fact)
            case Stalled():
                self._stalled(supervisor.workers.get(fact.incarnation), fact)
            case Alive():
                self._census(supervisor, fact)
            case Dropped():
                self._facts.tell(events.OutputDropped(supervisor.queue, fact.count))
            case Resting():
                self._facts.tell(
                    lives.WorkersResting(supervisor.queue, fact.seconds, fact.deaths, fact.ready)
                )
            case Stack():
                self._answered(fact.token, True, fact.text)
            case Suspended():
                self._answered(fact.token, fact.done, fact.text)
        for fd in fds:
            os.close(fd)

    def bury_all(self, supervisor: Supervisor, *, leaving: bool, dismissed: bool) -> None:
        """The workers of a dead supervisor, which are gone with it, and their jobs.

        The jobs are handed back, which costs them nothing. Unless the host is `leaving`, each counts a loss: one of them
        may be what kills supervisors. `dismissed`: who had nothing to do was told to go with its supervisor.
        """
        for worker in supervisor.workers.values():
            how = "was killed because it said nothing" if supervisor.killed else "died"
            why = f"its supervisor {how} ({supervisor.status})"
            reason = "kill" if leaving else None
            self._bury_unreported(worker, why, reason, lost=not leaving, dismissed=dismissed)
        supervisor.workers.clear()

    def reconcile(self, supervisors: Iterable[Supervisor]) -> None:
        """End the jobs of workers that no supervisor has. `supervisors`: all, also those that died a moment ago."""
        known = {id(worker) for supervisor in supervisors for worker in supervisor.workers.values()}
        for worker in self._dispatch.busy():
            if id(worker) not in known:
                self._bury_unreported(worker, UNREPORTED)

    def _forked(self, supervisor: Supervisor, fact: Forked, fds: list[int]) -> None:
        sock, reads, writes, *shelf = fds
        worker = Worker(
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
            self._dispatch.heard,
            self._dispatch.recover,
            supervisor.send,
        )
        supervisor.workers[fact.incarnation] = worker
        self._dispatch.joined(worker)
        self._facts.tell(lives.WorkerForked(supervisor.queue, fact.slot, fact.pid))
        if supervisor.retired:  # it was on its way
            self._dispatch.retire(worker)
        if fact.ready:  # its first order need not wait until it says so itself
            self._dispatch.heard(worker, [_READY])

    def _census(self, supervisor: Supervisor, fact: Alive) -> None:
        """End the jobs of workers that their supervisor no longer has, although it has not reported their death."""
        for incarnation in supervisor.workers.keys() - set(fact.incarnations):
            self._bury_unreported(supervisor.workers.pop(incarnation), UNREPORTED)

    def _bury_unreported(
        self,
        worker: Worker,
        why: str,
        reason: str | None = None,
        *,
        lost: bool = False,
        dismissed: bool = False,
    ) -> None:
        """A worker is gone and its supervisor did not say how. Without a `reason` its job ends as that of a crash."""
        worker.catch_up()
        self._dispatch.recover(worker)
        if dismissed and worker.held is None:
            worker.become("leaving")
        job, lease = worker.held.key if worker.held is not None else (0, 0)
        died = Died(
            *(worker.slot, worker.pid, worker.incarnation, job, lease, why, int(signal.SIGKILL)),
            ready=True,
            reason=reason,
            lost=lost,
        )
        died.duration = monotonic() - worker.since
        self._bury(worker, died)

    def _stalled(self, worker: Worker | None, fact: Stalled) -> None:
        if worker is None or worker.held is None or worker.held.key != (fact.job, fact.lease):
            return
        if worker.held.stalled == fact.stalled:  # it was the job before it that stalled
            return
        worker.held.stalled = fact.stalled
        self._facts.tell(events.JobStalled(*worker.held.named, fact.stalled))

    def _answered(self, token: int, done: bool, text: str) -> None:
        waiting = self.answers.pop(token, None)
        if waiting is not None and not waiting.done():
            waiting.set_result((done, text))

    def _bury(self, worker: Worker, died: Died) -> None:
        left = worker.state == "leaving" or (worker.state == "booting" and died.status == "exit 0")
        held = self._dispatch.held.get(died.job)
        job = held.claimed if held is not None else None
        verdict = self._dispatch.died(worker, died)
        why = verdict or (("threads" if worker.burns else "left") if left else "while idle")
        self._facts.tell(
            lives.WorkerDied(
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
