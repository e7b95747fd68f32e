"""Jobs that are this host's in the tables, and that nobody here knows: the answer to their claim was lost.

No other host may take them, because this one renews; so this one gives them back. It looks again and again, whether
or not it noticed a loss: a claim may also arrive at the server long after its sender gave it up. A claim is answered or
given up well within a lease, so what was claimed longer ago and is unknown here has no owner. Giving back is guarded by
the lease like every write: what ended meanwhile is not touched.

A claim has its time, and what a look went past needs no second one: each goes on where the last one ended, so it costs what
was claimed since then and not what ever ran (a vacuum may be held back). Everything is looked at for some leases after a
session was lost: it may be another server, with rows that we have ended, and a claim that waits for a disk or a standby may
be seen late; when the database's clock was set back; when a while has passed, for what nobody thought of; and at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from math import inf

import psycopg

from pgworkers.clock import monotonic
from pgworkers.job.hosts import jobs_of_host
from pgworkers.master.connection import ConnectionDown, ConnectionRole, ReconnectingConnection
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.duties import READ_REST_FACTOR
from pgworkers.master.finisher import Finisher
from pgworkers.settings import Settings

#: Seconds from one look at everything to the next, at least.
FULL_SCAN_INTERVAL_SECONDS = 600.0
#: Leases after the loss of a session in which each look is at everything.
FULL_SCAN_LEASES_AFTER_RECONNECT = 3


def scan_pause_seconds(took: float, rescue: float, lease: float) -> float:
    """Seconds until the next look, after one that took so long; pure.

    While a vacuum is held back a look takes long, and is made less often. But how long it took is also how slow the
    network was, and how long the database was away: so never less often than once in a lease.
    """
    return max(rescue, lease / 3, min(READ_REST_FACTOR * took, lease))


class LostClaims:
    """Asks on the line of the finishes: a job that becomes ready never waits for this, and ends can."""

    def __init__(
        self,
        host_id: str,
        connections: Mapping[ConnectionRole, ReconnectingConnection],
        dispatcher: Dispatcher,
        finisher: Finisher,
        settings: Settings,
        database_time: Callable[[], datetime | None],
    ) -> None:
        self._host_id = host_id
        self._connection = connections[ConnectionRole.FINISH]
        self._watched_connections = [connections[ConnectionRole.CLAIM], connections[ConnectionRole.FINISH]]
        self._dispatcher = dispatcher
        self._finisher = finisher
        self._settings = settings
        self._database_time = database_time  # the database's time, as this host reckons it
        self._session_numbers: list[int] = []  # of the lines, at the last look
        self._full_scans_until = -inf
        self._scanned_until: datetime | None = None  # claims up to then were looked at
        self._full_scan_at = -inf  # when everything is looked at again

    async def run(self) -> None:
        took = 0.0
        while True:
            await asyncio.sleep(scan_pause_seconds(took, self._settings.rescue, self._settings.lease))
            began = monotonic()
            await self.release_lost(self._settings.lease)  # none is younger than a lease
            took = monotonic() - began

    async def release_lost(self, age: float, *, is_full_scan: bool = False) -> int:
        """Give back what was claimed so long ago and is unknown here; how many. `whole`: look at everything."""
        sessions, began = [connection.session_number for connection in self._watched_connections], monotonic()
        if sessions != self._session_numbers:
            self._session_numbers, self._full_scans_until = (
                sessions,
                began + FULL_SCAN_LEASES_AFTER_RECONNECT * self._settings.lease,
            )
        since = (
            None
            if is_full_scan or began < self._full_scans_until or began >= self._full_scan_at
            else self._scanned_until
        )
        try:
            clock = self._database_time() if age else None  # at the end nothing is on its way
            held = await self._connection.execute(jobs_of_host(self._host_id, age, since, host_clock=clock))
        except (ConnectionDown, psycopg.Error):
            if since is None:  # all of it may be too much: the next look goes on, if there is a place for it
                self._full_scan_at = monotonic() + FULL_SCAN_INTERVAL_SECONDS
            return 0  # the next look finds them
        known = {*self._dispatcher.held_fences(), *self._finisher.pending_fences()}
        unknown = [fence for fence in held.fences if fence not in known]
        if unknown:
            self._finisher.release(unknown, "the answer to the claim was lost")
        if since is None:
            self._full_scan_at = monotonic() + max(
                FULL_SCAN_INTERVAL_SECONDS, READ_REST_FACTOR * (monotonic() - began)
            )
        self._scanned_until = held.complete_until if since is None or held.complete_until >= since else None
        return len(unknown)
