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
from pgworkers.events import (
    AttemptEnded,
    AttemptStarted,
    EventBus,
    FormerHostProcessesKilled,
    HostStateChanged,
)
from pgworkers.ipc.lease_deadline import LeaseDeadlineWriter
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.job.notification_payloads import (
    BatchChanged,
    DueSoon,
    HostHint,
    JobChanged,
    JobsReady,
    QueueChanged,
    Reconnected,
    RequestCreated,
    ViewWatched,
)
from pgworkers.linux import prctl
from pgworkers.linux.sd_notify import ServiceNotifier
from pgworkers.master import gauges, orphans, signals, status
from pgworkers.master.all_duties import make_duties
from pgworkers.master.batch_completion import BatchCompleter
from pgworkers.master.boot import BootPlan, RunOptions
from pgworkers.master.claimer import Claimer
from pgworkers.master.connection import ConnectionRole, ReconnectingConnection
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.drain import drain
from pgworkers.master.finisher import Finisher
from pgworkers.master.held_job import HeldJob
from pgworkers.master.housekeeping import Housekeeper, HousekeepingLoop, StatisticsWriter
from pgworkers.master.leadership import Leadership
from pgworkers.master.lease_keeper import LeaseKeeper, register, registration
from pgworkers.master.lost_claims import LostClaims
from pgworkers.master.operator_requests import OperatorRequests
from pgworkers.master.process_usage import ProcessUsage
from pgworkers.master.reload import Reloader
from pgworkers.master.scaling import Scaler, cooldown_of
from pgworkers.master.status import is_serving
from pgworkers.master.supervisors import SupervisorPool
from pgworkers.master.systemd import SystemdNotifier
from pgworkers.master.worker_channel import WorkerChannel
from pgworkers.observe.statistics import Statistics
from pgworkers.postgres.dsn import with_environment_password
from pgworkers.supervisor.messages import Boot


class Host:
    def __init__(
        self,
        plan: BootPlan,
        options: RunOptions,
        facts: EventBus,
        boot_id: str,
        speaker: ServiceNotifier | None = None,
    ) -> None:
        settings = plan.settings
        self.id = boot_id
        self.plan = plan
        self.options = options
        self.settings = settings
        self.events = facts
        self.state = "starting"
        self.leave_reason = ""
        self.has_failed = False
        self.metrics_address = ""  # of /metrics, when there is one
        self.lease_deadline = LeaseDeadlineWriter()
        self.hurry = asyncio.Event()  # leave without waiting for running jobs
        self._leave_requested = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.connections = {
            role: ReconnectingConnection(role, plan.direct_dsn or plan.dsn, settings, facts)
            for role in ConnectionRole
        }
        self.finisher = Finisher(
            self.id,
            self.connections["finish"],
            facts,
            settings.finish_batch_size,
            cooldown_of(settings),
            log_args=settings.log_args,
        )
        self.dispatcher = Dispatcher(
            settings,
            facts,
            {task.name: task for task in plan.app.tasks},
            plan.queues,
            self.finisher,
            on_capacity=self._room,
            send_stop=self._stop_job,
        )
        self.scaler = Scaler(self)
        self.claimer = Claimer(
            self.id, self.connections["claim"], self.dispatcher, facts, settings, self._may_start_jobs
        )
        self.finisher.on_written = self.claimer.wake_for_all_queues
        self.lost_claims = LostClaims(
            self.id, self.connections, self.dispatcher, self.finisher, settings, self.database_time
        )
        self.lease_keeper = LeaseKeeper(
            self.id,
            self.connections["listen"],
            self.dispatcher,
            facts,
            settings,
            snapshot=partial(status.snapshot, self, ProcessUsage()),
            registration=partial(registration, self),
            on_hint=self.route,
            on_notifications_read=self.claimer.on_notifications_read,
            on_renewed=self._on_renewed,
            are_workers_up=lambda: status.are_workers_up(self),
        )
        self.leadership = Leadership(
            self.id,
            self.connections["leadership"],
            facts,
            settings,
            self.has_renewed_for,
            self.database_time,
        )
        self.duties = make_duties(
            self.id,
            self.leadership,
            facts,
            settings,
            may_rescue=lambda: self.has_renewed_for(settings.lease_duration),
            database_time=self.database_time,
            buffers=self.dispatcher.buffers,
        )
        self.supervisors = SupervisorPool(
            settings,
            facts,
            self.dispatcher,
            self.boot_messages(),
            plan.app.version,
            self.lease_deadline.fd,
            self.start_background,
        )
        self.systemd = SystemdNotifier(speaker or ServiceNotifier())
        self.housekeeping = HousekeepingLoop(facts, self.is_quiet, self.systemd.watchdog_seconds)
        self.housekeeper = Housekeeper(self)
        self.housekeeping.add(self.housekeeper.tick)
        facts.subscribe(self.systemd, HostStateChanged)
        self.reloader = Reloader(self)
        self.operator_requests = OperatorRequests(self)
        self.batch_completer = BatchCompleter(self.leadership, lambda: self.leadership.is_leader)
        statistics = Statistics()
        facts.subscribe(statistics, AttemptStarted, AttemptEnded)
        self.statistics_writer = StatisticsWriter(self.connections["finish"], statistics)

    def boot_messages(self) -> dict[str, Boot]:
        """What each supervisor is told first."""
        settings = asdict(self.settings) | {
            "dsn": with_environment_password(self.plan.dsn),
            "direct_dsn": "",
        }
        return {
            name: Boot(
                self.options.config,
                spec,
                self.scaler.starting_workers(name, spec),
                settings,
                self.id,
                self.settings.host_label,
                self.plan.app.version,
            )
            for name, spec in self.plan.queues.items()
        }

    @property
    def is_leaving(self) -> bool:
        return self._leave_requested.is_set()

    def leave(self, why: str, *, now: bool = False) -> None:
        """Drain; `now`: without waiting for running jobs."""
        self.leave_reason = self.leave_reason or why
        if now:
            self.hurry.set()
        self._leave_requested.set()

    def move_to(self, state: str, why: str) -> None:
        self.state = state
        self.events.emit(HostStateChanged(state, why))

    async def serve(self) -> None:
        """From the first process to the last."""
        signals.install_handlers(self)
        prctl.become_subreaper()
        killed, left = await orphans.kill_former_hosts(self.id)
        if killed or left:
            self.events.emit(FormerHostProcessesKilled(killed, left))
        if not await register(self):
            self.move_to("gone", f"{self.leave_reason}; the database had not answered yet")
            for line in self.connections.values():
                await line.close()
            return
        await self.scaler.scale_once()
        self.supervisors.start()
        for part in (
            self.finisher.run(),
            self.claimer.run(),
            self.lost_claims.run(),
            self.lease_keeper.run(),
            self.leadership.run(),
            self.duties.run(self.leadership),
            self.scaler.run(),
            self.reloader.run(),
            self.operator_requests.run(),
            self.batch_completer.run(),
            self.statistics_writer.run(),
            gauges.measure_worker_memory(self.dispatcher, self.events),
            self.housekeeping.run(),
        ):
            self.start_part(part)
        if self.options.should_watch_files:
            self.start_part(self.reloader.watch_files(Path(self.options.config.partition(":")[0]).parent))
        self.move_to("running", f"host {self.id}, pid {os.getpid()}")
        try:
            await self._leave_requested.wait()
            await drain(self)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for line in self.connections.values():
                await line.close()

    # -- parts -----------------------------------------------------------------------------------------------------

    def start_part(self, part: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(part)
        task.add_done_callback(self._on_part_ended)
        self._tasks.append(task)

    def start_background(self, errand: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """What may take seconds and then ends, while the parts go on."""
        task = asyncio.get_running_loop().create_task(errand)
        task.add_done_callback(self._on_background_ended)
        self._tasks.append(task)
        return task

    def _on_part_ended(self, task: asyncio.Task[None]) -> None:
        """A part never ends by itself. If one does, the host must not go on half alive."""
        if task.cancelled() or (self.is_leaving and task.exception() is None):
            return
        error = task.exception()
        self.has_failed = True
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": "a part of the master failed", "exception": error})
        self.leave(f"a part of the master failed: {error!r}")

    def _on_background_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        if not task.cancelled() and task.exception() is not None:
            self._on_part_ended(task)

    def is_quiet(self) -> bool:
        """Does nothing happen here that somebody may be waiting to see?"""
        return not self.options.is_burst and is_serving(self) and not self.dispatcher.busy_workers()

    def has_renewed_for(self, period: float) -> bool:
        """Has this host renewed without a gap for so long? Only then may it call others lost."""
        return self.lease_keeper.streak.has_lasted(period, monotonic())

    def database_time(self) -> datetime | None:
        """The database's time, to judge others by; None before the first renewal."""
        return self.lease_keeper.database_clock.read(boottime())

    def route(self, hint: HostHint) -> None:
        """Look where a notification points. Any login can send one, so it is never believed: only rows are."""
        match hint:
            case JobsReady(queue, "", _):
                self.claimer.on_notification(queue)
            case JobsReady(queue, host, is_one_job):
                if host == self.id:
                    self.claimer.on_notification_for_this_host(queue, is_one_job=is_one_job)
            case QueueChanged(queue):
                if queue in self.dispatcher.buffers:
                    self.claimer.on_notification(queue)
                    self.scaler.wake()
                self.duties.on_due_soon()
            case JobChanged(job):
                if job in self.dispatcher.held_jobs:
                    self.lease_keeper.renew_soon()
            case BatchChanged(batch):
                self.batch_completer.on_notification(batch)
            case RequestCreated():
                self.operator_requests.wake()
            case ViewWatched():
                self.lease_keeper.on_watched()
            case DueSoon():
                self.duties.on_due_soon()
            case Reconnected():
                self.claimer.on_reconnect()
                self.scaler.wake()
                self.operator_requests.wake()
                self.duties.on_due_soon()

    def _may_start_jobs(self) -> bool:
        return self.lease_deadline.is_held() and self.finisher.has_capacity()

    def _on_renewed(self, sent: float) -> None:
        """The leases hold so long, counted from the sending: nothing begins beyond it, and nothing is claimed."""
        lapsed = not self.lease_deadline.is_held()
        self.lease_deadline.extend_to(sent + self.settings.lease_duration)
        if lapsed:
            self.claimer.wake_for_all_queues()

    def _room(self, queue: str) -> None:
        self.claimer.on_capacity(queue)

    def _stop_job(self, worker: WorkerChannel, held: HeldJob, reason: StopReason) -> None:
        at_once = reason is StopReason.KILL or self.hurry.is_set()
        self.supervisors.stop_job(worker, held, reason, at_once=at_once)
