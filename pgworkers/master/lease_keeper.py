"""The host's row: its registration and its renewals, and an estimate of the database's clock.

One UPDATE of one row renews every lease of the host. It returns which of its jobs are to be cancelled, which deadlines have
changed, and which jobs the host no longer owns. `RenewalStreak` records how long the host has renewed without a gap.

`DatabaseClock` estimates the database's time. A host is lost when it has not renewed for its lease, by the database's clock.
When that clock jumps forward by more than a lease, every host looks lost until it renews. So a host that judges others uses
the earlier of two times: the database's own, and an estimate by the host's own clock (CLOCK_BOOTTIME). Each renewal compares
the two clocks. The smallest difference of the last L seconds is used, L being the longest lease in the cluster. After a jump
forward, every live host has renewed by the new time within L. A clock that is set back counts at once: leases last longer by
the jump, which loses nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psycopg

from pgworkers.clock import boottime, monotonic
from pgworkers.job.hosts import renew_lease
from pgworkers.job.notification_payloads import MIN_HINT_INTERVAL_SECONDS, Reconnected
from pgworkers.master.connection import ConnectionDown, ReconnectingConnection
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.lifecycle import HostLifecycle
from pgworkers.master.notifications import NotificationListener
from pgworkers.master.status import NEW_JOB_SHOWN_SECONDS, HostSnapshot
from pgworkers.postgres.statements import Query
from pgworkers.settings import Settings

#: A young host renews every second until its workers are up, so that operators see them start.
YOUNG_HOST_SECONDS = 10.0
#: So does a host that is watched (`pgworkers top`), for this long after each notification of that.
WATCHED_HOST_SECONDS = 10.0


def renewal_pause_seconds(
    now: float, born: float, watched: float, renew: float, *, are_workers_up: bool = False
) -> float:
    """Seconds until the next renewal. Pure."""
    fresh = now - born < YOUNG_HOST_SECONDS and not are_workers_up
    return min(1.0, renew) if fresh or now < watched else renew


class RenewalStreak:
    """Since when this host has renewed without a gap. `gap`: the longest pause that is allowed.

    Pure.
    """

    def __init__(self, gap: float) -> None:
        self._max_gap_seconds = gap
        self._since: float | None = None
        self._last: float | None = None

    def record(self, sent: float) -> None:
        if self._last is None or sent - self._last > self._max_gap_seconds or self._since is None:
            self._since = sent
        self._last = sent

    def has_lasted(self, period: float, now: float) -> bool:
        """True if it has renewed without a gap for `period`, and recently."""
        if self._since is None or self._last is None:
            return False
        return now - self._last <= self._max_gap_seconds and now - self._since >= period


class LeaseKeeper:
    """Registers the host and renews its lease, on the connection `listen`.

    Notifications are read between two renewals.
    """

    def __init__(
        self,
        *,
        host_id: str,
        connection: ReconnectingConnection,
        listener: NotificationListener,
        dispatcher: Dispatcher,
        settings: Settings,
        snapshot: Callable[[bool], HostSnapshot],
        registration: Callable[[], Query[Any]],
        on_renewed: Callable[[float], None],
        are_workers_up: Callable[[], bool],
    ) -> None:
        """`snapshot` gets True while operators watch the host.

        `on_renewed` gets the boottime of the sending.
        """
        self._host_id = host_id
        self._connection = connection
        self._listener = listener
        self._dispatcher = dispatcher
        self._settings = settings
        self._snapshot = snapshot
        self._registration = registration
        self._on_renewed = on_renewed
        self._are_workers_up = are_workers_up
        self._due_at = self._sent_at = self._watched_until = 0.0
        self._has_unread_hint = False  # a hint came after the last renewal was sent
        self._started_at = monotonic()
        self._is_stopping = False
        self._stopped = asyncio.Event()
        self.database_clock = DatabaseClock()
        self.streak = RenewalStreak(2 * settings.renew_interval + settings.statement_timeout)
        connection.on_connect = listener.listen
        listener.on_listening = self._on_listening

    async def register(self, lifecycle: HostLifecycle) -> bool:
        """Write the host's row, however long the database is away.

        False: the host was asked to leave before that.
        """
        while not lifecycle.is_leaving:
            sent_boottime = boottime()
            try:
                await self._connection.execute(self._registration())
            except ConnectionDown:
                await self._connection.wait_for_backoff()
            else:
                self._on_renewed(sent_boottime)
                return True
        return False

    async def run(self) -> None:
        try:
            while not self._is_stopping:
                try:
                    await self._run_once()
                except ConnectionDown:
                    await self._connection.wait_for_backoff()
                except psycopg.Error as error:
                    self._connection.mark_lost(error)
                    await self._connection.wait_for_backoff()
        finally:
            self._stopped.set()

    async def _run_once(self) -> None:
        if monotonic() >= self._due_at:
            await self.renew()
        conn = await self._connection.ensure_connected()
        self._listener.read_pending(conn.pgconn)
        if not self._is_stopping:
            await self._listener.wait(conn.pgconn, conn.fileno(), lambda: self._due_at)

    async def stop(self) -> None:
        """Stop renewing, and wait for a renewal on the way: it would write a removed row again."""
        self._is_stopping = True
        self._listener.wake()
        await self._stopped.wait()

    def _on_listening(self) -> None:
        """Renew at once on a new connection: notifications may have been missed before."""
        self._due_at = 0.0

    @property
    def is_watched(self) -> bool:
        return monotonic() < self._watched_until

    def on_watched(self) -> None:
        """An operator watches the process view: for a while it is written every second."""
        self._watched_until = monotonic() + WATCHED_HOST_SECONDS
        self._due_at = min(self._due_at, self._sent_at + 1.0)

    def renew_to_show_jobs(self) -> None:
        """Renew within a second of the last time: the process view does not show a running job yet."""
        due = max(self._sent_at + NEW_JOB_SHOWN_SECONDS, monotonic())
        if due < self._due_at:
            self._due_at = due
            self._listener.wake()

    def renew_now(self) -> None:
        """Renew now: something has changed that operators look for in the process view."""
        self._due_at = 0.0
        self._listener.wake()

    def renew_after_hint(self) -> None:
        """Renew soon, because the row of a held job may have changed: only what the renewal reads is believed.

        However many hints come, this causes no more than one renewal per `MIN_HINT_INTERVAL_SECONDS`.
        """
        self._has_unread_hint = True
        self._due_at = min(self._due_at, self._sent_at + MIN_HINT_INTERVAL_SECONDS)

    async def renew(self) -> None:
        """Renew now, and act on what comes back."""
        sent, sent_boottime = monotonic(), boottime()
        self._has_unread_hint = False
        are_workers_up = self._are_workers_up()
        held, deadlines = self._dispatcher.held_fences(), self._dispatcher.held_deadlines()
        shown = self._snapshot(self.is_watched)
        renewed = await self._connection.execute(
            renew_lease(
                self._host_id,
                held,
                state=shown.state,
                workers_json=shown.workers_json,
                load=shown.load,
                cores=shown.cores,
                problems_json=shown.problems_json,
                deadlines=deadlines,
            )
        )
        if not renewed.is_known:
            # The row was removed while this host was away. Its jobs are lost; the host registers again with the same id.
            await self._connection.execute(self._registration())
            self._listener.on_hint(Reconnected())
        self._sent_at = sent
        self._due_at = sent + renewal_pause_seconds(
            sent,
            self._started_at,
            self._watched_until,
            self._settings.renew_interval,
            are_workers_up=are_workers_up,
        )
        if self._has_unread_hint:  # the hint may be of a commit that this renewal did not see
            self._due_at = min(self._due_at, sent + MIN_HINT_INTERVAL_SECONDS)
        self.streak.record(sent)
        self.database_clock.record(
            sent_boottime,
            renewed.database_time,
            max(renewed.longest_lease_seconds, self._settings.lease_duration),
        )
        self._dispatcher.cluster.is_only_host = renewed.is_alone
        self._dispatcher.cluster.other_hosts_sharing = renewed.sharing_hosts
        for fence in renewed.cancel_requests:
            self._dispatcher.cancel(fence)
        for deadline in renewed.changed_deadlines:
            self._dispatcher.update_deadline(deadline)
        for fence in renewed.lost_leases:
            self._dispatcher.on_lease_lost(fence, rescued=fence in renewed.rescued_leases)
        # Last: a worker that may start jobs again must not find a lost one in its socket.
        self._on_renewed(sent_boottime)


class DatabaseClock:
    """Estimates the database's time.

    Pure: the times of this host are arguments, of CLOCK_BOOTTIME.
    """

    def __init__(self) -> None:
        self._offsets: deque[tuple[float, float]] = (
            deque()
        )  # when, and how far the database's clock was from ours

    def record(self, sent: float, at: datetime, longest: float) -> None:
        """Record the database's time, counted from the sending, so that a slow answer makes no difference."""
        while self._offsets and sent - self._offsets[0][0] > longest:
            self._offsets.popleft()
        self._offsets.append((sent, at.timestamp() - sent))

    def read(self, now: float) -> datetime | None:
        """The estimated time; None before the first renewal."""
        if not self._offsets:
            return None
        return datetime.fromtimestamp(now + min(away for _, away in self._offsets), UTC)
