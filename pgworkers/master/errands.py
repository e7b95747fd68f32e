"""What a host does by the way, with every pulse: its title, zombies that nobody waits for, its server, a burst's end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg

from pgworkers.clock import monotonic, show_seconds
from pgworkers.errors import PgworkersError
from pgworkers.events import HostChanged
from pgworkers.job.show import Other, others, unfinished
from pgworkers.master import view
from pgworkers.master.line import LineDown
from pgworkers.postgres.embedded import EmbeddedServer
from pgworkers.process import titles

if TYPE_CHECKING:
    from pgworkers.master.host import Host

#: An embedded server that has not answered for this long is looked after.
SERVER_PATIENCE = 3.0


class Errands:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._last_up = monotonic()  # of any connection
        self._running: asyncio.Task[None] | None = None  # one at a time
        self._began = monotonic()
        self._told: set[UUID] = set()  # hosts whose jobs a burst has said it waits for

    def tick(self) -> None:
        host = self._host
        titles.show(view.title(host))
        host.supervisors.reap()
        host.supervisors.watch()
        host.service.tick(host)
        if any(line.up for line in host.lines.values()):
            self._last_up = monotonic()
        if self._running is not None and not self._running.done():
            return
        if host.plan.server is not None and monotonic() - self._last_up > SERVER_PATIENCE:
            self._last_up = monotonic()
            self._running = host.beside(self._restart_server(host.plan.server))
        elif host.options.burst and not host.leaving and not host.dispatch.busy() and not len(host.ends):
            self._running = host.beside(self._end_burst())

    async def _restart_server(self, server: EmbeddedServer) -> None:
        """The embedded server is ours to keep: when it died under us, start it again."""
        try:
            await asyncio.to_thread(server.acquire)
            # We are the subreaper of what we start: the server is our child now, but no stray.
            self._host.supervisors.guests |= {pid for pid in [server.status().pid] if pid is not None}
        except PgworkersError as error:
            state = self._host.state
            self._host.facts.tell(HostChanged(state, f"the embedded server does not start: {error}"))

    async def _end_burst(self) -> None:
        host = self._host
        if host.supervisors.errors:
            host.failed = True
            host.leave("burst: " + "; ".join(f"queue {q}: {e}" for q, e in host.supervisors.errors.items()))
            return
        try:
            left = await host.lines["leadership"].ask(
                unfinished(list(host.plan.queues), list(host.dispatch.tasks))
            )
        except (LineDown, psycopg.Error):
            return
        if left == 0 and not host.dispatch.busy():
            host.leave("burst: the queues are empty")
        elif not host.dispatch.busy():
            await self._tell_others()

    async def _tell_others(self) -> None:
        """A burst that has nothing to do waits for others: once for each it says whom, and how long if that one is gone."""
        host = self._host
        try:
            found = await host.lines["leadership"].ask(others(host.id, list(host.plan.queues)))
        except (LineDown, psycopg.Error):
            return
        for other in found:
            if other.id not in self._told:
                self._told.add(other.id)
                own = host.settings.lease - (monotonic() - self._began)
                host.facts.tell(HostChanged(host.state, waiting(other, own, host.settings.rescue)))


def waiting(other: Other, own: float, rescue: float) -> str:
    """Whom a burst waits for. `own`: seconds until this host may call others lost; `rescue`: between two looks. Pure."""
    one = other.jobs == 1
    jobs = "1 job" if one else f"{other.jobs} jobs"
    who = f"host {str(other.id)[:8]} ({other.name}, pid {other.pid})"
    within = show_seconds(round(max(other.lease - other.silent, own, 0.0) + rescue))
    taken = f"if it is gone, {'it is' if one else 'they are'} taken back within {within}"
    return f"waits for {jobs} of {who}, which renewed {show_seconds(round(other.silent))} ago; {taken}"
