"""One host: its parts are made and connected here, and run until the host is asked to leave. Wiring only."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
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
from pgworkers.job.hosts import register_host
from pgworkers.linux import prctl
from pgworkers.linux.sd_notify import ServiceNotifier
from pgworkers.master import gauges, orphan_processes, signals
from pgworkers.master.batch_completion import BatchCompleter
from pgworkers.master.boot import BootPlan, RunOptions, ServedApp
from pgworkers.master.burst import BurstWatcher
from pgworkers.master.claimer import Claimer
from pgworkers.master.connection import ReconnectingConnection
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.drain import Drainer
from pgworkers.master.duty_assembly import make_duties
from pgworkers.master.finisher import Finisher
from pgworkers.master.handler_metrics_page import HandlerMetricsPage
from pgworkers.master.held_job import HeldJob
from pgworkers.master.housekeeping import Housekeeper, HousekeepingLoop, StatisticsWriter
from pgworkers.master.leadership import Leadership
from pgworkers.master.lease_keeper import LeaseKeeper
from pgworkers.master.lifecycle import HostLifecycle, HostTasks
from pgworkers.master.lost_claims import LostClaims
from pgworkers.master.metrics_directory import create_metrics_directory
from pgworkers.master.notifications import HintRouter, NotificationListener
from pgworkers.master.operator_requests import OperatorRequests
from pgworkers.master.reload import Reloader
from pgworkers.master.reporter import Reporter
from pgworkers.master.scaling import Scaler, cooldown_of
from pgworkers.master.status import HostStatus
from pgworkers.master.supervisors import SupervisorPool
from pgworkers.master.systemd import SystemdNotifier
from pgworkers.master.worker_channel import WorkerChannel
from pgworkers.observe.statistics import Statistics
from pgworkers.postgres.dsn import with_environment_password
from pgworkers.postgres.statements import Query
from pgworkers.states import ConnectionRole, HostState
from pgworkers.supervisor.messages import Boot
from pgworkers.supervisor.restart_budget import RestartBudget


class Host:
    def __init__(
        self,
        *,
        host_id: str,
        plan: BootPlan,
        options: RunOptions,
        events: EventBus,
        metrics_address: str = "",
        count_capped_metrics: Callable[[int], None] = lambda count: None,
        systemd_socket: ServiceNotifier | None = None,
    ) -> None:
        settings = plan.settings
        self._id = host_id
        self._plan = plan
        self._options = options
        self._events = events
        self._metrics_address = metrics_address
        self._served = ServedApp(plan.app, plan.queues)
        self._lease_deadline = LeaseDeadlineWriter()
        self._lifecycle = HostLifecycle(events)
        self._tasks = HostTasks(self._lifecycle)
        self._connections = {
            role: ReconnectingConnection(role, plan.direct_dsn or plan.dsn, settings, events)
            for role in ConnectionRole
        }
        claim_connection = self._connections[ConnectionRole.CLAIM]
        finish_connection = self._connections[ConnectionRole.FINISH]
        listen_connection = self._connections[ConnectionRole.LISTEN]
        leadership_connection = self._connections[ConnectionRole.LEADERSHIP]

        # Jobs: claim, dispatch, finish.
        self._finisher = Finisher(
            host_id,
            finish_connection,
            events,
            settings.finish_batch_size,
            cooldown_of(settings),
            log_args=settings.log_args,
        )
        self._dispatcher = Dispatcher(
            settings,
            events,
            {task.name: task for task in plan.app.tasks},
            plan.queues,
            self._finisher,
            on_capacity=self._on_capacity,
            send_stop=self._send_stop,
        )
        self._claimer = Claimer(
            host_id, claim_connection, self._dispatcher, events, settings, self._may_start_jobs
        )
        self._finisher.on_claims_possible = self._claimer.wake_for_all_queues
        self._lost_claims = LostClaims(
            host_id, self._connections, self._dispatcher, self._finisher, settings, self._database_time
        )

        # Processes.
        self._supervisors = SupervisorPool(
            host_id=host_id,
            settings=settings,
            events=events,
            dispatcher=self._dispatcher,
            lease_deadline_fd=self._lease_deadline.fd,
            hurry=self._lifecycle.hurry,
            start_background=self._tasks.start_background,
        )
        self._reporter = Reporter(
            host_id=host_id,
            config=options.config,
            settings=settings,
            boot_settings=self._boot_settings,
            events=events,
            spared=self._supervisors.other_children,
        )
        self._finisher.report_results_to(self._reporter.on_results)

        # Metrics that handlers report with prometheus_client. Without /metrics, they stay in the memory of their process.
        self._metrics_directory = create_metrics_directory(host_id) if metrics_address else ""
        self.handler_metrics = HandlerMetricsPage(
            self._metrics_directory,
            host_id=host_id,
            spared=self._supervisors.other_children,
            on_capped=count_capped_metrics,
            budget=RestartBudget(settings.restart_limit, settings.restart_period, settings.restart_max_delay),
        )

        self._scaler = Scaler(
            host_id=host_id,
            connection=claim_connection,
            settings=settings,
            served=self._served,
            lifecycle=self._lifecycle,
            dispatcher=self._dispatcher,
            supervisors=self._supervisors,
            database_time=self._database_time,
            wake_claimer=self._claimer.wake_for_all_queues,
            events=events,
        )
        self._supervisors.set_queues(self._boot_messages(), plan.app.version)

        # Leadership.
        self._leadership = Leadership(
            host_id, leadership_connection, events, settings, self._has_renewed_for, self._database_time
        )
        self._duties = make_duties(
            host_id,
            self._leadership,
            events,
            settings,
            may_rescue=lambda: self._has_renewed_for(settings.lease_duration),
            database_time=self._database_time,
            buffers=self._dispatcher.buffers,
        )
        self._batch_completer = BatchCompleter(self._leadership, lambda: self._leadership.is_leader)

        # The host's row, and what it shows.
        self.status = HostStatus(
            lifecycle=self._lifecycle,
            served=self._served,
            label=settings.host_label,
            schema_text=plan.schema_text,
            dispatcher=self._dispatcher,
            finisher=self._finisher,
            supervisors=self._supervisors,
            leadership=self._leadership,
            connections=self._connections,
        )
        listener = NotificationListener(host_id=host_id, schema=settings.schema, events=events)
        self._lease_keeper = LeaseKeeper(
            host_id=host_id,
            connection=listen_connection,
            listener=listener,
            dispatcher=self._dispatcher,
            settings=settings,
            snapshot=self.status.snapshot,
            registration=self._registration,
            on_renewed=self._on_renewed,
            are_workers_up=self.status.are_workers_up,
        )

        # Operators.
        self._systemd = SystemdNotifier(systemd_socket or ServiceNotifier(), self.status)
        events.subscribe(self._systemd, HostStateChanged)
        self._operator_requests = OperatorRequests(
            host_id=host_id,
            connection=claim_connection,
            dispatcher=self._dispatcher,
            supervisors=self._supervisors,
            renew_now=self._lease_keeper.renew_now,
            events=events,
        )
        self._reloader = Reloader(
            options=options,
            settings=settings,
            served=self._served,
            connection=claim_connection,
            lifecycle=self._lifecycle,
            dispatcher=self._dispatcher,
            supervisors=self._supervisors,
            scaler=self._scaler,
            systemd=self._systemd,
            reporter=self._reporter,
            boot_messages=self._boot_messages,
            registration=self._registration,
            wake_claimer=self._claimer.wake_for_all_queues,
            events=events,
        )
        listener.on_hint = HintRouter(
            host_id=host_id,
            dispatcher=self._dispatcher,
            claimer=self._claimer,
            scaler=self._scaler,
            duties=self._duties,
            lease_keeper=self._lease_keeper,
            batch_completer=self._batch_completer,
            operator_requests=self._operator_requests,
        ).route

        # Periodic work, and the end.
        burst = None
        if options.is_burst:
            burst = BurstWatcher(
                host_id=host_id,
                executor=leadership_connection,
                served=self._served,
                settings=settings,
                lifecycle=self._lifecycle,
                dispatcher=self._dispatcher,
                finisher=self._finisher,
                supervisors=self._supervisors,
            )
        housekeeper = Housekeeper(
            status=self.status,
            lifecycle=self._lifecycle,
            tasks=self._tasks,
            dispatcher=self._dispatcher,
            supervisors=self._supervisors,
            systemd=self._systemd,
            lease_keeper=self._lease_keeper,
            connections=self._connections,
            embedded_server=plan.embedded_server,
            burst=burst,
        )
        self.housekeeping = HousekeepingLoop(
            events, lambda: self.status.is_quiet(is_burst=options.is_burst), self._systemd.watchdog_seconds
        )
        self.housekeeping.add(housekeeper.tick)
        statistics = Statistics()
        events.subscribe(statistics, AttemptStarted, AttemptEnded)
        self._statistics_writer = StatisticsWriter(finish_connection, statistics)
        self._drainer = Drainer(
            host_id=host_id,
            settings=settings,
            lifecycle=self._lifecycle,
            dispatcher=self._dispatcher,
            supervisors=self._supervisors,
            leadership=self._leadership,
            finisher=self._finisher,
            lost_claims=self._lost_claims,
            statistics_writer=self._statistics_writer,
            lease_keeper=self._lease_keeper,
            reporter=self._reporter,
            remove_host_on=leadership_connection,
            events=events,
        )

    @property
    def has_failed(self) -> bool:
        return self._lifecycle.has_failed

    async def serve(self) -> None:
        """Run from the first process to the last."""
        signals.install_handlers(
            self._lifecycle,
            resize=self._scaler.resize,
            log_state=self.status.log_state,
            log_stacks=self._operator_requests.log_all_stacks,
            reload=self._reloader.request,
        )
        prctl.become_subreaper()
        killed, remaining = await orphan_processes.kill_former_hosts(self._id)
        if killed or remaining:
            self._events.emit(FormerHostProcessesKilled(killed, remaining))
        try:
            if not await self._lease_keeper.register(self._lifecycle):
                why = f"{self._lifecycle.leave_reason}; the database had not answered yet"
                self._lifecycle.move_to(HostState.GONE, why)
                return
            await self._scaler.scale_once()
            self._supervisors.start()
            self._reporter.serve_app(self._served.app)
            self._start_parts()
            self._lifecycle.move_to(HostState.RUNNING, f"host {self._id}, pid {os.getpid()}")
            await self._lifecycle.wait_for_leave()
            await self._drainer.drain()
        finally:
            await self._tasks.cancel_all()
            for connection in self._connections.values():
                await connection.close()
            self.handler_metrics.close()
            self._reporter.close()

    def _start_parts(self) -> None:
        for part in (
            self._finisher.run(),
            self._claimer.run(),
            self._lost_claims.run(),
            self._lease_keeper.run(),
            self._leadership.run(),
            self._duties.run(self._leadership),
            self._scaler.run(),
            self._reloader.run(),
            self._operator_requests.run(),
            self._batch_completer.run(),
            self._statistics_writer.run(),
            gauges.measure_worker_memory(self._dispatcher, self._events),
            self.housekeeping.run(),
        ):
            self._tasks.start_part(part)
        if self._options.should_watch_files:
            directory = Path(self._options.config.partition(":")[0]).parent
            self._tasks.start_part(self._reloader.watch_files(directory))

    def _boot_messages(self) -> dict[str, Boot]:
        """The first message to the supervisor of each queue."""
        settings = self._boot_settings()
        return {
            name: Boot(
                config=self._options.config,
                queue=spec,
                workers=self._scaler.starting_workers(name, spec),
                settings=settings,
                host=self._id,
                label=self._plan.settings.host_label,
                version=self._served.app.version,
                metrics_directory=self._metrics_directory,
                uses_prometheus=self._served.app.uses_prometheus,
            )
            for name, spec in self._served.queues.items()
        }

    def _boot_settings(self) -> dict[str, Any]:
        """The settings for a process that imports the app, with the address of the database."""
        return asdict(self._plan.settings) | {
            "dsn": with_environment_password(self._plan.dsn),
            "direct_dsn": "",
        }

    def _registration(self) -> Query[Any]:
        """Writes the host's row."""
        app = self._served.app
        return register_host(
            self._id,
            name=socket.gethostname(),
            pid=os.getpid(),
            label=self._plan.settings.host_label,
            app=app.name,
            version=app.version,
            queues=list(self._served.queues),
            tasks=[task.name for task in app.tasks],
            lease_seconds=self._plan.settings.lease_duration,
            metrics=self._metrics_address,
        )

    def _on_renewed(self, sent: float) -> None:
        """Extend the leases, counted from the sending of the renewal.

        Nothing starts and nothing is claimed after them.
        """
        has_lapsed = not self._lease_deadline.is_held()
        self._lease_deadline.extend_to(sent + self._plan.settings.lease_duration)
        if has_lapsed:
            self._claimer.wake_for_all_queues()

    def _may_start_jobs(self) -> bool:
        return self._lease_deadline.is_held() and self._finisher.has_capacity()

    def _has_renewed_for(self, period: float) -> bool:
        """True if this host has renewed without a gap for `period` seconds.

        Only then may it judge that others are lost.
        """
        return self._lease_keeper.streak.has_lasted(period, monotonic())

    def _database_time(self) -> datetime | None:
        """The database's time as this host estimates it; None before the first renewal."""
        return self._lease_keeper.database_clock.read(boottime())

    def _on_capacity(self, queue: str) -> None:
        self._claimer.on_capacity(queue)

    def _send_stop(self, worker: WorkerChannel, held: HeldJob, reason: StopReason) -> None:
        self._supervisors.stop_job(worker, held, reason)
