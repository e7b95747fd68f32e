"""LISTEN, and which part of the host a notification wakes.

`NotificationListener` reads notifications from the connection `listen`, which it shares with the renewals of the lease
keeper. `HintRouter` passes each one to the part of the host that it concerns. Any login can send a notification, so it is
only a hint to query the tables: nothing in it is believed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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

    Straight from libpq: psycopg's generator `notifies()` holds the lock of the connection, which also renews the lease.
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
                    self._lease_keeper.renew_soon()
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
