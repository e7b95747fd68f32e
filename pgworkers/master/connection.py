"""One database connection of the host, for one role, that reconnects by itself.

A statement returns its rows, raises `ConnectionDown` if the connection was lost, refused, cut or did not answer in time, or
raises `psycopg.Error` if the statement or its data is the cause. Whether a lost statement was committed is unknown. Every
statement is guarded by a lease or idempotent, so callers send it again. The time limit is also kept on this side: behind a
proxy or a network partition, neither `statement_timeout` nor TCP would report anything.

While Postgres is away, finisher.py keeps the results, lease_keeper.py goes on trying to renew, and no job starts after the
lease has run out (ipc/lease_deadline.py).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import psycopg

from pgworkers import clock
from pgworkers.errors import DatabaseUnreachable
from pgworkers.events import (
    DatabaseConnectionLost,
    DatabaseConnectionRestored,
    EventBus,
    StatementExecuted,
)
from pgworkers.postgres.connect import aconnect
from pgworkers.postgres.driver_errors import first_line
from pgworkers.postgres.session import AsyncSession
from pgworkers.postgres.statements import Query
from pgworkers.settings import Settings

T = TypeVar("T")

#: Errors of the server or the network. `execute` sorts out those that the statement itself caused.
_SERVER_ERRORS = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.InternalError,
    psycopg.ProgrammingError,
)

#: SQLSTATEs of what PL/pgSQL raises.
_PLPGSQL_SQLSTATE_CLASS = "P0"


class QueryExecutor(Protocol):
    """Runs statements: a connection, or the leadership, which does so only while it holds the term."""

    async def execute(self, query: Query[T]) -> T: ...


class ConnectionDown(Exception):
    """The statement got no answer."""


class ReconnectingConnection:
    def __init__(self, role: str, dsn: str, settings: Settings, events: EventBus) -> None:
        self.role = role
        self.is_up = False
        self.session_number = 0  # counts the connections so far
        self._dsn = dsn
        self._settings = settings
        self._events = events
        self._psycopg_connection: psycopg.AsyncConnection[Any] | None = None
        self._exchange: AsyncSession | None = None
        self._down_since: float | None = None
        self._backoff_seconds = 0.0
        self._retry_at = 0.0
        self._is_closed = False
        self._connect_lock = asyncio.Lock()
        self.on_connect: Callable[[psycopg.AsyncConnection[Any]], Awaitable[None]] | None = None

    @property
    def statement_timeout(self) -> float:
        """Seconds that a statement may take."""
        return self._settings.statement_timeout

    @property
    def is_lost(self) -> bool:
        """True if the connection was lost. One that was not needed yet is not lost."""
        return not self.is_up and (self.session_number > 0 or self._down_since is not None)

    async def execute(
        self,
        query: Query[T],
        *,
        session_number: int | None = None,
        raise_refusals: bool = False,
        raise_timeouts: bool = False,
    ) -> T:
        """Run one statement.

        Data errors are raised as they are; everything else becomes `ConnectionDown`.

        With `session_number`, the statement runs only on that
        session: a connection that came back is another one. With `raise_refusals`, errors that code in the database
        raises are raised as they are, too: a user's trigger says nothing about the connection. With `raise_refusals` or
        `raise_timeouts`, so is a statement timeout: the server answers, so the statement is the cause.
        """
        exchange = self._exchange
        if exchange is None or exchange.is_closed:
            await self.ensure_connected()
            exchange = self._exchange
        if exchange is None or (session_number is not None and session_number != self.session_number):
            raise ConnectionDown("the session is gone")
        began = clock.monotonic()
        name = query.statement.name
        try:
            answer = await exchange.run(query, self._settings.statement_timeout + 1.0)
        except _SERVER_ERRORS as error:
            self._events.emit(StatementExecuted(name, clock.monotonic() - began, type(error).__name__))
            slow = (raise_timeouts or raise_refusals) and is_statement_timeout(error)
            if (
                slow
                or (raise_refusals and is_raised_by_database_code(error))
                or isinstance(error, psycopg.errors.ProgramLimitExceeded)
            ):
                raise
            self.mark_lost(error)
            raise ConnectionDown(str(error)) from error
        except psycopg.Error as error:
            self._events.emit(StatementExecuted(name, clock.monotonic() - began, type(error).__name__))
            raise
        took = clock.monotonic() - began
        self._events.emit(StatementExecuted(name, took, None))
        self._mark_up()
        return answer

    async def ensure_connected(self) -> psycopg.AsyncConnection[Any]:
        """Return the open connection. Waits for the backoff and connects if needed."""
        async with self._connect_lock:  # other callers get the same connection
            return await self._connect_if_needed()

    async def _connect_if_needed(self) -> psycopg.AsyncConnection[Any]:
        if self._psycopg_connection is not None and not self._psycopg_connection.closed:
            return self._psycopg_connection
        wait = self._retry_at - clock.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        if self._is_closed:
            raise ConnectionDown("the host is leaving")
        limit = self._settings.connect_timeout + self._settings.statement_timeout
        began = clock.monotonic()
        try:
            async with asyncio.timeout(limit):
                conn = await aconnect(self._settings, self._dsn, self.role)
                if self.on_connect is not None:
                    await self.on_connect(conn)
        except (DatabaseUnreachable, TimeoutError, *_SERVER_ERRORS) as error:
            self._events.emit(StatementExecuted("connect", clock.monotonic() - began, type(error).__name__))
            self.mark_lost(error)
            raise ConnectionDown(str(error)) from error
        self._events.emit(StatementExecuted("connect", clock.monotonic() - began, None))
        self._psycopg_connection, self._exchange = (
            conn,
            AsyncSession(conn, self._settings.schema),
        )
        self.session_number += 1
        self._mark_up()
        return conn

    def _mark_up(self) -> None:
        self.is_up = True
        self._backoff_seconds = 0.0
        if self._down_since is not None:
            self._events.emit(DatabaseConnectionRestored(self.role, clock.monotonic() - self._down_since))
            self._down_since = None

    def mark_lost(self, error: BaseException) -> None:
        """Record the loss, drop an unusable connection, and increase the backoff."""
        conn = self._psycopg_connection
        unusable = (
            conn is None
            or conn.closed
            or conn.broken
            or isinstance(error, psycopg.errors.ReadOnlySqlTransaction)
        )
        if unusable and self._exchange is not None:
            self._exchange.abort()
            self._psycopg_connection = self._exchange = None
        if unusable:
            self.is_up = False
        now = clock.monotonic()
        if self._down_since is None:
            self._down_since = now
            self._events.emit(DatabaseConnectionLost(self.role, first_line(error)))
        self._backoff_seconds = min(self._settings.reconnect_max_delay, max(0.1, self._backoff_seconds * 2))
        self._retry_at = now + self._backoff_seconds * random.uniform(0.5, 1.0)

    async def wait_for_backoff(self) -> None:
        """Wait until the backoff allows the next try."""
        wait = self._retry_at - clock.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)

    async def close(self) -> None:
        self._is_closed = True
        conn, exchange, self._psycopg_connection, self._exchange = (
            self._psycopg_connection,
            self._exchange,
            None,
            None,
        )
        self.is_up = False
        if conn is not None and exchange is not None:
            exchange.close_now()


def is_raised_by_database_code(error: psycopg.Error) -> bool:
    """True if PL/pgSQL code raised the error, and not the server."""
    return (error.sqlstate or "").startswith(_PLPGSQL_SQLSTATE_CLASS)


def is_statement_timeout(error: psycopg.Error) -> bool:
    """True if the server ended the statement because it, or a lock that it waited for, took too long."""
    return isinstance(error, (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable))
