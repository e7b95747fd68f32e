"""LISTEN, which part of the host a notification wakes, and of which queues a host wants to be notified.

`NotificationListener` reads notifications from the connection `listen`, which it shares with the renewals of the lease
keeper. `HintRouter` passes each one to the part of the host that it concerns. Any login can send a notification, so it is
only a hint to query the tables: nothing in it is believed. `SleepPolicy` decides of which queues this host wants to be
notified, and when it claims without a notification. It is pure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.pq.abc import PGconn

from pgworkers.clock import monotonic
from pgworkers.events import EventBus, NotificationReceived
from pgworkers.job.notification_payloads import (
    BatchChanged,
    DueSoon,
    HostHint,
    JobChanged,
    JobsReady,
    QueueChanged,
    Reconnected,
    RequestCreated,
    ViewWatched,
    parse_host_hint,
)
from pgworkers.postgres.session import AsyncSession

if TYPE_CHECKING:
    from pgworkers.master.batch_completion import BatchCompleter
    from pgworkers.master.claimer import Claimer
    from pgworkers.master.dispatcher import Dispatcher
    from pgworkers.master.duties import DutyRunner
    from pgworkers.master.lease_keeper import LeaseKeeper
    from pgworkers.master.operator_requests import OperatorRequests
    from pgworkers.master.scaling import Scaler


class NotificationListener:
    """Reads the notifications of the schema's channel and of the host's own channel.

    Reads from libpq directly, because psycopg's `notifies()` would hold the connection's lock, and renewals use the same
    connection.
    """

    def __init__(self, *, host_id: str, schema: str, events: EventBus) -> None:
        self._host_id = host_id
        self._schema = schema
        self._events = events
        self._end_wait: Callable[[], None] | None = None
        self.on_hint: Callable[[HostHint], None] = lambda hint: None
        #: Called after LISTEN on a new connection: notifications may have been missed before.
        self.on_listening: Callable[[], None] = lambda: None

    async def listen(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Start to listen on a new connection."""
        connection.add_notify_handler(lambda notice: self._on_notify(notice.payload))
        # Not connection.execute(): notifications may arrive before its answer is complete, and psycopg leaves them in libpq.
        session = AsyncSession(connection, self._schema)
        for channel in (self._schema, self._host_id):
            await session.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)).as_bytes(connection))
        self.on_listening()
        asyncio.get_running_loop().call_soon(self.on_hint, Reconnected())

    def read_pending(self, pgconn: PGconn) -> None:
        """Read the notifications that have arrived, also those that came with the answer to a statement."""
        pgconn.consume_input()
        received = []
        while (notice := pgconn.notifies()) is not None:
            received.append(NotificationReceived(notice.extra.decode(errors="replace")))
            if (hint := parse_host_hint(notice.extra)) is not None:
                self.on_hint(hint)
        self._events.emit_all(received)

    async def wait(self, pgconn: PGconn, fd: int, due_at: Callable[[], float]) -> None:
        """Read notifications as they arrive, until `due_at`, which a hint may have moved to an earlier time."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        first_due_at = due_at()

        def end() -> None:
            if not over.done():
                over.set_result(None)

        def on_readable() -> None:
            try:
                self.read_pending(pgconn)
            except psycopg.Error as error:
                loop.remove_reader(fd)
                if not over.done():
                    over.set_exception(error)
            if due_at() < first_due_at:
                end()

        timer = loop.call_later(max(0.05, first_due_at - monotonic()), end)
        loop.add_reader(fd, on_readable)
        self._end_wait = end
        try:
            await over
        finally:
            self._end_wait = None
            timer.cancel()
            loop.remove_reader(fd)

    def wake(self) -> None:
        """End the wait."""
        if self._end_wait is not None:
            self._end_wait()

    def _on_notify(self, payload: str) -> None:
        """A notification that psycopg found in the answer to a statement."""
        if (hint := parse_host_hint(payload)) is not None:
            self.on_hint(hint)
        self._events.emit(NotificationReceived(payload))


class HintRouter:
    """Wakes the part of the host that a notification concerns."""

    def __init__(
        self,
        *,
        host_id: str,
        dispatcher: Dispatcher,
        claimer: Claimer,
        scaler: Scaler,
        duties: DutyRunner,
        lease_keeper: LeaseKeeper,
        batch_completer: BatchCompleter,
        operator_requests: OperatorRequests,
    ) -> None:
        self._host_id = host_id
        self._dispatcher = dispatcher
        self._claimer = claimer
        self._scaler = scaler
        self._duties = duties
        self._lease_keeper = lease_keeper
        self._batch_completer = batch_completer
        self._operator_requests = operator_requests

    def route(self, hint: HostHint) -> None:
        match hint:
            case JobsReady(queue, "", _):
                self._claimer.on_notification(queue)
            case JobsReady(queue, host_id, is_one_job):
                if host_id == self._host_id:
                    self._claimer.on_notification_for_this_host(queue, is_one_job=is_one_job)
            case QueueChanged(queue):
                if queue in self._dispatcher.buffers:
                    self._claimer.on_notification(queue)
                    self._scaler.wake()
                self._duties.on_due_soon()
            case JobChanged(job_id):
                if job_id in self._dispatcher.held_jobs:
                    self._lease_keeper.renew_after_hint()
            case BatchChanged(batch_id):
                self._batch_completer.on_notification(batch_id)
            case RequestCreated():
                self._operator_requests.wake()
            case ViewWatched():
                self._lease_keeper.on_watched()
            case DueSoon():
                self._duties.on_due_soon()
            case Reconnected():
                self._claimer.on_reconnect()
                self._scaler.wake()
                self._operator_requests.wake()
                self._duties.on_due_soon()


NOTIFICATION_WINDOW_SECONDS = 0.1
MAX_NOTIFICATIONS_PER_WINDOW = 20  # notifications of a queue within a window
AWAKE_CLAIM_SECONDS = 0.005
AWAKE_QUIET_SECONDS = 0.1
RECHECK_DELAYS_SECONDS = (0.003, 0.015, 0.075)
MAX_HOSTS_SHARING_CLAIMS = 10


class SleepPolicy:
    """Of which queues a host wants to be notified, and when it claims by itself. Pure.

    Notifications make all commits on the server wait for one another, so only hosts that need them get them. A network card
    does the same under load: interrupts while little arrives, polling while much does.

    A queue is *asleep* while few notifications of it arrive: each new job wakes one sleeping host at once. When more than
    `MAX_NOTIFICATIONS_PER_WINDOW` arrive, it is *awake*: no host is notified of it, and this host claims every
    `AWAKE_CLAIM_SECONDS` while it has room. When it had room and found nothing for `AWAKE_QUIET_SECONDS`, the queue falls
    asleep again. Hosts that share a queue share these claims: each claims less often and stays awake longer, by up to
    `MAX_HOSTS_SHARING_CLAIMS` times, so that together they claim as often as one.

    A queue is *full* when the host was notified of a job for which it had no room, and passed the notification on. It asks
    to be notified again when a claim has found fewer jobs than there was room for. (docs/adr/21)

    Falling asleep has a gap: a transaction that saw no sleeping host may commit its job just after this host has claimed. So
    the host claims again a few times, at growing intervals (`RECHECK_DELAYS_SECONDS`); what commits even later is found by
    the poll. If another host was asleep already, that transaction has notified it, and there are no more claims.

    A queue that is asleep and gave fewer jobs than there was room for is *known to be empty*. Whatever becomes ready in it
    is notified, so until then no claim is for it, however many workers become idle. This lasts no longer than the poll
    interval, or until a claim may scan what the last one did not.
    """

    def __init__(self) -> None:
        self._notification_windows: dict[
            str, tuple[float, int]
        ] = {}  # queue -> begin of the window, notifications in it
        self._awake_last_useful: dict[str, float] = {}  # queue -> when it last had jobs while awake
        self._announced: frozenset[str] | None = None  # what the database knows; None: unknown
        self._recheck_times: list[float] = []
        self.host_count = 1  # that serve these queues, this one included
        self._full_queues: set[str] = set()
        self._empty_until: dict[str, float] = {}  # queue -> until when
        self._poll_due: set[str] = set()  # no longer known to be empty, and not notified
        self._polled_queues: set[str] = set()  # of these, queues of the last claim
        self._notified_since_claim: set[str] | None = (
            set()
        )  # queues notified since the last claim was sent; None: any may have jobs

    def record_notification(self, queue: str, now: float) -> None:
        """A notification of this queue arrived."""
        self._empty_until.pop(queue, None)
        self._poll_due.discard(queue)
        if self._notified_since_claim is not None:
            self._notified_since_claim.add(queue)
        begin, count = self._notification_windows.get(queue, (now, 0))
        begin, count = (begin, count + 1) if now - begin <= NOTIFICATION_WINDOW_SECONDS else (now, 1)
        self._notification_windows[queue] = (begin, count)
        if count > MAX_NOTIFICATIONS_PER_WINDOW:
            self._awake_last_useful[queue] = now

    def is_awake(self, queue: str) -> bool:
        """True if the host claims from this queue without notifications."""
        return queue in self._awake_last_useful

    def assume_any_ready(self) -> None:
        """Something changed: jobs of any queue may be ready."""
        self._empty_until.clear()
        self._poll_due.clear()
        self._notified_since_claim = None

    def forget_announcement(self) -> None:
        """The database may have forgotten what this host announced."""
        self._announced = None
        self.assume_any_ready()

    def announcement_due(self, queues: Iterable[str]) -> frozenset[str] | None:
        """The queues of which the host wants to be notified; None: the database knows that already."""
        wanted = frozenset(queues) - self._awake_last_useful.keys() - self._full_queues
        return None if wanted == self._announced else wanted

    def record_announcement(
        self, asleep: frozenset[str], now: float, unattended: frozenset[str] | None = None
    ) -> None:
        """The database knows. Queues that fell asleep are claimed from again.

        `unattended`: the queues for which no other host slept; None: all of them.
        """
        fallen = asleep - (self._announced or frozenset())
        if fallen:
            self.assume_any_ready()
        if fallen if unattended is None else fallen & unattended:
            self._recheck_times = [now + after for after in RECHECK_DELAYS_SECONDS]
        self._announced = asleep

    def record_full(self, queues: Set[str]) -> None:
        """The database knows that this host is not to be notified of these queues: it has no room."""
        self._full_queues |= queues
        if self._announced is not None:
            self._announced -= queues

    def is_known_empty(self, queue: str, now: float) -> bool:
        return self._empty_until.get(queue, now) > now

    def record_claim_sent(self) -> None:
        """A claim was sent. It may miss jobs that are notified from now on."""
        self._notified_since_claim = set()

    def was_polled(self, queue: str) -> bool:
        """True if the last claim was for this queue only because the poll was due, without a notification."""
        return queue in self._polled_queues

    def record_claim(
        self, room: Mapping[str, int], found: Mapping[str, int], now: float, next_claim_at: float
    ) -> None:
        """A claim for `room` jobs of each queue came back with `found`.

        `next_claim_at`: when to claim once more, even without a notification.
        """
        self._recheck_times = [look for look in self._recheck_times if look > now]
        self._polled_queues = room.keys() & (self._poll_due | self._empty_until.keys())
        self._poll_due -= room.keys()
        for queue, count in room.items():
            if found.get(queue, 0) >= count:
                self._empty_until.pop(queue, None)
                continue
            self._full_queues.discard(queue)
            if (
                self._notified_since_claim is not None
                and queue not in self._notified_since_claim
                and queue in (self._announced or ())
            ):
                self._empty_until[queue] = next_claim_at
        idle = room.keys() - found.keys()
        for queue, used in list(self._awake_last_useful.items()):
            if queue not in idle:
                self._awake_last_useful[queue] = now
            elif now - used > AWAKE_QUIET_SECONDS * self._hosts_sharing():
                del self._awake_last_useful[queue]
                self._notification_windows.pop(queue, None)

    def seconds_until_claim(self, now: float, poll: float, room: bool) -> float:
        """How long the host may wait for a notification before it claims anyway.

        Consumes what is due.
        """
        pause = poll
        if self._recheck_times and self._recheck_times[0] <= now:
            del self._recheck_times[0]
            self.assume_any_ready()
            return 0.0
        if self._empty_until:
            next_claim_at = min(self._empty_until.values())
            if next_claim_at <= now:
                self._poll_due |= {queue for queue, until in self._empty_until.items() if until <= now}
                self._empty_until = {
                    queue: until for queue, until in self._empty_until.items() if until > now
                }
                return 0.0
            pause = min(pause, next_claim_at - now)
        if self._recheck_times:
            pause = min(pause, self._recheck_times[0] - now)
        if self._awake_last_useful and room:
            pause = min(pause, AWAKE_CLAIM_SECONDS * self._hosts_sharing())
        return pause

    def _hosts_sharing(self) -> int:
        return min(self.host_count, MAX_HOSTS_SHARING_CLAIMS)
