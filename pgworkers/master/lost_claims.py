"""Releases jobs that the database assigned to this host but whose claim response never arrived.

No other host may take them, because this one renews its lease. The host scans for them periodically, whether it noticed a
lost answer or not: a claim may also reach the server long after its sender gave it up. A claim is answered or given up well
within a lease, so a job that was claimed longer ago and is unknown here has no owner. The release is guarded by the lease,
like every write: a job that has ended meanwhile is not touched.

Each scan continues where the last one ended, so its cost depends on what was claimed since then, and not on all that ever
ran (vacuum may be held back). For three lease durations after a session was lost, every scan is a full one: the server may
be another one, with rows that this host has ended, and a claim that waits for a disk or a standby may become visible late.
All is also scanned when the database's clock was set back, once in a while, and when the host leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from math import inf

import psycopg

from pgworkers.clock import monotonic
from pgworkers.job.hosts import jobs_of_host
from pgworkers.master.connection import ConnectionDown, ReconnectingConnection
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.duties import READ_REST_FACTOR
from pgworkers.master.finisher import Finisher
from pgworkers.settings import Settings
from pgworkers.states import ConnectionRole

#: Minimum time between two full scans.
FULL_SCAN_INTERVAL_SECONDS = 600.0
#: For this many leases after the loss of a session, every scan is a full one.
FULL_SCAN_LEASES_AFTER_RECONNECT = 3


def scan_pause_seconds(took: float, rescue: float, lease: float) -> float:
    """Seconds until the next scan, after one that took `took` seconds. Pure.

    While vacuum is held back a scan takes long, and is made less often. But its duration also depends on the network and on
    outages, so the pause is no longer than a lease, unless the rescue interval is longer.
    """
    return max(rescue, lease / 3, min(READ_REST_FACTOR * took, lease))


class LostClaims:
    """Uses the connection `finish`: results can wait for a scan, claims should not."""

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
        self._database_time = database_time  # as this host estimates it
        self._session_numbers: list[int] = []  # of the connections, at the last scan
        self._full_scans_until = -inf
        self._scanned_until: datetime | None = None  # claims up to then were scanned
        self._full_scan_at = -inf  # when the next full scan is due

    async def run(self) -> None:
        took = 0.0
        while True:
            await asyncio.sleep(
                scan_pause_seconds(took, self._settings.rescue_interval, self._settings.lease_duration)
            )
            began = monotonic()
            await self.release_lost(self._settings.lease_duration)  # none is younger than a lease
            took = monotonic() - began

    async def release_lost(self, age: float, *, is_full_scan: bool = False) -> int:
        """Release jobs that were claimed at least `age` seconds ago and are unknown here.

        Returns how many.
        """
        sessions, began = [connection.session_number for connection in self._watched_connections], monotonic()
        if sessions != self._session_numbers:
            self._session_numbers, self._full_scans_until = (
                sessions,
                began + FULL_SCAN_LEASES_AFTER_RECONNECT * self._settings.lease_duration,
            )
        since = (
            None
            if is_full_scan or began < self._full_scans_until or began >= self._full_scan_at
            else self._scanned_until
        )
        try:
            clock = self._database_time() if age else None  # when the host leaves, no claim is on its way
            held = await self._connection.execute(jobs_of_host(self._host_id, age, since, host_clock=clock))
        except (ConnectionDown, psycopg.Error):
            if since is None:  # a full scan may take too long: the next one continues instead
                self._full_scan_at = monotonic() + FULL_SCAN_INTERVAL_SECONDS
            return 0  # the next scan finds them
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
