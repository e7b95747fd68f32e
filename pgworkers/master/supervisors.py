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
from pgworkers.facts import Facts
from pgworkers.master import orphans, silence
from pgworkers.master.child import Supervisor
from pgworkers.master.crew import Worker
from pgworkers.master.dispatch import Dispatch
from pgworkers.master.held import Held
from pgworkers.process.budget import Budget
from pgworkers.process.frames import Frame
from pgworkers.settings import Settings
from pgworkers.supervisor.messages import (
    Boot,
    Booted,
    BootFailed,
    Died,
    Dropped,
    Fact,
    Forked,
    Resting,
    Scale,
    Stack,
    Stalled,
    Stop,
    Suspended,
)
from pgworkers.worker.messages import Kind

_READY = Frame(Kind.READY, 0, 0, b"")


class Supervisors:
    """All of them: one per queue, with a restart budget each, and those that newer code is replacing."""

    def __init__(
        self,
        settings: Settings,
        facts: Facts,
        dispatch: Dispatch,
        boots: dict[str, Boot],
        version: str,
        term: int,
    ) -> None:
        self._settings = settings
        self._facts = facts
        self._dispatch = dispatch
        self._boots = boots
        self._version = version
        self._term = term  # descriptor of the page that says until when leases hold
        self._host = next(iter(boots.values())).host
        self._budgets: dict[str, Budget] = {}
        self._current: dict[str, Supervisor] = {}
        self._retiring: list[Supervisor] = []
        self._burying: set[asyncio.Task[None]] = set()
        self._leaving = False
        self._watched = monotonic()
        self.guests: set[int] = set()  # children that somebody else in this process waits for
        self.errors: dict[str, str] = {}  # why a queue has no workers
        self.answers: dict[int, asyncio.Future[tuple[bool, str]]] = {}  # who waits for one, by token

    def start(self) -> None:
        for name in self._boots:
            self._start(name)

    def scale(self, queue: str, workers: int) -> None:
        self._boots[queue] = msgspec.structs.replace(self._boots[queue], workers=workers)
        if queue in self._current:
            self._current[queue].send(Scale(workers))

    def knows(self, queue: str) -> bool:
        return queue in self._boots

    def target(self, queue: str) -> int:
        return self._boots[queue].workers if queue in self._boots else 0

    def stop_job(self, worker: Worker, held: Held, reason: str, *, now: bool = False) -> None:
        """Send a wish down, naming job and lease."""
        ask, raise_ = (0.0, 0.0) if now else (self._settings.ask_grace, self._settings.raise_grace)
        worker.tell(Stop(worker.slot, *held.key, reason, ask, raise_))

    async def replace(self, boots: dict[str, Boot], version: str) -> list[str]:
        """Newer code: a new supervisor for each queue, one by one; the old one leaves when its jobs are done.

        A queue whose new supervisor cannot boot keeps its old one; its name and reason are returned.
        """
        refused = []
        self._version = version
        for queue in [name for name in self._boots if name not in boots]:
            del self._boots[queue]
            self._retire(self._current.pop(queue, None))
        for queue, boot in boots.items():
            if self._leaving:
                break  # a drain began meanwhile: what it hangs up on must not be replaced
            fresh = Supervisor(boot, version, self._term, self._heard, self._died)
            self._facts.tell(events.SupervisorStarted(queue, fresh.pid))
            self._retiring.append(fresh)  # not the one to restart, until it has proved itself
            while not (fresh.booted or fresh.failure or fresh.process.returncode is not None):
                await asyncio.sleep(0.02)
            if not fresh.booted or self._leaving:
                refused.append(f"queue {queue}: {fresh.failure or fresh.status}")
                fresh.hang_up()
                continue
            self._boots[queue] = boot
            self._retiring.remove(fresh)
            old = self._current.get(queue)  # now: another one may have died and begun meanwhile
            self._current[queue] = fresh
            self._retire(old)
        return refused

    def leave(self) -> None:
        """Start nothing any more."""
        self._leaving = True
        for name in self._boots:
            self.scale(name, 0)

    def hang_up(self) -> None:
        self._leaving = True
        for supervisor in self._all():
            supervisor.hang_up()

    def kill(self) -> None:
        """A supervisor that does not leave when its socket closes is stopped or broken."""
        for supervisor in self._all():
            supervisor.killed = True
            supervisor.process.kill()

    @property
    def alive(self) -> bool:
        return bool(self._current or self._retiring or self._burying)

    @property
    def pids(self) -> set[int]:
        """Children that are neither strays nor to be reaped by the way."""
        return {supervisor.pid for supervisor in self._all()} | self.guests

    def watch(self) -> None:
        """Called twice a second: a supervisor that says nothing is frozen; it is killed, its jobs are handed back."""
        now = monotonic()
        if now - self._watched > 2.0:  # it was we who stood still: hear them first
            for supervisor in self._all():
                supervisor.heard = now
        self._watched = now
        for supervisor in self._all():
            silence.look_at(supervisor, now, self._settings, self._facts, self.errors)

    def silent(self) -> list[str]:
        return [supervisor.queue for supervisor in self._all() if supervisor.silent]

    def reap(self) -> None:
        """Take the zombies that nobody else waits for."""
        orphans.reap(self.pids)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _all(self) -> list[Supervisor]:
        return [*self._current.values(), *self._retiring]

    def _start(self, queue: str) -> None:
        if self._leaving or queue in self._current or queue not in self._boots:
            return
        supervisor = Supervisor(self._boots[queue], self._version, self._term, self._heard, self._died)
        self._current[queue] = supervisor
        self._facts.tell(events.SupervisorStarted(queue, supervisor.pid))

    def _retire(self, old: Supervisor | None) -> None:
        if old is None:
            return
        self._retiring.append(old)
        old.retired = True
        old.send(Scale(0))
        for worker in list(old.workers.values()):
            self._dispatch.retire(worker)
        self._let_go(old)

    def _let_go(self, supervisor: Supervisor) -> None:
        """A retired supervisor without workers has nothing left to do."""
        if supervisor.retired and supervisor.booted and not supervisor.workers:
            supervisor.hang_up()

    def _heard(self, supervisor: Supervisor, fact: Fact, fds: list[int]) -> None:
        match fact:
            case Booted():
                supervisor.booted = True
                self._budget(supervisor.queue).ready()
                self.errors.pop(supervisor.queue, None)
                self._facts.tell(events.SupervisorBooted(supervisor.queue, supervisor.pid, fact.seconds))
                self._let_go(supervisor)
            case BootFailed():
                supervisor.failure = fact.error
                if supervisor is self._current.get(supervisor.queue):
                    self.errors[supervisor.queue] = fact.error
                self._facts.tell(events.SupervisorFailed(supervisor.queue, fact.error, fact.traceback))
            case Forked():
                self._forked(supervisor, fact, fds)
                fds = []
            case Died():
                gone = supervisor.workers.pop(fact.slot, None)
                if gone is not None:
                    self._bury(gone, fact)
                self._let_go(supervisor)
            case Stalled():
                stalled = supervisor.workers.get(fact.slot)
                if (
                    stalled is not None
                    and stalled.held is not None
                    and stalled.held.key == (fact.job, fact.lease)
                    and stalled.held.stalled != fact.stalled  # else the one before it stalled
                ):
                    stalled.held.stalled = fact.stalled
                    self._facts.tell(events.JobStalled(*stalled.held.named, fact.stalled))
            case Dropped():
                self._facts.tell(events.OutputDropped(supervisor.queue, fact.count))
            case Resting():
                self._facts.tell(events.WorkersResting(supervisor.queue, fact.seconds, fact.deaths))
            case Stack():
                self._answered(fact.token, True, fact.text)
            case Suspended():
                self._answered(fact.token, fact.done, fact.text)
        for fd in fds:
            os.close(fd)

    def _answered(self, token: int, done: bool, text: str) -> None:
        waiting = self.answers.pop(token, None)
        if waiting is not None and not waiting.done():
            waiting.set_result((done, text))

    def _forked(self, supervisor: Supervisor, fact: Forked, fds: list[int]) -> None:
        sock, reads, writes, *shelf = fds
        worker = Worker(
            supervisor.queue,
            fact.slot,
            fact.pid,
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
        supervisor.workers[fact.slot] = worker
        self._dispatch.joined(worker)
        self._facts.tell(events.WorkerForked(supervisor.queue, fact.slot, fact.pid))
        if supervisor.retired:  # it was on its way
            self._dispatch.retire(worker)
        if fact.ready:  # its first order need not wait until it says so itself
            self._dispatch.heard(worker, [_READY])

    def _bury(self, worker: Worker, died: Died) -> None:
        left = worker.state == "leaving" or (worker.state == "booting" and died.status == "exit 0")
        held = self._dispatch.held.get(died.job)
        job = held.claimed if held is not None else None
        verdict = self._dispatch.died(worker, died)
        why = verdict or ("left" if left else "while idle")
        self._facts.tell(
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
            )
        )

    def _died(self, supervisor: Supervisor) -> None:
        task = asyncio.get_running_loop().create_task(self._after_death(supervisor))
        self._burying.add(task)
        task.add_done_callback(self._burying.discard)

    async def _after_death(self, supervisor: Supervisor) -> None:
        """Wait until every worker of it is really gone, end their jobs, and start the next one."""
        queue = supervisor.queue
        was_current = self._current.get(queue) is supervisor
        if was_current:
            del self._current[queue]
        elif supervisor in self._retiring:
            self._retiring.remove(supervisor)
        killed = await orphans.sweep(self._host, lambda: self.pids)
        if killed:
            self._facts.tell(events.OrphansKilled(killed))
        for worker in supervisor.workers.values():
            worker.catch_up()
            self._dispatch.recover(worker)
            if (self._leaving or not was_current) and worker.held is None:
                worker.become("leaving")  # it was told to go with its supervisor
            job, lease = worker.held.key if worker.held is not None else (0, 0)
            why = f"the death of its supervisor ({supervisor.status})"
            # Killed by us, or on the way out: the job is handed back. Killed by somebody, perhaps the job itself: a crash.
            reason = "kill" if supervisor.killed or self._leaving else None
            died = Died(
                worker.slot, worker.pid, job, lease, why, int(signal.SIGKILL), ready=True, reason=reason
            )
            died.duration = monotonic() - worker.since
            self._bury(worker, died)
        supervisor.workers.clear()
        again = was_current and not self._leaving
        pause = self._budget(queue).died(monotonic(), supervisor.booted) if again else None
        self._facts.tell(events.SupervisorDied(queue, supervisor.pid, supervisor.status, pause))
        if (
            pause is not None
        ):  # nothing to bury any more: a drain does not wait for a restart that never comes
            asyncio.get_running_loop().call_later(pause, self._start, queue)

    def _budget(self, queue: str) -> Budget:
        s = self._settings
        return self._budgets.setdefault(queue, Budget(s.restart_intensity, s.restart_period, s.restart_cap))
