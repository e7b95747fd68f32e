"""The drain: how a host ends.

Stop claiming, give back what has not started, let running jobs finish while renewal and cancel go on; at the end of
the drain time climb the ladder, wait for each process to be really dead, write what is left, let the stop hooks of
workers end, remove the host's row.
Nothing here waits for ever: a database that is down does not hold the exit, its jobs are rescued by their lease.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psycopg

from pgworkers.clock import monotonic
from pgworkers.events import AttemptEnded, HostStateChanged
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.job import hosts as host_rows
from pgworkers.job.model import Verdict
from pgworkers.master.connection import ConnectionDown
from pgworkers.master.worker_channel import WorkerState
from pgworkers.settings import Settings

if TYPE_CHECKING:
    from pgworkers.master.host import Host

DRAIN_POLL_SECONDS = 0.02
#: How long supervisors may take to kill what is left and to leave, once their sockets are closed.
SUPERVISOR_EXIT_SECONDS = 3.0
#: Beyond the graces, for a ladder to be climbed to its end, and for a killed process to be gone.
LADDER_MARGIN_SECONDS = 2.0
KILL_WAIT_SECONDS = 2.0


def max_stop_seconds(settings: Settings) -> float:
    """The most seconds from SIGTERM to the exit: what a service manager must allow."""
    writing = settings.statement_timeout + 1.0
    stopping = settings.ask_grace + settings.raise_grace + LADDER_MARGIN_SECONDS + KILL_WAIT_SECONDS
    return (
        settings.drain_timeout
        + stopping
        + 2 * writing
        + max_stop_hook_seconds(settings)
        + SUPERVISOR_EXIT_SECONDS
        + settings.statement_timeout
    )


def max_stop_hook_seconds(settings: Settings) -> float:
    """How long the stop hooks of a worker may take."""
    return settings.ask_grace + settings.raise_grace + 1.0


async def drain(host: Host) -> None:
    settings = host.settings
    handed = InterruptedCount()
    host.events.subscribe(handed, AttemptEnded)
    host.move_to("draining", f"{host.leave_reason}; {len(host.dispatcher.busy_workers())} running")
    host.dispatcher.is_claiming = False
    host.supervisors.stop_starting()
    await host.leadership.resign()
    host.dispatcher.release_unstarted("the host is draining")
    for worker in host.dispatcher.all_workers():
        if worker.state in (WorkerState.IDLE, WorkerState.UNRESPONSIVE):
            worker.dismiss()
    until = monotonic() + settings.drain_timeout
    await _wait_until_idle(host, settings.drain_timeout, host.hurry)
    if host.dispatcher.busy_workers():
        await _stop_running_jobs(host)
    await _wait_for_results(host, until)
    await _wait_for_stop_hooks(host)
    host.supervisors.close()
    await _wait_for_supervisors(host)
    try:
        async with asyncio.timeout(settings.statement_timeout):
            # Nothing runs any more: whatever is left was never known here.
            await host.lost_claims.release_lost(0.0, is_full_scan=True)
    except TimeoutError:
        pass
    await _wait_for_results(host, until)
    try:
        async with asyncio.timeout(settings.statement_timeout):
            await host.statistics_writer.write()
            await host.lease_keeper.stop()
            await host.connections["leadership"].execute(host_rows.remove_host(host.id))
    except (ConnectionDown, TimeoutError, psycopg.Error):
        pass  # the row goes stale and is swept by others
    host.move_to("gone", handed.sentence(at_once=host.hurry.is_set()))


class InterruptedCount:
    """The jobs that a drain did not let finish, for its last word."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, fact: AttemptEnded) -> None:
        self.count += fact.verdict == Verdict.INTERRUPTED

    def sentence(self, *, at_once: bool) -> str:
        if not self.count:
            return "drained"
        jobs = f"{self.count} job{'s' * (self.count != 1)}"
        return (
            f"stopped at once, {jobs} handed back" if at_once else f"drained, {jobs} stopped and handed back"
        )


async def _wait_until_idle(host: Host, limit: float, hurry: asyncio.Event | None = None) -> None:
    try:
        async with asyncio.timeout(limit):
            while host.dispatcher.busy_workers() and not (hurry is not None and hurry.is_set()):
                await asyncio.sleep(DRAIN_POLL_SECONDS)
    except TimeoutError:
        pass


async def _stop_running_jobs(host: Host) -> None:
    """The ladder for everything that still runs; told to hurry, without graces."""
    settings = host.settings
    host.move_to("stopping", f"{len(host.dispatcher.busy_workers())} still running")
    for worker in host.dispatcher.busy_workers():
        host.dispatcher.request_stop(worker, StopReason.DRAIN)
    if not host.hurry.is_set():
        await _wait_until_idle(
            host, settings.ask_grace + settings.raise_grace + LADDER_MARGIN_SECONDS, host.hurry
        )
    for worker in host.dispatcher.busy_workers():
        host.dispatcher.request_stop(worker, StopReason.KILL)
    await _wait_until_idle(host, KILL_WAIT_SECONDS)


async def _wait_for_stop_hooks(host: Host) -> None:
    """Workers that were let go run their stop hooks; their supervisors end those that take longer than the graces."""
    try:
        async with asyncio.timeout(max_stop_hook_seconds(host.settings)):
            while not host.hurry.is_set() and any(
                w.state is WorkerState.LEAVING for w in host.dispatcher.all_workers()
            ):
                await asyncio.sleep(DRAIN_POLL_SECONDS)
    except TimeoutError:
        pass


async def _wait_for_supervisors(host: Host) -> None:
    try:
        async with asyncio.timeout(SUPERVISOR_EXIT_SECONDS):
            while host.supervisors.is_alive:
                await asyncio.sleep(DRAIN_POLL_SECONDS)
    except TimeoutError:
        host.supervisors.kill()
        while host.supervisors.is_alive:
            await asyncio.sleep(DRAIN_POLL_SECONDS)


async def _wait_for_results(host: Host, until: float) -> None:
    """Wait for the ends that are not written yet; of a database that is only slow until the time of the drain is over."""
    try:
        async with asyncio.timeout(host.settings.statement_timeout + 1.0):
            await host.finisher.all_written.wait()
    except TimeoutError:
        while host.finisher.is_writing and monotonic() < until and not host.hurry.is_set():
            await asyncio.sleep(DRAIN_POLL_SECONDS)
        if host.finisher.all_written.is_set():
            return
        left = f"{len(host.finisher)} ends could not be written; their jobs will be rescued"
        host.events.emit(HostStateChanged(host.state, left))
