"""The statistics of this host on their way into the database: once a minute, and when it leaves.

The host's pulse: everything that is looked at again and again, in one wake-up. Nothing here may wait.

A wake-up costs a process that sleeps more than what it does then, so there is one for all of it: the title, zombies, silent
supervisors, the service manager's watchdog, sums of log lines, and how late the loop is. It is quick while something
happens and slow while nothing does. What must not wait for it wakes the loop by itself: orders, reports, deaths, notices.

What a host does by the way, with every pulse: its title, zombies that nobody waits for, its server, a burst's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg

from pgworkers.clock import monotonic
from pgworkers.embedded.server import EmbeddedServer
from pgworkers.errors import PgworkersError
from pgworkers.events import EventBus, HostStateChanged, LoopLagMeasured
from pgworkers.job import burst as burst_queries
from pgworkers.job import claim
from pgworkers.linux import titles
from pgworkers.master import burst, status
from pgworkers.master.burst import BURST_REPORT_SECONDS
from pgworkers.master.connection import ConnectionDown, QueryExecutor
from pgworkers.observe.statistics import SECONDS_PER_MINUTE, Statistics

if TYPE_CHECKING:
    from pgworkers.master.host import Host


class StatisticsWriter:
    def __init__(self, asker: QueryExecutor, statistics: Statistics) -> None:
        self._executor = asker
        self._statistics = statistics

    async def run(self) -> None:
        while True:
            await asyncio.sleep(SECONDS_PER_MINUTE)
            await self.write()

    async def write(self) -> bool:
        """What was not written stays in memory for the next time."""
        query = self._statistics.write_query()
        if query is None:
            return True
        try:
            await self._executor.execute(query)
        except (ConnectionDown, psycopg.Error):
            return False
        self._statistics.acknowledge()
        return True


BUSY_INTERVAL_SECONDS = 0.25
QUIET_INTERVAL_SECONDS = 1.0


def housekeeping_pause_seconds(calm: bool, watchdog: float | None) -> float:
    """Seconds until the next beat; a watchdog is fed three times within its patience. Pure."""
    step = QUIET_INTERVAL_SECONDS if calm else BUSY_INTERVAL_SECONDS
    return step if watchdog is None else min(step, watchdog / 3)


class HousekeepingLoop:
    def __init__(self, facts: EventBus, calm: Callable[[], bool], watchdog: float | None) -> None:
        self._facts = facts
        self._is_quiet = calm
        self._watchdog_seconds = watchdog
        self._actions: list[Callable[[], None]] = []

    def add(self, look: Callable[[], None]) -> None:
        """Something that is done with every beat."""
        self._actions.append(look)

    async def run(self) -> None:
        while True:
            for look in self._actions:
                look()
            step = housekeeping_pause_seconds(self._is_quiet(), self._watchdog_seconds)
            due = monotonic() + step
            await asyncio.sleep(step)
            self._facts.emit(LoopLagMeasured(monotonic() - due))  # what blocks the loop delays every job


#: An embedded server that has not answered for this long is looked after.
EMBEDDED_SERVER_TIMEOUT_SECONDS = 3.0


class Housekeeper:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._last_connected_at = monotonic()  # of any connection
        self._last_busy_at: float | None = monotonic()  # None: it was said what a burst waits for since
        self._background_task: asyncio.Task[None] | None = None  # one at a time
        self._started_at = monotonic()
        self._reported_hosts: set[UUID] = set()  # hosts whose jobs a burst has said it waits for

    def tick(self) -> None:
        host = self._host
        titles.set_title(status.title(host))
        host.supervisors.reap_strays()
        host.supervisors.check()
        host.systemd.tick(host)
        if host.dispatcher.busy_workers():
            self._last_busy_at = monotonic()
            if status.has_unshown_jobs(host):
                host.lease_keeper.renew_for_new_jobs()
        if any(line.is_up for line in host.connections.values()):
            self._last_connected_at = monotonic()
        if self._background_task is not None and not self._background_task.done():
            return
        if (
            host.plan.embedded_server is not None
            and monotonic() - self._last_connected_at > EMBEDDED_SERVER_TIMEOUT_SECONDS
        ):
            self._last_connected_at = monotonic()
            self._background_task = host.start_background(self._restart_server(host.plan.embedded_server))
        elif (
            host.options.is_burst
            and not host.is_leaving
            and not host.dispatcher.busy_workers()
            and not len(host.finisher)
        ):
            self._background_task = host.start_background(self._leave_if_empty())

    async def _restart_server(self, server: EmbeddedServer) -> None:
        """The embedded server is ours to keep: when it died under us, start it again."""
        try:
            await asyncio.to_thread(server.acquire)
            # We are the subreaper of what we start: the server is our child now, but no stray.
            self._host.supervisors.other_children |= {pid for pid in [server.status().pid] if pid is not None}
        except PgworkersError as error:
            state = self._host.state
            self._host.events.emit(HostStateChanged(state, f"the embedded server does not start: {error}"))

    async def _leave_if_empty(self) -> None:
        host = self._host
        if host.supervisors.errors:
            host.has_failed = True
            host.leave("burst: " + "; ".join(f"queue {q}: {e}" for q, e in host.supervisors.errors.items()))
            return
        ask, mine = (
            host.connections["leadership"].execute,
            (list(host.plan.queues), list(host.dispatcher.tasks)),
        )
        try:
            found = await ask(burst_queries.unfinished_work(*mine))
            while found.next_place is not None and not found.jobs:
                found = await ask(burst_queries.unfinished_work(*mine, found.next_place))
            if not found.jobs:
                for queue in found.crowded_queues:
                    await ask(claim.park(queue, mine[1], burst_queries.UNFINISHED_SCAN_ROWS))
            if not found.is_finished or host.dispatcher.busy_workers():
                await self._report_waiting(found.jobs)
                return
            why, *rest = burst.burst_end_lines(await ask(burst_queries.jobs_left_behind(*mine)))
        except (ConnectionDown, psycopg.Error):
            return
        if host.is_leaving or host.dispatcher.busy_workers():
            return
        for line in rest:
            host.events.emit(HostStateChanged(host.state, line))
        host.leave(why)

    async def _report_waiting(self, jobs: int) -> None:
        """A burst that waits must not look like one that hangs: whom it waits for, and what else when it takes long."""
        host = self._host
        if host.dispatcher.busy_workers():
            return
        for other in await host.connections["leadership"].execute(
            burst_queries.other_busy_hosts(host.id, list(host.plan.queues))
        ):
            if other.id not in self._reported_hosts:
                self._reported_hosts.add(other.id)
                own = host.settings.lease_duration - (monotonic() - self._started_at)
                host.events.emit(
                    HostStateChanged(
                        host.state, burst.waiting_sentence(other, own, host.settings.rescue_interval)
                    )
                )
        if self._last_busy_at is not None and monotonic() - self._last_busy_at > BURST_REPORT_SECONDS:
            self._last_busy_at = None
            more = " or more" if jobs >= burst_queries.UNFINISHED_SCAN_ROWS else ""
            what = f"{jobs}{more} jobs" if jobs > 1 else "a job"
            why = (
                f"burst: waiting for {what}: to be retried, behind a throttle or a limit, or on another host"
            )
            host.events.emit(HostStateChanged(host.state, why))
