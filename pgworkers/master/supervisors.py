"""The supervisors of this host: started, heard, buried and started again.

The master execs them (it never forks itself), hears facts on their control sockets and receives each new worker's
socket with `Forked`. When a supervisor dies, its workers die with it by PDEATHSIG; their ends are written only when each is
really gone, so that no job runs twice at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import msgspec

from pgworkers import events
from pgworkers.clock import monotonic
from pgworkers.events import Facts
from pgworkers.master.child import MARKER, Supervisor
from pgworkers.master.crew import Worker
from pgworkers.master.dispatch import Dispatch
from pgworkers.master.held import Held
from pgworkers.process import tree
from pgworkers.process.budget import Budget
from pgworkers.settings import Settings
from pgworkers.supervisor.messages import (
    Boot,
    Booted,
    BootFailed,
    Died,
    Fact,
    Forked,
    Resting,
    Scale,
    Stalled,
    Stop,
)


class Supervisors:
    """All of them, one per queue, with a restart budget each."""

    def __init__(
        self,
        settings: Settings,
        facts: Facts,
        dispatch: Dispatch,
        boots: dict[str, Boot],
    ) -> None:
        self._settings = settings
        self._facts = facts
        self._dispatch = dispatch
        self._boots = boots
        self._host = next(iter(boots.values())).host
        self._budgets = {
            name: Budget(settings.restart_intensity, settings.restart_period, settings.restart_cap)
            for name in boots
        }
        self._running: dict[str, Supervisor] = {}
        self._burying: set[asyncio.Task[None]] = set()
        self._leaving = False
        self.errors: dict[str, str] = {}  # why a queue has no workers

    def start(self) -> None:
        for name in self._boots:
            self._spawn(name)

    def scale(self, queue: str, workers: int) -> None:
        self._boots[queue] = msgspec.structs.replace(self._boots[queue], workers=workers)
        if queue in self._running:
            self._running[queue].send(Scale(workers))

    def target(self, queue: str) -> int:
        return self._boots[queue].workers

    def stop_job(self, worker: Worker, held: Held, reason: str, *, now: bool = False) -> None:
        """Send a wish down, naming job and lease."""
        supervisor = self._running.get(worker.queue)
        if supervisor is None or supervisor.workers.get(worker.slot) is not worker:
            return
        ask, raise_ = (0.0, 0.0) if now else (self._settings.ask_grace, self._settings.raise_grace)
        supervisor.send(Stop(worker.slot, *held.key, reason, ask, raise_))

    def leave(self) -> None:
        """Start nothing any more."""
        self._leaving = True
        for name in self._boots:
            self.scale(name, 0)

    def hang_up(self) -> None:
        self._leaving = True
        for supervisor in self._running.values():
            supervisor.hang_up()

    def kill(self) -> None:
        """A supervisor that does not leave when its socket closes is stopped or broken."""
        for supervisor in self._running.values():
            supervisor.process.kill()

    @property
    def alive(self) -> bool:
        return bool(self._running or self._burying)

    @property
    def pids(self) -> set[int]:
        return {supervisor.pid for supervisor in self._running.values()}

    def all_ready(self) -> bool:
        return all(name in self._running and self._running[name].booted for name in self._boots)

    async def sweep(self) -> None:
        """Kill and reap every process that a dead supervisor left: as the subreaper of the tree they are our children.

        Where the master is PID 1 it also inherits strangers: those are only reaped, never killed.
        """
        killed = 0
        while True:
            spared = self.pids | (strangers(self._host) if os.getpid() == 1 else set())
            now_killed, left = tree.kill_strays(spared)
            killed += now_killed
            if not left:
                break
            await asyncio.sleep(0.01)
        if killed:
            self._facts.tell(events.OrphansKilled(killed))

    def reap(self) -> None:
        """Take the zombies that nobody else waits for."""
        for child in tree.children(os.getpid()):
            if child not in self.pids:
                found = tree.stat(child)
                if found is not None and found.state == "Z":
                    tree.reap(child)

    def _spawn(self, queue: str) -> None:
        if self._leaving or queue in self._running:
            return
        supervisor = Supervisor(self._boots[queue], self._heard, self._died)
        self._running[queue] = supervisor
        self._facts.tell(events.SupervisorStarted(queue, supervisor.pid))

    def _heard(self, supervisor: Supervisor, fact: Fact, fds: list[int]) -> None:
        match fact:
            case Booted():
                supervisor.booted = True
                self._budgets[supervisor.queue].ready()
                self.errors.pop(supervisor.queue, None)
                self._facts.tell(events.SupervisorBooted(supervisor.queue, supervisor.pid, fact.seconds))
            case BootFailed():
                self.errors[supervisor.queue] = fact.error
                self._facts.tell(events.SupervisorFailed(supervisor.queue, fact.error, fact.traceback))
            case Forked():
                sock = socket.socket(fileno=fds.pop())
                worker = Worker(supervisor.queue, fact.slot, fact.pid, sock, self._dispatch.heard)
                supervisor.workers[fact.slot] = worker
                self._dispatch.joined(worker)
                self._facts.tell(events.WorkerForked(supervisor.queue, fact.slot, fact.pid))
            case Died():
                gone = supervisor.workers.pop(fact.slot, None)
                if gone is not None:
                    self._bury(gone, fact)
            case Stalled():
                stalled = supervisor.workers.get(fact.slot)
                if (
                    stalled is not None
                    and stalled.held is not None
                    and stalled.held.key == (fact.job, fact.lease)
                ):
                    stalled.held.stalled = fact.stalled
                    self._facts.tell(events.JobStalled(fact.job, fact.lease, supervisor.queue, fact.stalled))
            case Resting():
                self._facts.tell(events.WorkersResting(supervisor.queue, fact.seconds, fact.deaths))
        for fd in fds:
            os.close(fd)

    def _bury(self, worker: Worker, died: Died) -> None:
        left = worker.state == "leaving" or (worker.state == "booting" and died.status == "exit 0")
        verdict = self._dispatch.died(worker, died)
        why = verdict or ("left" if left else "while idle")
        self._facts.tell(
            events.WorkerDied(worker.queue, worker.slot, worker.pid, died.job, died.status, why, died.swept)
        )

    def _died(self, supervisor: Supervisor) -> None:
        task = asyncio.get_running_loop().create_task(self._after_death(supervisor))
        self._burying.add(task)
        task.add_done_callback(self._burying.discard)

    async def _after_death(self, supervisor: Supervisor) -> None:
        """Wait until every worker of it is really gone, end their jobs, and start the next one."""
        self._running.pop(supervisor.queue, None)
        await self.sweep()
        for worker in supervisor.workers.values():
            worker.drain_frames()
            if self._leaving and worker.held is None:
                worker.become("leaving")  # it was told to go with its supervisor
            job, lease = worker.held.key if worker.held is not None else (0, 0)
            why = f"the death of its supervisor ({supervisor.status})"
            duration = monotonic() - worker.since
            self._bury(
                worker,
                Died(
                    worker.slot,
                    worker.pid,
                    job,
                    lease,
                    why,
                    int(signal.SIGKILL),
                    ready=True,
                    duration=duration,
                ),
            )
        pause = (
            None if self._leaving else self._budgets[supervisor.queue].died(monotonic(), supervisor.booted)
        )
        self._facts.tell(events.SupervisorDied(supervisor.queue, supervisor.pid, supervisor.status, pause))
        if pause is not None:
            await asyncio.sleep(pause)
            self._spawn(supervisor.queue)


def strangers(host: str) -> set[int]:
    """Children of PID 1 that are not of this tree."""
    ours = set(tree.marked(MARKER, host))
    return {child for child in tree.children(os.getpid()) if child not in ours}
