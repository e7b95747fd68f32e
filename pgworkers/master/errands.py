"""What a host does by the way, with every pulse: its title, zombies that nobody waits for, its server, a burst's end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg

from pgworkers.clock import monotonic
from pgworkers.errors import PgworkersError
from pgworkers.events import HostChanged
from pgworkers.job import park, show
from pgworkers.master import burst, view
from pgworkers.master.line import LineDown
from pgworkers.postgres.embedded import EmbeddedServer
from pgworkers.process import titles

if TYPE_CHECKING:
    from pgworkers.master.host import Host

#: An embedded server that has not answered for this long is looked after.
SERVER_PATIENCE = 3.0
#: A burst in which nothing has run for this long says what it waits for.
BURST_SILENCE = 5.0


class Errands:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._last_up = monotonic()  # of any connection
        self._busy_until: float | None = monotonic()  # None: it was said what a burst waits for since
        self._running: asyncio.Task[None] | None = None  # one at a time
        self._began = monotonic()
        self._told: set[UUID] = set()  # hosts whose jobs a burst has said it waits for

    def tick(self) -> None:
        host = self._host
        titles.show(view.title(host))
        host.supervisors.reap()
        host.supervisors.watch()
        host.service.tick(host)
        if host.dispatch.busy():
            self._busy_until = monotonic()
            if view.unseen(host):
                host.renewal.tell_begun()
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
        ask, mine = host.lines["leadership"].ask, (list(host.plan.queues), list(host.dispatch.tasks))
        try:
            found = await ask(show.unfinished(*mine))
            while found.next is not None and not found.jobs:
                found = await ask(show.unfinished(*mine, found.next))
            if not found.jobs:
                for queue in found.crowded:
                    await ask(park.park(queue, mine[1], show.UNFINISHED_LOOK))
            if not found.is_nothing or host.dispatch.busy():
                await self._say_what_is_awaited(found.jobs)
                return
            why, *rest = burst.told(await ask(show.left(*mine)))
        except (LineDown, psycopg.Error):
            return
        if host.leaving or host.dispatch.busy():
            return
        for line in rest:
            host.facts.tell(HostChanged(host.state, line))
        host.leave(why)

    async def _say_what_is_awaited(self, jobs: int) -> None:
        """A burst that waits must not look like one that hangs: whom it waits for, and what else when it takes long."""
        host = self._host
        if host.dispatch.busy():
            return
        for other in await host.lines["leadership"].ask(show.others(host.id, list(host.plan.queues))):
            if other.id not in self._told:
                self._told.add(other.id)
                own = host.settings.lease - (monotonic() - self._began)
                host.facts.tell(HostChanged(host.state, burst.waiting(other, own, host.settings.rescue)))
        if self._busy_until is not None and monotonic() - self._busy_until > BURST_SILENCE:
            self._busy_until = None
            more = " or more" if jobs >= show.UNFINISHED_LOOK else ""
            what = f"{jobs}{more} jobs" if jobs > 1 else "a job"
            why = (
                f"burst: waiting for {what}: to be retried, behind a throttle or a limit, or on another host"
            )
            host.facts.tell(HostChanged(host.state, why))
