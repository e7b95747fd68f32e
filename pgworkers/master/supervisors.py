"""The supervisors of this host: started, watched, and started again.

The master execs them (it never forks itself). What they say of their workers goes to `hearing`. When a supervisor dies, its
workers die with it by PDEATHSIG; their ends are written only when each is really gone, so that no job runs twice at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from pgworkers import lives
from pgworkers.clock import monotonic
from pgworkers.facts import Facts
from pgworkers.master import orphans, silence
from pgworkers.master.child import Supervisor
from pgworkers.master.crew import Worker
from pgworkers.master.dispatch import Dispatch
from pgworkers.master.hearing import Hearing
from pgworkers.master.held import Held
from pgworkers.process.budget import Budget
from pgworkers.settings import Settings
from pgworkers.supervisor.messages import Boot, Booted, BootFailed, Fact, Scale, Stop


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
        beside: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """`beside` starts an errand of the host: if that fails, the host says so and leaves."""
        self._settings = settings
        self._facts = facts
        self._dispatch = dispatch
        self._boots = boots
        self._version = version
        self._beside = beside
        self._term = term  # descriptor of the page that says until when leases hold
        self._host = next(iter(boots.values())).host
        self._budgets: dict[str, Budget] = {}
        self._current: dict[str, Supervisor] = {}
        self._retiring: list[Supervisor] = []
        self._dead: list[Supervisor] = []  # whose workers are not all gone yet
        self._burying: set[asyncio.Task[None]] = set()
        self._leaving = False
        self._watched = monotonic()
        self.guests: set[int] = set()  # children that somebody else in this process waits for
        self.errors: dict[str, str] = {}  # why a queue has no workers
        self.tracebacks: dict[str, str] = {}  # of those errors that have one
        self.hearing = Hearing(facts, dispatch)

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
        worker.tell(Stop(worker.slot, worker.incarnation, *held.key, reason, ask, raise_))

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
            self._facts.tell(lives.SupervisorStarted(queue, fresh.pid))
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
        """Called with every pulse: a supervisor that says nothing is frozen; it is killed, its jobs are handed back."""
        now = monotonic()
        if now - self._watched > 2.0:  # it was we who stood still: hear them first
            for supervisor in self._all():
                supervisor.heard = now
        self._watched = now
        for supervisor in self._all():
            silence.look_at(supervisor, now, self._settings, self._facts, self.errors)
        self.hearing.reconcile([*self._all(), *self._dead])

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
        self._facts.tell(lives.SupervisorStarted(queue, supervisor.pid))

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
                self.tracebacks.pop(supervisor.queue, None)
                self._facts.tell(lives.SupervisorBooted(supervisor.queue, supervisor.pid, fact.seconds))
                self._let_go(supervisor)
            case BootFailed():
                supervisor.failure = fact.error
                if supervisor is self._current.get(supervisor.queue):
                    self.errors[supervisor.queue] = fact.error
                    self.tracebacks[supervisor.queue] = fact.traceback
                self._facts.tell(lives.SupervisorFailed(supervisor.queue, fact.error, fact.traceback))
            case _:
                self.hearing.heard(supervisor, fact, fds)
                self._let_go(supervisor)

    def _died(self, supervisor: Supervisor) -> None:
        task = self._beside(self._after_death(supervisor))
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
        self._dead.append(supervisor)
        killed = await orphans.sweep(self._host, lambda: self.pids)
        if killed:
            self._facts.tell(lives.OrphansKilled(killed))
        self.hearing.bury_all(
            supervisor,
            leaving=self._leaving,
            dismissed=self._leaving or not was_current,
        )
        self._dead.remove(supervisor)
        again = was_current and not self._leaving
        pause = self._budget(queue).died(monotonic(), supervisor.booted) if again else None
        self._facts.tell(lives.SupervisorDied(queue, supervisor.pid, supervisor.status, pause))
        if (
            pause is not None
        ):  # nothing to bury any more: a drain does not wait for a restart that never comes
            asyncio.get_running_loop().call_later(pause, self._start, queue)

    def _budget(self, queue: str) -> Budget:
        s = self._settings
        return self._budgets.setdefault(queue, Budget(s.restart_intensity, s.restart_period, s.restart_cap))
