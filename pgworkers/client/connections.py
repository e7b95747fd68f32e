"""One connection per process, and one per event loop, lent to one caller at a time.

A seat is thrown away when its connection is not idle after use: broken, or left inside a statement by an
exception that was raised through it (Ctrl-C, JobStopped). Before each use a glance at the socket, without a
round trip, finds out whether the server hung up in the meantime.

A server that does not know a statement which this session prepared, or already has one of its name, is another session
than before: a pooler is in between that nothing gave away when the session began. Such a statement was not executed, so
it is sent once more, on a connection that prepares nothing.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import asyncio

    from pgworkers.postgres.session import AsyncSession, BlockingSession
    from pgworkers.postgres.statements import Query

T = TypeVar("T")

#: Connections inherited by fork belong to the parent: kept, so that nothing closes or collects them here.
_inherited_sessions: list[object] = []


class ProcessConnection:
    """The blocking connection of this process."""

    def __init__(self, connect: Callable[[bool], BlockingSession]) -> None:
        """`connect` opens a connection. Its argument: a pooler is known to be there."""
        self._connect = connect
        self._is_pooled = False
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._seat: BlockingSession | None = None

    def run(self, query: Query[T]) -> T:
        self._abandon_after_fork()
        with self._lock:
            try:
                return self._ask(query)
            except Exception as exc:
                if self._is_pooled or not is_pooler_error(exc):
                    raise
            self._is_pooled = True
            self._close_session()
            return self._ask(query)

    def _ask(self, query: Query[T]) -> T:
        seat = self._seat
        if seat is None or not seat.is_reusable:
            self._close_session()
            seat = self._seat = self._connect(self._is_pooled)
        try:
            return seat.run(query)
        except BaseException as exc:
            _mark(exc, seat)
            raise
        finally:
            if not seat.is_idle:
                self._close_session()

    def close(self) -> None:
        self._abandon_after_fork()
        with self._lock:
            self._close_session()

    def close_unused(self) -> None:
        """Close the connection unless a thread uses it just now; the next query opens another."""
        if self._seat is not None and self._pid == os.getpid() and self._lock.acquire(blocking=False):
            try:
                self._close_session()
            finally:
                self._lock.release()

    def _close_session(self) -> None:
        seat, self._seat = self._seat, None
        if seat is not None:
            seat.conn.close()

    def _abandon_after_fork(self) -> None:
        if self._pid != os.getpid():
            _inherited_sessions.append(self._seat)
            self._seat, self._lock, self._pid = None, threading.Lock(), os.getpid()


class LoopConnection:
    def __init__(self) -> None:
        self.pid = os.getpid()
        from asyncio import Lock

        self.lock = Lock()
        self.exchange: AsyncSession | None = None
        self.shutdown_hook = self._close_at_loop_shutdown()

    async def _close_at_loop_shutdown(self) -> AsyncGenerator[None, None]:
        """Closes when the loop shuts its async generators down, as asyncio.run() does before it closes the loop."""
        try:
            yield
        finally:
            self.close_session()

    def close_session(self) -> None:
        """Close without awaiting: the loop may be closed already."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None and self.pid == os.getpid():
            exchange.close_now()


class LoopConnections:
    """The connection of each running event loop."""

    def __init__(self, connect: Callable[[bool], Awaitable[AsyncSession]]) -> None:
        self._connect = connect
        self._is_pooled = False
        self._seats: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopConnection] = (
            weakref.WeakKeyDictionary()
        )

    async def run(self, query: Query[T]) -> T:
        seat = await self._for_running_loop()
        async with seat.lock:
            try:
                return await self._ask(seat, query)
            except Exception as exc:
                if self._is_pooled or not is_pooler_error(exc):
                    raise
            self._is_pooled = True
            seat.close_session()
            return await self._ask(seat, query)

    async def _ask(self, seat: LoopConnection, query: Query[T]) -> T:
        exchange = seat.exchange
        if exchange is None or not exchange.is_reusable:
            seat.close_session()
            exchange = seat.exchange = await self._connect(self._is_pooled)
        try:
            return await exchange.run(query, None)
        except BaseException as exc:
            _mark(exc, exchange)
            raise
        finally:
            if not exchange.is_idle:
                seat.close_session()

    async def close(self) -> None:
        from asyncio import get_running_loop

        seat = self._seats.pop(get_running_loop(), None)
        if seat is not None and seat.pid == os.getpid():
            async with seat.lock:
                await seat.shutdown_hook.aclose()

    def close_unused(self) -> None:
        """Close the connections of event loops that stand still; the next query opens another.

        A task of such a loop may be in the middle of a statement. It would never wake without its connection, so that one
        stays.
        """
        for loop, seat in list(self._seats.items()):
            if not loop.is_running() and not seat.lock.locked() and seat.pid == os.getpid():
                seat.close_session()

    async def _for_running_loop(self) -> LoopConnection:
        from asyncio import get_running_loop

        loop = get_running_loop()
        seat = self._seats.get(loop)
        if seat is not None and seat.pid != os.getpid():
            _inherited_sessions.append(seat)
            seat = None
        if seat is None:
            self._drop_closed_loops()
            seat = self._seats[loop] = LoopConnection()
            await anext(seat.shutdown_hook)
        return seat

    def _drop_closed_loops(self) -> None:
        for loop, seat in list(self._seats.items()):
            if loop.is_closed():
                seat.close_session()
                del self._seats[loop]


def _mark(exc: BaseException, seat: BlockingSession | AsyncSession) -> None:
    """Note on the exception that the connection broke under it."""
    if seat.is_closed:
        exc.connection_lost = True  # type: ignore[attr-defined]


def is_pooler_error(exc: Exception) -> bool:
    """True if a prepared statement was refused because the server's session is not the one that prepared it."""
    from psycopg.errors import DuplicatePreparedStatement, InvalidSqlStatementName

    return isinstance(exc, (DuplicatePreparedStatement, InvalidSqlStatementName))


def lost(exc: Exception) -> bool:
    """Did the connection break under the statement?"""
    return getattr(exc, "connection_lost", False)
