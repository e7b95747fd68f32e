"""How a host comes to be known: its row, under a fresh id, before its first process.

The renewer: listens for notifications and renews the host's row, on one connection.

One UPDATE of one row keeps every lease of the host alive and brings back which of its jobs are wished away and
which it no longer owns. It also keeps the no-gap record: how long this host has renewed without missing the lease;
and what time it was there (reckoning).

The database's time as this host reckons it, to judge others by: its clock may be set forward, and then nobody is lost.

A host is called lost when it has not renewed for its lease, by the database's clock. When that clock jumps forward by more
than a lease, everybody looks lost until they renew. So who judges goes by the earlier of two times: the database's own, and
this one, reckoned by the judge's own clock (BOOTTIME). Each renewal compares the two clocks, and the smallest difference
that was seen within the longest lease of the cluster counts: so long, and everybody who lives has renewed by the new time.
A clock that is set back is believed at once: leases last longer by the jump, which loses nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.pq.abc import PGconn

from pgworkers.clock import boottime, monotonic
from pgworkers.events import EventBus, NotificationReceived
from pgworkers.job import hosts as host_rows
from pgworkers.job.hosts import renew_lease
from pgworkers.job.notification_payloads import (
    MIN_HINT_INTERVAL_SECONDS,
    HostHint,
    Reconnected,
    parse_host_hint,
)
from pgworkers.master.connection import ConnectionDown, ReconnectingConnection
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.status import NEW_JOB_SHOWN_SECONDS, HostSnapshot
from pgworkers.postgres.session import AsyncSession
from pgworkers.postgres.statements import Query
from pgworkers.settings import Settings

if TYPE_CHECKING:
    from pgworkers.master.host import Host


def registration(host: Host) -> Query[Any]:
    return host_rows.register_host(
        host.id,
        socket.gethostname(),
        os.getpid(),
        host.settings.host_label,
        host.plan.app.name,
        host.plan.app.version,
        list(host.plan.queues),
        [task.name for task in host.plan.app.tasks],
        host.settings.lease_duration,
        host.metrics_address,
    )


async def register(host: Host) -> bool:
    """However long it takes until the database answers. False: it was told to leave before that."""
    connection = host.connections["listen"]
    while not host.is_leaving:
        sent = boottime()
        try:
            await connection.execute(registration(host))
        except ConnectionDown:
            await connection.wait_for_backoff()
        else:
            host._on_renewed(sent)
            return True
    return False


#: A young host renews every second, so that operators see its workers as they come up, and no longer than it takes them.
YOUNG_HOST_SECONDS = 10.0
#: So does one that somebody watches (`pgworkers top`), for so long after each word of theirs.
WATCHED_HOST_SECONDS = 10.0


def renewal_pause_seconds(
    now: float, born: float, watched: float, renew: float, *, are_workers_up: bool = False
) -> float:
    """Seconds until the next renewal; `settled`: all workers are up, and this one said so. Pure."""
    fresh = now - born < YOUNG_HOST_SECONDS and not are_workers_up
    return min(1.0, renew) if fresh or now < watched else renew


class RenewalStreak:
    """Since when this host has renewed without a gap; pure. `gap` is the longest silence that is no gap."""

    def __init__(self, gap: float) -> None:
        self._max_gap_seconds = gap
        self._since: float | None = None
        self._last: float | None = None

    def record(self, sent: float) -> None:
        if self._last is None or sent - self._last > self._max_gap_seconds or self._since is None:
            self._since = sent
        self._last = sent

    def has_lasted(self, period: float, now: float) -> bool:
        """Has it renewed without a gap for `period`, and is the last one fresh?"""
        if self._since is None or self._last is None:
            return False
        return now - self._last <= self._max_gap_seconds and now - self._since >= period


class LeaseKeeper:
    def __init__(
        self,
        host: str,
        connection: ReconnectingConnection,
        dispatcher: Dispatcher,
        events: EventBus,
        settings: Settings,
        snapshot: Callable[[], HostSnapshot],
        registration: Callable[[], Query[Any]],
        on_hint: Callable[[HostHint], None],
        on_notifications_read: Callable[[], None],
        on_renewed: Callable[[float], None],
        are_workers_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._host_id = host
        self._connection = connection
        self._dispatcher = dispatcher
        self._events = events
        self._settings = settings
        self._snapshot = snapshot
        self._registration = registration
        self._on_hint = on_hint
        self._on_notifications_read = on_notifications_read  # after all that came together
        self._on_renewed = on_renewed  # with the time of its sending, on CLOCK_BOOTTIME
        self._are_workers_up = are_workers_up  # have all workers come up?
        self._due_at = self._sent_at = self._watched_until = 0.0
        self._shown_jobs: frozenset[int] = frozenset()  # that workers had in the last process view
        self._must_renew_soon = False  # a hint came after the last renewal was sent
        self._wake: Callable[[], None] | None = None  # ends the wait for the next renewal
        self._started_at = monotonic()
        self._is_stopping = False
        self._stopped = asyncio.Event()
        self.database_clock = DatabaseClock()
        self.streak = RenewalStreak(2 * settings.renew_interval + settings.statement_timeout)
        connection.on_connect = self.listen

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
        self.read_pending(conn.pgconn)
        if not self._is_stopping:
            await self.wait(conn.pgconn, conn.fileno())

    async def stop(self) -> None:
        """Renew no more; waits for what is on its way. A renewal that finds the row gone would make it anew."""
        self._is_stopping = True
        if self._wake is not None:
            self._wake()
        await self._stopped.wait()

    def read_pending(self, pgconn: PGconn) -> None:
        """The notices that are here; what came right behind the answer to a renewal has left the socket already.

        Straight from libpq: psycopg's own generator takes several turns of the loop to say the same.
        """
        pgconn.consume_input()
        received = []
        while (notice := pgconn.notifies()) is not None:
            received.append(NotificationReceived(notice.extra.decode(errors="replace")))
            if (hint := parse_host_hint(notice.extra)) is not None:
                self._on_hint(hint)
        self._on_notifications_read()
        self._events.emit_all(received)

    async def wait(self, pgconn: PGconn, fd: int) -> None:
        """Until the next renewal is due. Notices are heard as they come, without waking this task: a job waits for them."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        due = self._due_at

        def end() -> None:
            if not over.done():
                over.set_result(None)

        def came() -> None:
            try:
                self.read_pending(pgconn)
            except psycopg.Error as error:
                loop.remove_reader(fd)
                if not over.done():
                    over.set_exception(error)
            if self._due_at < due:  # a notice wants it earlier
                end()

        timer = loop.call_later(max(0.05, due - monotonic()), end)
        loop.add_reader(fd, came)
        self._wake = end
        try:
            await over
        finally:
            self._wake = None
            timer.cancel()
            loop.remove_reader(fd)

    def _on_notify(self, said: str) -> None:
        if (hint := parse_host_hint(said)) is not None:
            self._on_hint(hint)
        self._on_notifications_read()
        self._events.emit(NotificationReceived(said))

    @property
    def is_watched(self) -> bool:
        return monotonic() < self._watched_until

    def on_watched(self) -> None:
        """Somebody looks at the process view: for a while it is written every second."""
        self._watched_until = monotonic() + WATCHED_HOST_SECONDS
        self._due_at = min(self._due_at, self._sent_at + 1.0)

    def renew_for_new_jobs(self) -> None:
        """A job runs that the process view does not show yet: it is written within a second of the last time."""
        due = max(self._sent_at + NEW_JOB_SHOWN_SECONDS, monotonic())
        if due < self._due_at:
            self._due_at = due
            if self._wake is not None:
                self._wake()

    def renew_now(self) -> None:
        """Something has changed that operators look for in the process view: it is written now."""
        self._due_at = 0.0
        if self._wake is not None:
            self._wake()

    def renew_soon(self) -> None:
        """Renew soon, because the row of a held job may have changed: only what the renewal reads is believed.

        However many hints come, this causes no more than one renewal per `MIN_HINT_INTERVAL_SECONDS`.
        """
        self._must_renew_soon = True
        self._due_at = min(self._due_at, self._sent_at + MIN_HINT_INTERVAL_SECONDS)

    async def renew(self) -> None:
        """Renew now, and act on what comes back."""
        sent, sent_boottime = monotonic(), boottime()
        self._must_renew_soon = False
        are_workers_up = self._are_workers_up()
        held, deadlines = self._dispatcher.held_fences(), self._dispatcher.held_deadlines()
        renewed = await self._connection.execute(
            renew_lease(self._host_id, held, *self._snapshot(), deadlines=deadlines)
        )
        if not renewed.is_known:
            # The row was swept while this host was away. Its jobs are lost; the host begins anew under the same id.
            await self._connection.execute(self._registration())
            self._on_hint(Reconnected())
        self._sent_at = sent
        self._due_at = sent + renewal_pause_seconds(
            sent,
            self._started_at,
            self._watched_until,
            self._settings.renew_interval,
            are_workers_up=are_workers_up,
        )
        if self._must_renew_soon:  # the hint may be of a commit that this renewal did not see
            self._due_at = min(self._due_at, sent + MIN_HINT_INTERVAL_SECONDS)
        self.streak.record(sent)
        self.database_clock.record(
            sent_boottime,
            renewed.database_time,
            max(renewed.longest_lease_seconds, self._settings.lease_duration),
        )
        self._dispatcher.is_only_host = renewed.is_alone
        self._dispatcher.other_hosts_sharing = renewed.sharing_hosts
        for fence in renewed.cancel_requests:
            self._dispatcher.cancel(fence)
        for deadline in renewed.changed_deadlines:
            self._dispatcher.update_deadline(deadline)
        for fence in renewed.lost_leases:
            self._dispatcher.on_lease_lost(fence, rescued=fence in renewed.rescued_leases)
        # Last: a worker that begins jobs again must not find one in its socket that is lost.
        self._on_renewed(sent_boottime)

    async def listen(self, conn: psycopg.AsyncConnection[Any]) -> None:
        conn.add_notify_handler(
            lambda notice: self._on_notify(notice.payload)
        )  # those that come with an answer
        # Not conn.execute(): notifications come before its answer is complete, and psycopg leaves them in libpq until then.
        exchange = AsyncSession(conn, self._settings.schema)
        for channel in (self._settings.schema, self._host_id):
            await exchange.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)).as_bytes(conn))
        self._due_at = 0.0  # what was missed while deaf comes with the next renewal
        asyncio.get_running_loop().call_soon(self._on_hint, Reconnected())


class DatabaseClock:
    """Pure: its times are arguments, of CLOCK_BOOTTIME."""

    def __init__(self) -> None:
        self._offsets: deque[tuple[float, float]] = (
            deque()
        )  # when, and how far the database's clock was from ours

    def record(self, sent: float, at: datetime, longest: float) -> None:
        """The database answered with its time. Counted from the sending, so a slow answer never makes us late."""
        while self._offsets and sent - self._offsets[0][0] > longest:
            self._offsets.popleft()
        self._offsets.append((sent, at.timestamp() - sent))

    def read(self, now: float) -> datetime | None:
        """None before the first renewal: nobody is judged by then, or by the database's clock alone."""
        if not self._offsets:
            return None
        return datetime.fromtimestamp(now + min(away for _, away in self._offsets), UTC)
