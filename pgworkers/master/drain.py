"""The drain: how a host ends.

The host stops claiming, releases jobs that have not started, and lets running jobs finish. Renewals and cancels continue.
At the end of the drain time it climbs the ladder for what still runs, and waits for each process to be dead. Then it writes
the remaining results, waits for the stop hooks of workers, and removes its row.

All waits are bounded except one: a supervisor that SIGKILL does not end is waited for. A database that is down does not
delay the exit; the jobs of this host are rescued when its lease has run out. A database that answers slowly delays it until
the drain time is over: jobs whose results are not written by then are rescued, and run again.
"""

from __future__ import annotations

import asyncio

import psycopg

from pgworkers.clock import monotonic
from pgworkers.events import AttemptEnded, EventBus
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.job import hosts as host_rows
from pgworkers.job.model import Verdict
from pgworkers.master.connection import ConnectionDown, ReconnectingConnection
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.finisher import Finisher
from pgworkers.master.housekeeping import StatisticsWriter
from pgworkers.master.leadership import Leadership
from pgworkers.master.lease_keeper import LeaseKeeper
from pgworkers.master.lifecycle import HostLifecycle
from pgworkers.master.lost_claims import LostClaims
from pgworkers.master.reporter import FINISH_REPORTS_SECONDS, REPORTER_EXIT_SECONDS, Reporter
from pgworkers.master.supervisors import SupervisorPool
from pgworkers.settings import Settings
from pgworkers.states import HostState, WorkerState

HOST_DRAIN_POLL_SECONDS = 0.02
#: How long supervisors may take to kill their workers and exit, once their sockets are closed.
SUPERVISOR_EXIT_SECONDS = 3.0
#: Time beyond the graces for a ladder to reach its end, and for a killed process to be gone.
LADDER_MARGIN_SECONDS = 2.0
KILL_WAIT_SECONDS = 2.0


def max_stop_seconds(settings: Settings) -> float:
    """The longest time from SIGTERM to the exit: what a service manager must allow."""
    writing = settings.statement_timeout + 1.0
    stopping = settings.ask_grace + settings.raise_grace + LADDER_MARGIN_SECONDS + KILL_WAIT_SECONDS
    return (
        settings.drain_timeout
        + stopping
        + 2 * writing
        + max_stop_hook_seconds(settings)
        + SUPERVISOR_EXIT_SECONDS
        + FINISH_REPORTS_SECONDS
        + REPORTER_EXIT_SECONDS
        + settings.statement_timeout
    )


def max_stop_hook_seconds(settings: Settings) -> float:
    """How long the stop hooks of a worker may take."""
    return settings.ask_grace + settings.raise_grace + 1.0


def _count_results(count: int) -> str:
    return f"{count} result{'s are' if count != 1 else ' is'}"


class InterruptedCount:
    """Counts the jobs that a drain did not let finish."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, event: AttemptEnded) -> None:
        self.count += event.verdict == Verdict.INTERRUPTED

    def sentence(self, *, at_once: bool) -> str:
        if not self.count:
            return "drained"
        jobs = f"{self.count} job{'s' * (self.count != 1)}"
        return (
            f"stopped at once, {jobs} handed back" if at_once else f"drained, {jobs} stopped and handed back"
        )


class Drainer:
    def __init__(
        self,
        *,
        host_id: str,
        settings: Settings,
        lifecycle: HostLifecycle,
        dispatcher: Dispatcher,
        supervisors: SupervisorPool,
        leadership: Leadership,
        finisher: Finisher,
        lost_claims: LostClaims,
        statistics_writer: StatisticsWriter,
        lease_keeper: LeaseKeeper,
        reporter: Reporter,
        remove_host_on: ReconnectingConnection,
        events: EventBus,
    ) -> None:
        self._host_id = host_id
        self._settings = settings
        self._lifecycle = lifecycle
        self._dispatcher = dispatcher
        self._supervisors = supervisors
        self._leadership = leadership
        self._finisher = finisher
        self._lost_claims = lost_claims
        self._statistics_writer = statistics_writer
        self._lease_keeper = lease_keeper
        self._reporter = reporter
        self._connection = remove_host_on
        self._events = events

    async def drain(self) -> None:
        settings, lifecycle = self._settings, self._lifecycle
        interrupted = InterruptedCount()
        self._events.subscribe(interrupted, AttemptEnded)
        running = len(self._dispatcher.busy_workers())
        lifecycle.move_to(HostState.DRAINING, f"{lifecycle.leave_reason}; {running} running")
        self._dispatcher.is_claiming = False
        self._supervisors.stop_starting()
        await self._leadership.resign()
        self._dispatcher.release_unstarted("the host is draining")
        for worker in self._dispatcher.all_workers():
            if worker.state in (WorkerState.IDLE, WorkerState.UNRESPONSIVE):
                worker.dismiss()
        until = monotonic() + settings.drain_timeout
        await self._wait_until_idle(settings.drain_timeout, lifecycle.hurry)
        if self._dispatcher.busy_workers():
            await self._stop_running_jobs()
        await self._wait_for_results(until)
        await self._wait_for_stop_hooks()
        self._supervisors.close()
        await self._wait_for_supervisors()
        try:
            async with asyncio.timeout(settings.statement_timeout):
                # Nothing runs any more, so every claim that is left is one whose answer was lost.
                await self._lost_claims.release_lost(0.0, is_full_scan=True)
        except TimeoutError:
            pass
        await self._wait_for_results(until)
        await self._reporter.finish(lifecycle.hurry)
        try:
            async with asyncio.timeout(settings.statement_timeout):
                await self._statistics_writer.write()
                await self._lease_keeper.stop()
                await self._connection.execute(host_rows.remove_host(self._host_id))
        except (ConnectionDown, TimeoutError, psycopg.Error):
            pass  # another host removes the row when its lease has run out
        if unwritten := len(self._finisher):
            lifecycle.note(
                f"{_count_results(unwritten)} not written; their jobs will be rescued and run again"
            )
        lifecycle.move_to(HostState.GONE, interrupted.sentence(at_once=lifecycle.hurry.is_set()))

    async def _wait_until_idle(self, limit: float, hurry: asyncio.Event | None = None) -> None:
        try:
            async with asyncio.timeout(limit):
                while self._dispatcher.busy_workers() and not (hurry is not None and hurry.is_set()):
                    await asyncio.sleep(HOST_DRAIN_POLL_SECONDS)
        except TimeoutError:
            pass

    async def _stop_running_jobs(self) -> None:
        """Climb the ladder for everything that still runs; in a hurry, without graces."""
        settings, hurry = self._settings, self._lifecycle.hurry
        self._lifecycle.move_to(HostState.STOPPING, f"{len(self._dispatcher.busy_workers())} still running")
        for worker in self._dispatcher.busy_workers():
            self._dispatcher.request_stop(worker, StopReason.DRAIN)
        if not hurry.is_set():
            await self._wait_until_idle(
                settings.ask_grace + settings.raise_grace + LADDER_MARGIN_SECONDS, hurry
            )
        for worker in self._dispatcher.busy_workers():
            self._dispatcher.request_stop(worker, StopReason.KILL)
        await self._wait_until_idle(KILL_WAIT_SECONDS)

    async def _wait_for_stop_hooks(self) -> None:
        """Wait for dismissed workers to run their stop hooks.

        Their supervisors end those that take too long.
        """
        try:
            async with asyncio.timeout(max_stop_hook_seconds(self._settings)):
                while not self._lifecycle.hurry.is_set() and any(
                    worker.state is WorkerState.LEAVING for worker in self._dispatcher.all_workers()
                ):
                    await asyncio.sleep(HOST_DRAIN_POLL_SECONDS)
        except TimeoutError:
            pass

    async def _wait_for_supervisors(self) -> None:
        try:
            async with asyncio.timeout(SUPERVISOR_EXIT_SECONDS):
                while self._supervisors.is_alive:
                    await asyncio.sleep(HOST_DRAIN_POLL_SECONDS)
        except TimeoutError:
            self._supervisors.kill()
            while self._supervisors.is_alive:
                await asyncio.sleep(HOST_DRAIN_POLL_SECONDS)

    async def _wait_for_results(self, until: float) -> None:
        """Wait until all results are written.

        If the database answers but is slow, wait until the drain time is over.
        """
        try:
            async with asyncio.timeout(self._settings.statement_timeout + 1.0):
                await self._finisher.all_written.wait()
        except TimeoutError:
            while self._finisher.is_writing and monotonic() < until and not self._lifecycle.hurry.is_set():
                await asyncio.sleep(HOST_DRAIN_POLL_SECONDS)
            if unwritten := len(self._finisher):
                self._lifecycle.note(f"{_count_results(unwritten)} not written yet")
