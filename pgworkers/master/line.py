"""One database connection of the host, for one role, that comes back by itself.

A statement either answers, or raises `LineDown`: the connection was lost, refused, cut, or did not answer in
time. Whether a lost statement was committed is unknown; every verb is guarded by lease or idempotent, so callers send it
again. The time limit is kept on this side too: behind a proxy or a silent partition both kernels go on acknowledging,
so neither `statement_timeout` nor TCP would ever tell.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import psycopg

from pgworkers import clock
from pgworkers.errors import DatabaseUnreachable
from pgworkers.events import DatabaseBack, DatabaseLost, StatementRun
from pgworkers.facts import Facts
from pgworkers.postgres.connect import aconnect
from pgworkers.postgres.exchange import Exchange
from pgworkers.postgres.statements import Query
from pgworkers.postgres.wording import shut
from pgworkers.settings import Settings

T = TypeVar("T")

#: Errors that say something about the server or the way to it, never about the data that was sent.
_TRANSIENT = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.InternalError,
    psycopg.ProgrammingError,
)

#: Lines that serve nothing but statements. (On the others somebody listens, or holds a lock.)
SOLE = frozenset({"claim", "finish"})

#: SQLSTATEs of what PL/pgSQL raises.
_RAISED = "P0"


class Asker(Protocol):
    """Who runs a duty's statements: the leadership, or an operator's own line."""

    async def ask(self, query: Query[T]) -> T: ...


class LineDown(Exception):
    """The statement got no answer."""


class Line:
    def __init__(self, role: str, dsn: str, settings: Settings, facts: Facts) -> None:
        self.role = role
        self.up = False
        self.session = 0  # counts the connections this line has had
        self._dsn = dsn
        self._settings = settings
        self._facts = facts
        self._conn: psycopg.AsyncConnection[Any] | None = None
        self._exchange: Exchange | None = None
        self._down_since: float | None = None
        self._pause = 0.0
        self._not_before = 0.0
        self._closed = False
        self._connecting = asyncio.Lock()
        self.on_connect: Callable[[psycopg.AsyncConnection[Any]], Awaitable[None]] | None = None

    @property
    def time_limit(self) -> float:
        """Seconds that a statement may take."""
        return self._settings.statement_timeout

    @property
    def down(self) -> bool:
        """Was it lost? One that nobody has needed yet is not."""
        return not self.up and (self.session > 0 or self._down_since is not None)

    async def ask(
        self,
        query: Query[T],
        *,
        session: int | None = None,
        refusable: bool = False,
        timeouts: bool = False,
        then: Callable[[T], None] | None = None,
    ) -> T:
        """Run one statement; data errors pass through, everything else becomes `LineDown`. `then`: who has the answer first.

        With `session`, only on that very session: a connection that came back is another one. With `refusable`, what code in
        the database raises passes through, too: a trigger of the user's says nothing about the connection. With `refusable`
        or `timeouts`, so does the end of a statement that the server found too slow: the server answers, so the statement is
        the cause.
        """
        exchange = self._exchange
        if exchange is None or exchange.closed:
            await self.connection()
            exchange = self._exchange
        if exchange is None or (session is not None and session != self.session):
            raise LineDown("the session is gone")
        began = clock.monotonic()
        name = query.statement.name
        try:
            answer = await exchange.ask(query, self._settings.statement_timeout + 1.0)
        except _TRANSIENT as error:
            self._facts.tell(StatementRun(name, clock.monotonic() - began, type(error).__name__))
            slow = (timeouts or refusable) and timed_out(error)
            if (
                slow
                or (refusable and raised(error))
                or isinstance(error, psycopg.errors.ProgramLimitExceeded)
            ):
                raise
            self.lose(error)
            raise LineDown(str(error)) from error
        except psycopg.Error as error:
            self._facts.tell(StatementRun(name, clock.monotonic() - began, type(error).__name__))
            raise
        took = clock.monotonic() - began
        if then is not None:
            then(answer)
        self._facts.tell(StatementRun(name, took, None))
        self._answered()
        return answer

    async def connection(self) -> psycopg.AsyncConnection[Any]:
        """The open connection, after waiting out the back-off and connecting if need be."""
        async with self._connecting:  # whoever else asks meanwhile gets the same one
            return await self._connected()

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        if self._conn is not None and not self._conn.closed:
            return self._conn
        wait = self._not_before - clock.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        if self._closed:
            raise LineDown("the host is leaving")
        limit = self._settings.connect_timeout + self._settings.statement_timeout
        began = clock.monotonic()
        try:
            async with asyncio.timeout(limit):
                conn = await aconnect(self._settings, self._dsn, self.role)
                if self.on_connect is not None:
                    await self.on_connect(conn)
        except (DatabaseUnreachable, TimeoutError, *_TRANSIENT) as error:
            self._facts.tell(StatementRun("connect", clock.monotonic() - began, type(error).__name__))
            self.lose(error)
            raise LineDown(str(error)) from error
        self._facts.tell(StatementRun("connect", clock.monotonic() - began, None))
        self._conn, self._exchange = conn, Exchange(conn, self._settings.schema, sole=self.role in SOLE)
        self.session += 1
        self._answered()
        return conn

    def _answered(self) -> None:
        self.up = True
        self._pause = 0.0
        if self._down_since is not None:
            self._facts.tell(DatabaseBack(self.role, clock.monotonic() - self._down_since))
            self._down_since = None

    def lose(self, error: BaseException) -> None:
        """Note the loss, drop a connection that cannot be used any more, and let the pause grow."""
        conn = self._conn
        unusable = (
            conn is None
            or conn.closed
            or conn.broken
            or isinstance(error, psycopg.errors.ReadOnlySqlTransaction)
        )
        if unusable and self._exchange is not None:
            self._exchange.cut()
            self._conn = self._exchange = None
        if unusable:
            self.up = False
        now = clock.monotonic()
        if self._down_since is None:
            self._down_since = now
            self._facts.tell(DatabaseLost(self.role, first_line(error)))
        self._pause = min(self._settings.reconnect, max(0.1, self._pause * 2))
        self._not_before = now + self._pause * random.uniform(0.5, 1.0)

    async def rest(self) -> None:
        """Wait until the back-off allows the next try."""
        wait = self._not_before - clock.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)

    async def close(self) -> None:
        self._closed = True
        conn, exchange, self._conn, self._exchange = self._conn, self._exchange, None, None
        self.up = False
        if conn is not None and exchange is not None:
            exchange.leave()
            try:
                async with asyncio.timeout(1.0):
                    await conn.close()
            except (TimeoutError, psycopg.Error):
                shut(conn.pgconn)


def raised(error: psycopg.Error) -> bool:
    """Did code in the database say so, and not the server?"""
    return (error.sqlstate or "").startswith(_RAISED)


def timed_out(error: psycopg.Error) -> bool:
    """Did the server end the statement because it, or a lock that it waited for, took too long?"""
    return isinstance(error, (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable))


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
