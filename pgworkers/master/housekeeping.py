"""Periodic work of a host: its title, zombies, supervisors, systemd, the embedded server, a burst's end, statistics.

Everything that must be checked often runs in one wake-up, because waking a sleeping process costs more than the checks.
The loop runs every `BUSY_INTERVAL_SECONDS`, and every `QUIET_INTERVAL_SECONDS` while the host is quiet. What must not wait
for it wakes the event loop by itself: orders, reports, deaths and notifications. Renewals, scaling, statistics, memory and
lost claims have loops of their own, since they wait for the database or take longer.

This is the work of one host. Rows of the cluster are cleaned up by the leader (duties.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import psycopg

from pgworkers.clock import monotonic
from pgworkers.embedded.server import EmbeddedServer
from pgworkers.errors import PgworkersError
from pgworkers.events import EventBus, LoopLagMeasured
from pgworkers.linux import titles
from pgworkers.master.burst import BurstWatcher
from pgworkers.master.connection import ConnectionDown, QueryExecutor, ReconnectingConnection
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.lease_keeper import LeaseKeeper
from pgworkers.master.lifecycle import HostLifecycle, HostTasks
from pgworkers.master.status import HostStatus
from pgworkers.master.supervisors import SupervisorPool
from pgworkers.master.systemd import SystemdNotifier
from pgworkers.observe.statistics import SECONDS_PER_MINUTE, Statistics
from pgworkers.states import ConnectionRole

BUSY_INTERVAL_SECONDS = 0.25
QUIET_INTERVAL_SECONDS = 1.0
#: Without a connection for this long, an embedded server is started again.
EMBEDDED_SERVER_TIMEOUT_SECONDS = 3.0


def housekeeping_pause_seconds(is_quiet: bool, watchdog_seconds: float | None) -> float:
    """Seconds until the next round, at most a third of the watchdog's timeout. Pure."""
    pause = QUIET_INTERVAL_SECONDS if is_quiet else BUSY_INTERVAL_SECONDS
    return pause if watchdog_seconds is None else min(pause, watchdog_seconds / 3)


class HousekeepingLoop:
    """Calls all actions, one after the other, in every round. No action may wait."""

    def __init__(
        self, events: EventBus, is_quiet: Callable[[], bool], watchdog_seconds: float | None
    ) -> None:
        self._events = events
        self._is_quiet = is_quiet
        self._watchdog_seconds = watchdog_seconds
        self._actions: list[Callable[[], None]] = []

    def add(self, action: Callable[[], None]) -> None:
        self._actions.append(action)

    async def run(self) -> None:
        while True:
            for action in self._actions:
                action()
            pause = housekeeping_pause_seconds(self._is_quiet(), self._watchdog_seconds)
            due_at = monotonic() + pause
            await asyncio.sleep(pause)
            self._events.emit(LoopLagMeasured(monotonic() - due_at))  # what blocks the loop delays every job


class Housekeeper:
    """The actions that every host needs."""

    def __init__(
        self,
        *,
        status: HostStatus,
        lifecycle: HostLifecycle,
        tasks: HostTasks,
        dispatcher: Dispatcher,
        supervisors: SupervisorPool,
        systemd: SystemdNotifier,
        lease_keeper: LeaseKeeper,
        connections: Mapping[ConnectionRole, ReconnectingConnection],
        embedded_server: EmbeddedServer | None,
        burst: BurstWatcher | None,
    ) -> None:
        self._status = status
        self._lifecycle = lifecycle
        self._tasks = tasks
        self._dispatcher = dispatcher
        self._supervisors = supervisors
        self._systemd = systemd
        self._lease_keeper = lease_keeper
        self._connections = connections
        self._embedded_server = embedded_server
        self._burst = burst
        self._last_connected_at = monotonic()  # of any connection
        self._background_task: asyncio.Task[None] | None = None  # one at a time

    def tick(self) -> None:
        titles.set_title(self._status.title())
        self._supervisors.reap_strays()
        self._supervisors.check()
        self._systemd.tick()
        if self._dispatcher.busy_workers() and self._status.has_unshown_jobs():
            self._lease_keeper.renew_to_show_jobs()
        if any(connection.is_up for connection in self._connections.values()):
            self._last_connected_at = monotonic()
        is_burst_check_due = self._burst is not None and self._burst.is_check_due()
        if self._background_task is not None and not self._background_task.done():
            return
        if (
            self._embedded_server is not None
            and monotonic() - self._last_connected_at > EMBEDDED_SERVER_TIMEOUT_SECONDS
        ):
            self._last_connected_at = monotonic()
            self._background_task = self._tasks.start_background(self._restart_server(self._embedded_server))
        elif self._burst is not None and is_burst_check_due:
            self._background_task = self._tasks.start_background(self._burst.check())

    async def _restart_server(self, server: EmbeddedServer) -> None:
        """Start the embedded server again. This host owns it, so nothing else would."""
        try:
            await asyncio.to_thread(server.acquire)
            # The master is a subreaper: the server is its child now, but no stray process.
            self._supervisors.other_children |= {pid for pid in [server.status().pid] if pid is not None}
        except PgworkersError as error:
            self._lifecycle.note(f"the embedded server does not start: {error}")


class StatisticsWriter:
    """Writes the statistics of this host to the database: once a minute, and when the host leaves."""

    def __init__(self, executor: QueryExecutor, statistics: Statistics) -> None:
        self._executor = executor
        self._statistics = statistics

    async def run(self) -> None:
        while True:
            await asyncio.sleep(SECONDS_PER_MINUTE)
            await self.write()

    async def write(self) -> bool:
        """Write what was collected. If that fails, it stays in memory for the next time."""
        query = self._statistics.write_query()
        if query is None:
            return True
        try:
            await self._executor.execute(query)
        except (ConnectionDown, psycopg.Error):
            return False
        self._statistics.acknowledge()
        return True
