"""Starts the supervisors of this host, watches them, and restarts or replaces them.

The master execs them; it never forks. What they report about their workers goes to `worker_lifecycle`. When a supervisor
dies, its workers die with it by PDEATHSIG. Their results are written only when each process is gone, so that no job runs
twice at once. A supervisor that sends nothing is reported as unresponsive after half of its timeout, and killed after all
of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from pgworkers.clock import monotonic
from pgworkers.events import (
    EventBus,
    OrphansKilled,
    SupervisorBooted,
    SupervisorBootFailed,
    SupervisorDied,
    SupervisorStarted,
    SupervisorUnresponsive,
)
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.master import orphans
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.held_job import HeldJob
from pgworkers.master.supervisor_process import SupervisorProcess
from pgworkers.master.worker_channel import WorkerChannel
from pgworkers.master.worker_lifecycle import WorkerLifecycle
from pgworkers.settings import Settings
from pgworkers.supervisor.messages import Boot, Booted, BootFailed, Scale, StopJob, SupervisorFact
from pgworkers.supervisor.restart_budget import RestartBudget


class SupervisorPool:
    """One supervisor per queue, each with a restart budget, and those that a reload is replacing."""

    def __init__(
        self,
        *,
        host_id: str,
        settings: Settings,
        events: EventBus,
        dispatcher: Dispatcher,
        lease_deadline_fd: int,
        hurry: asyncio.Event,
        start_background: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """`lease_deadline_fd`: the shared page with the deadline of the leases. `hurry`: set if the host must leave now."""
        self._settings = settings
        self._events = events
        self._dispatcher = dispatcher
        self._boots: dict[str, Boot] = {}
        self._version = ""  # of the app
        self._start_background = start_background
        self._lease_deadline_fd = lease_deadline_fd
        self._hurry = hurry
        self._host_id = host_id
        self._budgets: dict[str, RestartBudget] = {}
        self._current: dict[str, SupervisorProcess] = {}
        self._retiring: list[SupervisorProcess] = []
        self._dead: list[SupervisorProcess] = []  # supervisors whose workers are not all gone yet
        self._cleanups: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._checked_at = monotonic()
        self.other_children: set[int] = set()  # children that other code in this process waits for
        self.errors: dict[str, str] = {}  # why a queue has no workers
        self.tracebacks: dict[str, str] = {}  # of those errors that have one
        self.workers = WorkerLifecycle(events, dispatcher)

    def set_queues(self, boots: dict[str, Boot], version: str) -> None:
        """Name the queues to serve, with the first message for the supervisor of each. Called once, before `start`."""
        self._boots, self._version = boots, version

    def start(self) -> None:
        for name in self._boots:
            self._start(name)

    def scale(self, queue: str, workers: int) -> None:
        self._boots[queue] = msgspec.structs.replace(self._boots[queue], workers=workers)
        if queue in self._current:
            self._current[queue].send(Scale(workers))

    def has_queue(self, queue: str) -> bool:
        return queue in self._boots

    def target_workers(self, queue: str) -> int:
        return self._boots[queue].workers if queue in self._boots else 0

    def stop_job(self, worker: WorkerChannel, held: HeldJob, reason: StopReason) -> None:
        """Ask the supervisor to stop a job, by its id and lease. A kill has no graces, nor has a host in a hurry."""
        has_graces = reason is not StopReason.KILL and not self._hurry.is_set()
        ask, raise_ = (self._settings.ask_grace, self._settings.raise_grace) if has_graces else (0.0, 0.0)
        worker.send_to_supervisor(
            StopJob(worker.slot, worker.incarnation, *held.key, reason.word, ask, raise_)
        )

    async def replace(self, boots: dict[str, Boot], version: str) -> list[str]:
        """Start a new supervisor for each queue, one by one. The old one leaves when its jobs are done.

        A queue whose new supervisor cannot boot keeps its old one. Returns the names and reasons of such queues.
        """
        refused = []
        self._version = version
        for queue in [name for name in self._boots if name not in boots]:
            del self._boots[queue]
            self._retire(self._current.pop(queue, None))
        for queue, boot in boots.items():
            if self._is_stopping:
                break  # a drain has started: what it closes must not be replaced
            fresh = self._launch(boot)
            self._events.emit(SupervisorStarted(queue, fresh.pid))
            self._retiring.append(fresh)  # not restarted until it has booted
            while not (fresh.is_booted or fresh.boot_error or fresh.process.returncode is not None):
                await asyncio.sleep(0.02)
            if not fresh.is_booted or self._is_stopping:
                refused.append(f"queue {queue}: {fresh.boot_error or fresh.status}")
                fresh.close()
                continue
            self._boots[queue] = boot
            self._retiring.remove(fresh)
            old = self._current.get(queue)  # read now: another one may have died and been started meanwhile
            self._current[queue] = fresh
            self._retire(old)
        return refused

    def stop_starting(self) -> None:
        """Start no more workers or supervisors."""
        self._is_stopping = True
        for name in self._boots:
            self.scale(name, 0)

    def close(self) -> None:
        self._is_stopping = True
        for supervisor in self._all():
            supervisor.close()

    def kill(self) -> None:
        """Kill all supervisors: one that does not exit when its socket closes is stopped or broken."""
        for supervisor in self._all():
            supervisor.was_killed = True
            supervisor.process.kill()

    @property
    def is_alive(self) -> bool:
        return bool(self._current or self._retiring or self._cleanups)

    @property
    def spared_pids(self) -> set[int]:
        """Children that `reap_strays` and `kill_strays` must leave alone."""
        return {supervisor.pid for supervisor in self._all()} | self.other_children

    def check(self) -> None:
        """Kill supervisors that send nothing, so that their jobs are released. Called in every round of housekeeping."""
        now = monotonic()
        if now - self._checked_at > 2.0:  # this process did not run: read their messages first
            for supervisor in self._all():
                supervisor.last_message_at = now
        self._checked_at = now
        for supervisor in self._all():
            _check_one(supervisor, now, self._settings, self._events, self.errors)
        self.workers.finish_jobs_of_unknown_workers([*self._all(), *self._dead])

    def unresponsive_queues(self) -> list[str]:
        return [supervisor.queue for supervisor in self._all() if supervisor.is_unresponsive]

    def reap_strays(self) -> None:
        """Reap zombies that no other code waits for."""
        orphans.reap_strays(self.spared_pids)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _all(self) -> list[SupervisorProcess]:
        return [*self._current.values(), *self._retiring]

    def _start(self, queue: str) -> None:
        if self._is_stopping or queue in self._current or queue not in self._boots:
            return
        supervisor = self._launch(self._boots[queue])
        self._current[queue] = supervisor
        self._events.emit(SupervisorStarted(queue, supervisor.pid))

    def _launch(self, boot: Boot) -> SupervisorProcess:
        """Start a supervisor in the first lane that no living supervisor of the queue has."""
        taken = {one.metrics_lane for one in (*self._all(), *self._dead) if one.queue == boot.queue.name}
        lane = next(number for number in range(len(taken) + 1) if number not in taken)
        boot = msgspec.structs.replace(boot, metrics_lane=lane)
        return SupervisorProcess(
            boot, self._version, self._lease_deadline_fd, self._on_message, self._on_exit
        )

    def _retire(self, old: SupervisorProcess | None) -> None:
        if old is None:
            return
        self._retiring.append(old)
        old.is_retired = True
        old.send(Scale(0))
        for worker in list(old.workers.values()):
            self._dispatcher.retire(worker)
        self._close_if_empty(old)

    def _close_if_empty(self, supervisor: SupervisorProcess) -> None:
        """A retired supervisor without workers has nothing left to do."""
        if supervisor.is_retired and supervisor.is_booted and not supervisor.workers:
            supervisor.close()

    def _on_message(self, supervisor: SupervisorProcess, message: SupervisorFact, fds: list[int]) -> None:
        match message:
            case Booted():
                supervisor.is_booted = True
                self._budget(supervisor.queue).record_ready()
                self.errors.pop(supervisor.queue, None)
                self.tracebacks.pop(supervisor.queue, None)
                self._events.emit(SupervisorBooted(supervisor.queue, supervisor.pid, message.seconds))
                self._close_if_empty(supervisor)
            case BootFailed():
                supervisor.boot_error = message.error
                if supervisor is self._current.get(supervisor.queue):
                    self.errors[supervisor.queue] = message.error
                    self.tracebacks[supervisor.queue] = message.traceback
                self._events.emit(SupervisorBootFailed(supervisor.queue, message.error, message.traceback))
            case _:
                self.workers.on_message(supervisor, message, fds)
                self._close_if_empty(supervisor)

    def _on_exit(self, supervisor: SupervisorProcess) -> None:
        task = self._start_background(self._clean_up_after(supervisor))
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)

    async def _clean_up_after(self, supervisor: SupervisorProcess) -> None:
        """Wait until every worker of a dead supervisor is gone, end their jobs, and start the next supervisor."""
        queue = supervisor.queue
        was_current = self._current.get(queue) is supervisor
        if was_current:
            del self._current[queue]
        elif supervisor in self._retiring:
            self._retiring.remove(supervisor)
        self._dead.append(supervisor)
        killed = await orphans.kill_strays(self._host_id, lambda: self.spared_pids)
        if killed:
            self._events.emit(OrphansKilled(killed))
        self.workers.on_supervisor_died(
            supervisor,
            leaving=self._is_stopping,
            dismissed=self._is_stopping or not was_current,
        )
        self._dead.remove(supervisor)
        again = was_current and not self._is_stopping
        pause = self._budget(queue).record_death(monotonic(), supervisor.is_booted) if again else None
        self._events.emit(SupervisorDied(queue, supervisor.pid, supervisor.status, pause))
        if pause is not None:  # a timer, not this task: a drain waits for this task and starts nothing
            asyncio.get_running_loop().call_later(pause, self._start, queue)

    def _budget(self, queue: str) -> RestartBudget:
        s = self._settings
        return self._budgets.setdefault(
            queue, RestartBudget(s.restart_limit, s.restart_period, s.restart_max_delay)
        )


def _check_one(
    supervisor: SupervisorProcess, now: float, settings: Settings, events: EventBus, errors: dict[str, str]
) -> None:
    """Report or kill a supervisor that is frozen, starved, or hangs in the import of the app."""
    quiet = now - supervisor.last_message_at
    if (
        not supervisor.is_booted
        and quiet > settings.import_timeout + settings.supervisor_timeout
        and not supervisor.was_killed
    ):
        supervisor.was_killed = True  # its own timeout did not fire: the import hangs in C
        supervisor.boot_error = "importing the app hangs; no worker was started"
        errors[supervisor.queue] = supervisor.boot_error
        supervisor.process.kill()
    if not supervisor.is_booted or quiet < settings.supervisor_timeout / 2:
        supervisor.is_unresponsive = False
        return
    if not supervisor.is_unresponsive:
        supervisor.is_unresponsive = True
        events.emit(SupervisorUnresponsive(supervisor.queue, supervisor.pid, quiet))
    if quiet >= settings.supervisor_timeout and not supervisor.was_killed:
        supervisor.was_killed = True
        supervisor.process.kill()
