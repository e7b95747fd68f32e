"""One connection per process, and one per event loop, lent to one caller at a time.

A seat is thrown away when its connection is not idle after use: broken, or left inside a statement by an
exception that was raised through it (Ctrl-C, JobStopped). Before each use a glance at the socket, without a
round trip, finds out whether the server hung up in the meantime.
"""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    import psycopg
    from psycopg.pq.abc import PGconn

#: Connections inherited by fork belong to the parent: kept, so that nothing closes or collects them here.
_inherited: list[object] = []


class Seats:
    """The blocking connection of this process."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._connect = connect
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._conn: psycopg.Connection[Any] | None = None

    @contextmanager
    def take(self) -> Iterator[psycopg.Connection[Any]]:
        self._after_fork()
        with self._lock:
            if self._conn is not None and not alive(self._conn.pgconn):
                self._drop()
            if self._conn is None:
                self._conn = self._connect()
            conn = self._conn
            try:
                yield conn
            except BaseException as exc:
                mark(exc, conn)
                raise
            finally:
                if not idle(conn.pgconn):
                    self._drop()

    def close(self) -> None:
        self._after_fork()
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            _inherited.append(self._conn)
            self._conn, self._lock, self._pid = None, threading.Lock(), os.getpid()


class _LoopSeat:
    def __init__(self) -> None:
        self.pid = os.getpid()
        from asyncio import Lock

        self.lock = Lock()
        self.conn: psycopg.AsyncConnection[Any] | None = None
        self.until_shutdown = self._until_shutdown()

    async def _until_shutdown(self) -> AsyncGenerator[None, None]:
        """Closes when the loop shuts its async generators down, as asyncio.run() does before it closes the loop."""
        try:
            yield
        finally:
            self.finish()

    def finish(self) -> None:
        """Close without awaiting: the loop may be closed already."""
        conn, self.conn = self.conn, None
        if conn is not None and self.pid == os.getpid():
            conn.pgconn.finish()


class AsyncSeats:
    """The connection of each running event loop."""

    def __init__(self, connect: Callable[[], Awaitable[psycopg.AsyncConnection[Any]]]) -> None:
        self._connect = connect
        self._seats: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopSeat] = (
            weakref.WeakKeyDictionary()
        )

    @asynccontextmanager
    async def take(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        seat = await self._mine()
        async with seat.lock:
            if seat.conn is not None and not alive(seat.conn.pgconn):
                seat.finish()
            if seat.conn is None:
                seat.conn = await self._connect()
            conn = seat.conn
            try:
                yield conn
            except BaseException as exc:
                mark(exc, conn)
                raise
            finally:
                if not idle(conn.pgconn):
                    seat.finish()

    async def close(self) -> None:
        from asyncio import get_running_loop

        seat = self._seats.pop(get_running_loop(), None)
        if seat is not None and seat.pid == os.getpid():
            async with seat.lock:
                await seat.until_shutdown.aclose()

    async def _mine(self) -> _LoopSeat:
        from asyncio import get_running_loop

        loop = get_running_loop()
        seat = self._seats.get(loop)
        if seat is not None and seat.pid != os.getpid():
            _inherited.append(seat)
            seat = None
        if seat is None:
            self._forget_closed_loops()
            seat = self._seats[loop] = _LoopSeat()
            await anext(seat.until_shutdown)
        return seat

    def _forget_closed_loops(self) -> None:
        for loop, seat in list(self._seats.items()):
            if loop.is_closed():
                seat.finish()
                del self._seats[loop]


def alive(pgconn: PGconn) -> bool:
    """Is it as it was left? Sends nothing, and waits for nothing.

    A server has nothing to say to an idle session but that it ends it, so anything to read means: take a new one. (The
    end of the stream may follow the last message a moment later; waiting for it would lose the race.)
    """
    from psycopg import OperationalError
    from psycopg.pq import ConnStatus

    try:
        if pgconn.status != ConnStatus.OK:
            return False
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN)
        return not poll.poll(0)
    except OperationalError:
        return False


def idle(pgconn: PGconn) -> bool:
    from psycopg.pq import ConnStatus, TransactionStatus

    return pgconn.status == ConnStatus.OK and pgconn.transaction_status == TransactionStatus.IDLE


def mark(exc: BaseException, conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Note on the exception that the connection broke under it."""
    from psycopg.pq import ConnStatus

    if conn.pgconn.status != ConnStatus.OK:
        exc.connection_lost = True  # type: ignore[attr-defined]
