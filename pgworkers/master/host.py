"""One host: the parts put together and kept going until it is told to leave."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from pgworkers.clock import boottime, monotonic
from pgworkers.events import HostChanged, JobEnded, JobStarted
from pgworkers.facts import Facts
from pgworkers.job.notifications import (
    BatchChanged,
    DueSoon,
    HostHint,
    JobChanged,
    QueueChanged,
    Ready,
    Reconnected,
    RequestMade,
    Watched,
)
from pgworkers.lives import FormerHostEnded
from pgworkers.master import orphans, sights, signals, view
from pgworkers.master.all_duties import all_duties
from pgworkers.master.boot import Plan
from pgworkers.master.claims import Claims
from pgworkers.master.crew import Worker
from pgworkers.master.dispatch import Dispatch
from pgworkers.master.drain import drain
from pgworkers.master.ends import Ends
from pgworkers.master.errands import Errands
from pgworkers.master.held import Held
from pgworkers.master.joining import join, registration
from pgworkers.master.leadership import Leadership
from pgworkers.master.line import Line
from pgworkers.master.minutes import Minutes
from pgworkers.master.options import RunOptions
from pgworkers.master.overlooked import Overlooked
from pgworkers.master.pulse import Pulse
from pgworkers.master.reload import Reloads
from pgworkers.master.renewal import Renewal
from pgworkers.master.requests import Requests
from pgworkers.master.scaling import Scaling, cooling
from pgworkers.master.service import Service, serves
from pgworkers.master.settling import Settling
from pgworkers.master.supervisors import Supervisors
from pgworkers.observe.statistics import Statistics
from pgworkers.postgres.dsn import sealed
from pgworkers.process import prctl
from pgworkers.process.measure import Usage
from pgworkers.process.notify import Speaker
from pgworkers.process.term import OwnTerm
from pgworkers.supervisor.messages import Boot

ROLES = ("claim", "finish", "listen", "leadership")


class Host:
    def __init__(
        self, plan: Plan, options: RunOptions, facts: Facts, boot_id: str, speaker: Speaker | None = None
    ) -> None:
        settings = plan.settings
        self.id = boot_id
        self.plan = plan
        self.options = options
        self.settings = settings
        self.facts = facts
        self.state = "starting"
        self.why = ""
        self.failed = False
        self.metrics_address = ""  # of /metrics, when there is one
        self.term = OwnTerm()
        self.hurry = asyncio.Event()  # leave without waiting for running jobs
        self._leave = asyncio.Event()
        self._parts: list[asyncio.Task[None]] = []
        self.lines = {role: Line(role, plan.direct or plan.dsn, settings, facts) for role in ROLES}
        self.ends = Ends(
            self.id,
            self.lines["finish"],
            facts,
            settings.finish_batch,
            cooling(settings),
            log_args=settings.log_args,
        )
        self.dispatch = Dispatch(
            settings,
            facts,
            {task.name: task for task in plan.app.tasks},
            plan.queues,
            self.ends,
            want_claim=self._room,
            stop=self._stop_job,
        )
        self.scaling = Scaling(self)
        self.claims = Claims(self.id, self.lines["claim"], self.dispatch, facts, settings, self._may_claim)
        self.ends.on_written = self.claims.poke
        self.overlooked = Overlooked(self.id, self.lines, self.dispatch, self.ends, settings, self.reckoned)
        self.renewal = Renewal(
            self.id,
            self.lines["listen"],
            self.dispatch,
            facts,
            settings,
            view=partial(view.told, self, Usage()),
            registration=partial(registration, self),
            on_hint=self._hinted,
            on_heard=self.claims.all_heard,
            on_renewed=self.renewed,
            settled=lambda: view.settled(self),
        )
        self.leadership = Leadership(
            self.id, self.lines["leadership"], facts, settings, self._unbroken, self.reckoned
        )
        self.duties = all_duties(
            self.id,
            self.leadership,
            facts,
            settings,
            may_rescue=lambda: self._unbroken(settings.lease),
            reckoned=self.reckoned,
            desks=self.dispatch.desks,
        )
        self.supervisors = Supervisors(
            settings, facts, self.dispatch, self.boots(), plan.app.version, self.term.fd, self.beside
        )
        self.service = Service(speaker or Speaker())
        self.pulse = Pulse(facts, self._calm, self.service.watchdog)
        self.errands = Errands(self)
        self.pulse.add(self.errands.tick)
        facts.listen(self.service, HostChanged)
        self.reloads = Reloads(self)
        self.requests = Requests(self)
        self.settling = Settling(self.leadership, lambda: self.leadership.leads)
        statistics = Statistics()
        facts.listen(statistics, JobStarted, JobEnded)
        self.minutes = Minutes(self.lines["finish"], statistics)

    def boots(self) -> dict[str, Boot]:
        """What each supervisor is told first."""
        settings = asdict(self.settings) | {"dsn": sealed(self.plan.dsn), "direct_dsn": ""}
        return {
            name: Boot(
                self.options.config,
                spec,
                self.scaling.workers(name, spec),
                settings,
                self.id,
                self.settings.label,
                self.plan.app.version,
            )
            for name, spec in self.plan.queues.items()
        }

    @property
    def leaving(self) -> bool:
        return self._leave.is_set()

    def leave(self, why: str, *, now: bool = False) -> None:
        """Drain; `now`: without waiting for running jobs."""
        self.why = self.why or why
        if now:
            self.hurry.set()
        self._leave.set()

    def become(self, state: str, why: str) -> None:
        self.state = state
        self.facts.tell(HostChanged(state, why))

    async def serve(self) -> None:
        """From the first process to the last."""
        signals.hear(self)
        prctl.inherit_orphans()
        killed, left = await orphans.end_former(self.id)
        if killed or left:
            self.facts.tell(FormerHostEnded(killed, left))
        if not await join(self):
            self.become("gone", f"{self.why}; the database had not answered yet")
            for line in self.lines.values():
                await line.close()
            return
        await self.scaling.once()
        self.supervisors.start()
        for part in (
            self.ends.run(),
            self.claims.run(),
            self.overlooked.run(),
            self.renewal.run(),
            self.leadership.run(),
            self.duties.run(self.leadership),
            self.scaling.run(),
            self.reloads.run(),
            self.requests.run(),
            self.settling.run(),
            self.minutes.run(),
            sights.watch_memory(self.dispatch, self.facts),
            self.pulse.run(),
        ):
            self._start(part)
        if self.options.reload:
            self._start(self.reloads.watch(Path(self.options.config.partition(":")[0]).parent))
        self.become("running", f"host {self.id}, pid {os.getpid()}")
        try:
            await self._leave.wait()
            await drain(self)
        finally:
            for task in self._parts:
                task.cancel()
            await asyncio.gather(*self._parts, return_exceptions=True)
            for line in self.lines.values():
                await line.close()

    # -- parts -----------------------------------------------------------------------------------------------------

    def _start(self, part: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(part)
        task.add_done_callback(self._part_ended)
        self._parts.append(task)

    def beside(self, errand: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """What may take seconds and then ends, while the parts go on."""
        task = asyncio.get_running_loop().create_task(errand)
        task.add_done_callback(self._errand_ended)
        self._parts.append(task)
        return task

    def _part_ended(self, task: asyncio.Task[None]) -> None:
        """A part never ends by itself. If one does, the host must not go on half alive."""
        if task.cancelled() or (self.leaving and task.exception() is None):
            return
        error = task.exception()
        self.failed = True
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": "a part of the master failed", "exception": error})
        self.leave(f"a part of the master failed: {error!r}")

    def _errand_ended(self, task: asyncio.Task[None]) -> None:
        self._parts.remove(task)
        if not task.cancelled() and task.exception() is not None:
            self._part_ended(task)

    def _calm(self) -> bool:
        """Does nothing happen here that somebody may be waiting to see?"""
        return not self.options.burst and serves(self) and not self.dispatch.busy()

    def _unbroken(self, period: float) -> bool:
        """Has this host renewed without a gap for so long? Only then may it call others lost."""
        return self.renewal.unbroken.for_at_least(period, monotonic())

    def reckoned(self) -> datetime | None:
        """The database's time, to judge others by; None before the first renewal."""
        return self.renewal.reckoning.at(boottime())

    def _hinted(self, hint: HostHint) -> None:
        """Look where a notification points. Any login can send one, so it is never believed: only rows are."""
        match hint:
            case Ready(queue, "", _):
                self.claims.heard(queue)
            case Ready(queue, host, is_one_job):
                if host == self.id:
                    self.claims.chosen(queue, is_one_job=is_one_job)
            case QueueChanged(queue):
                if queue in self.dispatch.desks:
                    self.claims.heard(queue)
                    self.scaling.poke()
                self.duties.heard()
            case JobChanged(job):
                if job in self.dispatch.held:
                    self.renewal.reread()
            case BatchChanged(batch):
                self.settling.heard(batch)
            case RequestMade():
                self.requests.poke()
            case Watched():
                self.renewal.watch()
            case DueSoon():
                self.duties.heard()
            case Reconnected():
                self.claims.forgotten()
                self.scaling.poke()
                self.requests.poke()
                self.duties.heard()

    def _may_claim(self) -> bool:
        return self.term.holds() and self.ends.may_claim()

    def renewed(self, sent: float) -> None:
        """The leases hold so long, counted from the sending: nothing begins beyond it, and nothing is claimed."""
        lapsed = not self.term.holds()
        self.term.move(sent + self.settings.lease)
        if lapsed:
            self.claims.poke()

    def _room(self, queue: str) -> None:
        self.claims.room(queue)

    def _stop_job(self, worker: Worker, held: Held, reason: str) -> None:
        self.supervisors.stop_job(worker, held, reason, now=reason == "kill" or self.hurry.is_set())
