"""One host: the parts put together, the signals heard, and the drain.

The drain: stop claiming, give back what has not started, let running jobs finish while renewal and cancel go on; at
its end climb the ladder, wait for each process to be really dead, write what is left, remove the host's row.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import uuid
from collections.abc import Coroutine
from dataclasses import asdict
from typing import Any

import msgspec
import psycopg

from pgworkers.clock import monotonic, show_seconds
from pgworkers.events import Facts, HostChanged
from pgworkers.job import host as host_rows
from pgworkers.job.show import unfinished
from pgworkers.master.boot import Plan
from pgworkers.master.claims import Claims
from pgworkers.master.crew import Worker
from pgworkers.master.dispatch import Dispatch
from pgworkers.master.duties import Duties
from pgworkers.master.ends import Ends
from pgworkers.master.held import Held
from pgworkers.master.line import Line, LineDown
from pgworkers.master.options import RunOptions
from pgworkers.master.renewal import Renewal
from pgworkers.master.supervisors import Supervisors
from pgworkers.observe.metrics import HOST_STATES, WORKER_STATES, Metrics
from pgworkers.postgres.statements import Query
from pgworkers.process import prctl, titles
from pgworkers.supervisor.messages import Boot

TICK = 0.5


class Host:
    def __init__(self, plan: Plan, options: RunOptions, facts: Facts, metrics: Metrics, boot_id: str) -> None:
        settings = plan.settings
        self.id = boot_id
        self.state = "starting"
        self._plan = plan
        self._options = options
        self._facts = facts
        self._metrics = metrics
        self._lines = {
            role: Line(role, plan.dsn, settings, facts) for role in ("claim", "finish", "listen", "duty")
        }
        self.ends = Ends(self.id, self._lines["finish"], facts, settings.finish_batch)
        self.dispatch = Dispatch(
            settings,
            facts,
            {task.name: task for task in plan.app.tasks},
            plan.queues,
            self.ends,
            plan.app.version,
            want_claim=self._want_claim,
            stop=self._stop_job,
        )
        self.claims = Claims(self.id, self._lines["claim"], self.dispatch, facts, settings)
        self.renewal = Renewal(
            self.id,
            self._lines["listen"],
            self.dispatch,
            facts,
            settings,
            self._view,
            self._registration,
            self._noticed,
        )
        self.duties = Duties(
            self.id,
            self._lines["duty"],
            facts,
            settings,
            lambda: self.renewal.unbroken.for_at_least(settings.lease, monotonic()),
        )
        boots = {
            name: Boot(
                options.config,
                spec,
                spec.workers,
                asdict(settings) | {"dsn": plan.dsn},
                self.id,
                settings.label,
            )
            for name, spec in plan.queues.items()
        }
        self.supervisors = Supervisors(settings, facts, self.dispatch, boots)
        self.ticked = monotonic()
        self._leave = asyncio.Event()
        self._why = ""
        self._now = False
        self._hurry = asyncio.Event()
        self._parts: list[asyncio.Task[None]] = []
        metrics.on_scrape(self._measure)

    async def serve(self) -> None:
        """From the first process to the last."""
        self._hear_signals()
        prctl.inherit_orphans()
        await self._register()
        self.supervisors.start()
        for part in (self.ends.run(), self.claims.run(), self.renewal.run(), self.duties.run(), self._tick()):
            self._start(part)
        self._become("running", f"host {self.id}, pid {os.getpid()}")
        try:
            await self._leave.wait()
            await self._drain()
        finally:
            for task in self._parts:
                task.cancel()
            await asyncio.gather(*self._parts, return_exceptions=True)
            for line in self._lines.values():
                await line.close()

    def leave(self, why: str, *, now: bool = False) -> None:
        """Drain; `now`: without waiting for running jobs."""
        self._why = self._why or why
        if now:
            self._now = True
            self._hurry.set()
        self._leave.set()

    # -- draining --------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        settings = self._plan.settings
        self._become("draining", f"{self._why}; {len(self.dispatch.busy())} running")
        self.dispatch.claiming = False
        self.supervisors.leave()
        self.dispatch.give_back_all("the host is draining")
        for worker in self.dispatch.all_workers():
            if worker.state == "idle":
                worker.become("leaving")
                worker.hang_up()
        try:
            async with asyncio.timeout(settings.drain):
                await self._until_idle_or_hurried()
        except TimeoutError:
            pass
        if self.dispatch.busy():
            self._become("stopping", f"{len(self.dispatch.busy())} still running")
            for worker in self.dispatch.busy():
                self.dispatch.wish(worker, "drain")
            try:
                async with asyncio.timeout(settings.ask_grace + settings.raise_grace + 2.0):
                    while self.dispatch.busy():
                        if self._now:
                            self._kill_all()
                        await asyncio.sleep(0.02)
            except TimeoutError:
                pass
        await self._write_the_rest()
        self.supervisors.hang_up()
        try:
            async with asyncio.timeout(3.0):
                while self.supervisors.alive:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            self.supervisors.kill()
            while self.supervisors.alive:
                await asyncio.sleep(0.01)
        await self._write_the_rest()
        try:
            async with asyncio.timeout(settings.statement_timeout):
                await self._lines["duty"].ask(host_rows.remove(self.id))
        except (LineDown, TimeoutError, psycopg.Error):
            pass  # its row goes stale and is swept by others
        self._become("gone", "drained")

    async def _until_idle_or_hurried(self) -> None:
        while self.dispatch.busy() and not self._hurry.is_set():
            await asyncio.sleep(0.02)

    async def _write_the_rest(self) -> None:
        """A database that is down must not hold the exit: the jobs are rescued later by their lease."""
        try:
            async with asyncio.timeout(self._plan.settings.statement_timeout + 1.0):
                await self.ends.idle.wait()
        except TimeoutError:
            self._facts.tell(
                HostChanged(self.state, f"{len(self.ends)} ends could not be written; they will be rescued")
            )

    def _kill_all(self) -> None:
        for worker in self.dispatch.busy():
            if worker.held is not None and worker.held.wish != "kill":
                worker.held.wish = worker.held.wish if worker.held.wish in ("cancel", "lease") else "kill"
                self.supervisors.stop_job(worker, worker.held, "kill", now=True)

    # -- parts -----------------------------------------------------------------------------------------------------

    def _start(self, part: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(part)
        task.add_done_callback(self._part_ended)
        self._parts.append(task)

    def _part_ended(self, task: asyncio.Task[None]) -> None:
        """A part never ends by itself. If one does, the host must not go on half alive."""
        if not task.cancelled() and not self._leave.is_set():
            error = task.exception()
            self._facts.tell(HostChanged(self.state, f"a part of the master failed: {error!r}; leaving"))
            if error is not None:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "part failed", "exception": error}
                )
            self.failed = True
            self.leave("a part of the master failed")

    failed = False

    async def _tick(self) -> None:
        """Once or twice a second: the title, strangers' zombies, the end of a burst."""
        while True:
            self.ticked = monotonic()
            busy, total = (
                len(self.dispatch.busy()),
                sum(self.supervisors.target(q) for q in self._plan.queues),
            )
            titles.show(f"pgworkers: master {self._plan.app.name} [{self.state}] {busy}/{total} busy")
            self.supervisors.reap()
            if self._options.burst and self.state == "running" and not busy and not len(self.ends):
                await self._end_burst()
            await asyncio.sleep(TICK)

    async def _end_burst(self) -> None:
        if self.supervisors.errors:
            self.failed = True
            self.leave("burst: a queue cannot start: " + "; ".join(self.supervisors.errors.values()))
            return
        try:
            left = await self._lines["duty"].ask(unfinished(list(self._plan.queues)))
        except (LineDown, psycopg.Error):
            return
        if left == 0 and not self.dispatch.busy():
            self.leave("burst: the queues are empty")

    async def _register(self) -> None:
        while True:
            try:
                await self._lines["listen"].ask(self._registration())
                return
            except LineDown:
                await self._lines["listen"].rest()

    def _registration(self) -> Query[Any]:
        return host_rows.register(
            self.id,
            socket.gethostname(),
            os.getpid(),
            self._plan.settings.label,
            self._plan.app.name,
            self._plan.app.version,
            list(self._plan.queues),
            self._plan.settings.lease,
        )

    def _view(self) -> tuple[str, str]:
        now = monotonic()
        rows = [
            {
                "queue": w.queue,
                "slot": w.slot,
                "pid": w.pid,
                "state": w.state,
                "job_id": w.held.claimed.id if w.held else None,
                "task": w.held.claimed.task if w.held else None,
                "since": round(now - w.since, 3),
                "jobs": w.jobs,
            }
            for w in self.dispatch.all_workers()
        ]
        return self.state, msgspec.json.encode(rows).decode()

    def _noticed(self, payload: str) -> None:
        kind, _, what = payload.partition(":")
        if kind in ("ready", "reconnected", "queue"):
            self.claims.poke()
        elif kind == "cancel" and what.isdigit():
            self.dispatch.cancel(int(what))

    def _want_claim(self) -> None:
        self.claims.poke()

    def _stop_job(self, worker: Worker, held: Held, reason: str) -> None:
        self.supervisors.stop_job(worker, held, reason, now=self._now)

    def _become(self, state: str, why: str) -> None:
        self.state = state
        self._facts.tell(HostChanged(state, why))

    # -- signals ---------------------------------------------------------------------------------------------------

    def _hear_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: self.leave("SIGTERM"))
        loop.add_signal_handler(signal.SIGINT, self._interrupted)
        loop.add_signal_handler(signal.SIGQUIT, lambda: self.leave("SIGQUIT", now=True))
        loop.add_signal_handler(signal.SIGUSR1, self._log_state)
        loop.add_signal_handler(signal.SIGCHLD, self.supervisors.reap)
        loop.add_signal_handler(signal.SIGTTIN, lambda: self._resize(+1))
        loop.add_signal_handler(signal.SIGTTOU, lambda: self._resize(-1))
        loop.add_signal_handler(signal.SIGHUP, self._log_state)

    def _interrupted(self) -> None:
        self.leave("SIGINT", now=self._leave.is_set())

    def _resize(self, by: int) -> None:
        """One worker more or less in every queue; an idle one goes first."""
        if self._leave.is_set():
            return
        for queue in self._plan.queues:
            target = min(self._plan.settings.max_workers, max(1, self.supervisors.target(queue) + by))
            self.supervisors.scale(queue, target)
            desk = self.dispatch.desks[queue]
            while len(desk.workers) > target and desk.idle:
                worker = desk.idle.pop()
                worker.become("leaving")
                worker.hang_up()

    def _log_state(self) -> None:
        now = monotonic()
        for worker in self.dispatch.all_workers():
            job = f" #{worker.held.claimed.id} {worker.held.claimed.task}" if worker.held else ""
            why = f"{worker.name} pid {worker.pid} {worker.state}{job} for {show_seconds(now - worker.since)}"
            self._facts.tell(HostChanged(self.state, why))
        lines = ", ".join(f"{role} {'up' if line.up else 'down'}" for role, line in self._lines.items())
        self._facts.tell(HostChanged(self.state, f"{len(self.ends)} ends waiting; connections: {lines}"))

    # -- being looked at ---------------------------------------------------------------------------------------------

    def answer(self, path: str, accept: str) -> tuple[int, str, bytes]:
        path, _, query = path.partition("?")
        if path == "/metrics":
            body, kind = self._metrics.scrape(accept)
            return 200, kind, body
        if path == "/livez":
            return 200, "text/plain", b"ok\n"
        if path == "/readyz":
            reasons = self.not_ready()
            text = (
                "\n".join(reasons) + "\n"
                if reasons and "verbose" in query
                else "not ready\n"
                if reasons
                else "ok\n"
            )
            return (503 if reasons else 200), "text/plain", text.encode()
        return 404, "text/plain", b"/metrics /livez /readyz\n"

    def not_ready(self) -> list[str]:
        reasons = [
            f"database: the {role} connection is down" for role, line in self._lines.items() if not line.up
        ]
        if self.state != "running":
            reasons.append(f"the master is {self.state}")
        if not any(w.state in ("idle", "busy") for w in self.dispatch.all_workers()):
            reasons.append("no worker is ready")
        reasons += [f"queue {queue}: {error}" for queue, error in self.supervisors.errors.items()]
        return reasons

    def _measure(self) -> None:
        now = monotonic()
        for name, desk in self.dispatch.desks.items():
            for state in WORKER_STATES:
                self._metrics.workers.labels(name, state).set(sum(w.state == state for w in desk.workers))
            began = [w.held.started for w in desk.busy() if w.held is not None and w.held.started is not None]
            self._metrics.running.labels(name).set(len(began))
            self._metrics.oldest.labels(name).set(now - min(began) if began else 0)
        for state in HOST_STATES:
            self._metrics.state.labels(state).set(self.state == state)


def new_boot_id() -> str:
    """Who owns leases: a fresh one for each life of a master, never a hostname or pid."""
    return str(uuid.uuid4())
