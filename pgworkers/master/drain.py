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
from pgworkers.events import HostChanged, JobEnded
from pgworkers.job import host as host_rows
from pgworkers.job.state import Verdict
from pgworkers.master.line import LineDown
from pgworkers.settings import Settings

if TYPE_CHECKING:
    from pgworkers.master.host import Host

STEP = 0.02
#: How long supervisors may take to kill what is left and to leave, once their sockets are closed.
LEAVE_TIME = 3.0
#: Beyond the graces, for a ladder to be climbed to its end, and for a killed process to be gone.
LADDER_TIME = 2.0
KILL_TIME = 2.0


def longest(settings: Settings) -> float:
    """The most seconds from SIGTERM to the exit: what a service manager must allow."""
    writing = settings.statement_timeout + 1.0
    stopping = settings.ask_grace + settings.raise_grace + LADDER_TIME + KILL_TIME
    return (
        settings.drain + stopping + 2 * writing + leaving(settings) + LEAVE_TIME + settings.statement_timeout
    )


def leaving(settings: Settings) -> float:
    """How long the stop hooks of a worker may take."""
    return settings.ask_grace + settings.raise_grace + 1.0


async def drain(host: Host) -> None:
    settings = host.settings
    handed = HandedBack()
    host.facts.listen(handed, JobEnded)
    host.become("draining", f"{host.why}; {len(host.dispatch.busy())} running")
    host.dispatch.claiming = False
    host.supervisors.leave()
    await host.leadership.resign()
    host.dispatch.give_back_all("the host is draining")
    for worker in host.dispatch.all_workers():
        if worker.state in ("idle", "silent"):
            worker.leave()
    until = monotonic() + settings.drain
    await _until_idle(host, settings.drain, host.hurry)
    if host.dispatch.busy():
        await _stop_running(host)
    await _write_the_rest(host, until)
    await _until_left(host)
    host.supervisors.hang_up()
    await _until_alone(host)
    try:
        async with asyncio.timeout(settings.statement_timeout):
            # Nothing runs any more: whatever is left was never known here.
            await host.overlooked.give_back(0.0, whole=True)
    except TimeoutError:
        pass
    await _write_the_rest(host, until)
    try:
        async with asyncio.timeout(settings.statement_timeout):
            await host.minutes.write()
            await host.renewal.leave()
            await host.lines["leadership"].ask(host_rows.remove(host.id))
    except (LineDown, TimeoutError, psycopg.Error):
        pass  # the row goes stale and is swept by others
    host.become("gone", handed.told(at_once=host.hurry.is_set()))


class HandedBack:
    """The jobs that a drain did not let finish, for its last word."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, fact: JobEnded) -> None:
        self.count += fact.verdict == Verdict.INTERRUPTED

    def told(self, *, at_once: bool) -> str:
        if not self.count:
            return "drained"
        jobs = f"{self.count} job{'s' * (self.count != 1)}"
        return (
            f"stopped at once, {jobs} handed back" if at_once else f"drained, {jobs} stopped and handed back"
        )


async def _until_idle(host: Host, limit: float, hurry: asyncio.Event | None = None) -> None:
    try:
        async with asyncio.timeout(limit):
            while host.dispatch.busy() and not (hurry is not None and hurry.is_set()):
                await asyncio.sleep(STEP)
    except TimeoutError:
        pass


async def _stop_running(host: Host) -> None:
    """The ladder for everything that still runs; told to hurry, without graces."""
    settings = host.settings
    host.become("stopping", f"{len(host.dispatch.busy())} still running")
    for worker in host.dispatch.busy():
        host.dispatch.wish(worker, "drain")
    if not host.hurry.is_set():
        await _until_idle(host, settings.ask_grace + settings.raise_grace + LADDER_TIME, host.hurry)
    for worker in host.dispatch.busy():
        host.dispatch.wish(worker, "kill")
    await _until_idle(host, KILL_TIME)


async def _until_left(host: Host) -> None:
    """Workers that were let go run their stop hooks; their supervisors end those that take longer than the graces."""
    try:
        async with asyncio.timeout(leaving(host.settings)):
            while not host.hurry.is_set() and any(w.state == "leaving" for w in host.dispatch.all_workers()):
                await asyncio.sleep(STEP)
    except TimeoutError:
        pass


async def _until_alone(host: Host) -> None:
    try:
        async with asyncio.timeout(LEAVE_TIME):
            while host.supervisors.alive:
                await asyncio.sleep(STEP)
    except TimeoutError:
        host.supervisors.kill()
        while host.supervisors.alive:
            await asyncio.sleep(STEP)


async def _write_the_rest(host: Host, until: float) -> None:
    """Wait for the ends that are not written yet; of a database that is only slow until the time of the drain is over."""
    try:
        async with asyncio.timeout(host.settings.statement_timeout + 1.0):
            await host.ends.idle.wait()
    except TimeoutError:
        while host.ends.is_writing and monotonic() < until and not host.hurry.is_set():
            await asyncio.sleep(STEP)
        if host.ends.idle.is_set():
            return
        left = f"{len(host.ends)} ends could not be written; their jobs will be rescued"
        host.facts.tell(HostChanged(host.state, left))
