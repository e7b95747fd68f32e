"""The shared connections of an app: one per process for blocking callers, and one per event loop.

Callers use a connection in turn. It is closed after a statement that did not leave it idle: the connection broke, or an
exception was raised through the statement (Ctrl-C, JobStopped). Before each use a check of the socket, without a round trip,
finds out whether the server has closed the connection in the meantime.

A server that does not know a statement which this session prepared, or already has one of its name, is another session
than before: there is a pooler in between that was not recognised when the session began. Such a statement was not executed,
so it is sent once more, on a connection that prepares nothing.

`SharedSession` decides all that, for both kinds. `ProcessConnection` and `LoopConnections` open, lock and close.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pgworkers.postgres.steps import AsyncRunner, BlockingRunner, Steps

if TYPE_CHECKING:
    import asyncio

    from pgworkers.postgres.session import AsyncSession, BlockingSession
    from pgworkers.postgres.statements import Query

T = TypeVar("T")
SessionT = TypeVar("SessionT", "BlockingSession", "AsyncSession")

#: Connections inherited by fork belong to the parent. They are kept, so that nothing closes or collects them here.
_inherited_sessions: list[object] = []


class ConnectionLost(Exception):
    """The connection broke under a statement that may have been executed.

    `error` is what the driver raised.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class PoolerFinding:
    """Whether the answers of a server have shown that there is a pooler in between."""

    is_found: bool = False


@dataclass(frozen=True, slots=True)
class _OpenSession:
    """A step: open a session, and do not prepare statements on it if `is_pooled`.

    Answers the session.
    """

    is_pooled: bool


@dataclass(frozen=True, slots=True)
class _RunOnSession:
    """A step: run this query on this session."""

    session: Any
    query: Query[Any]


class SharedSession(Generic[SessionT]):
    """One session that callers use in turn. The caller of its methods holds the lock."""

    def __init__(self, pooler: PoolerFinding, close: Callable[[SessionT], None]) -> None:
        self.session: SessionT | None = None
        self._pooler = pooler
        self._close_session: Callable[[SessionT], None] = close

    def query_steps(self, query: Query[T]) -> Steps[T]:
        """Run a query, at most once. Raises ConnectionLost if its outcome is unknown."""
        try:
            return (yield from self._attempt_steps(query))
        except Exception as error:
            if self._pooler.is_found or not is_pooler_error(error):
                raise
        self._pooler.is_found = True
        self.close()
        return (yield from self._attempt_steps(query))

    def _attempt_steps(self, query: Query[T]) -> Steps[T]:
        session = self.session
        if session is None or not session.is_reusable:
            self.close()
            session = self.session = yield _OpenSession(self._pooler.is_found)
        try:
            answer: T = yield _RunOnSession(session, query)
            return answer
        except Exception as error:
            if session.is_closed and not is_pooler_error(error):
                raise ConnectionLost(error) from error
            raise
        finally:
            if not session.is_idle:
                self.close()

    def close(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            self._close_session(session)


class ProcessConnection(BlockingRunner):
    """The connection of this process for blocking callers. Threads use it in turn."""

    def __init__(self, open_session: Callable[[bool], BlockingSession]) -> None:
        """`open_session` opens a connection. Its argument: there is a pooler in between."""
        self._open_session = open_session
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._pooler = PoolerFinding()
        self._shared = self._new_shared_session()

    def run_once(self, query: Query[T]) -> T:
        """Run a query, at most once."""
        self._abandon_after_fork()
        with self._lock:
            return self.run(self._shared.query_steps(query))

    def perform(self, step: Any) -> Any:
        match step:
            case _RunOnSession(session, query):
                return session.run(query)
            case _OpenSession(is_pooled):
                return self._open_session(is_pooled)

    def close(self) -> None:
        self._abandon_after_fork()
        with self._lock:
            self._shared.close()

    def close_unused(self) -> None:
        """Close the connection unless a thread is using it. The next query opens another."""
        is_open = self._shared.session is not None and self._pid == os.getpid()
        if is_open and self._lock.acquire(blocking=False):
            try:
                self._shared.close()
            finally:
                self._lock.release()

    def _abandon_after_fork(self) -> None:
        if self._pid != os.getpid():
            _inherited_sessions.append(self._shared)
            self._shared, self._lock, self._pid = self._new_shared_session(), threading.Lock(), os.getpid()

    def _new_shared_session(self) -> SharedSession[BlockingSession]:
        return SharedSession(self._pooler, lambda session: session.conn.close())


class LoopConnection(AsyncRunner):
    """The connection of one event loop. Tasks use it in turn."""

    def __init__(
        self, open_session: Callable[[bool], Awaitable[AsyncSession]], pooler: PoolerFinding
    ) -> None:
        from asyncio import Lock

        self._open_session = open_session
        self.pid = os.getpid()
        self.lock = Lock()
        self.shared: SharedSession[AsyncSession] = SharedSession(pooler, self._close_without_waiting)
        self.shutdown_hook = self._close_at_loop_shutdown()

    async def run_once(self, query: Query[T]) -> T:
        """Run a query, at most once."""
        async with self.lock:
            return await self.run(self.shared.query_steps(query))

    async def perform(self, step: Any) -> Any:
        match step:
            case _RunOnSession(session, query):
                return await session.run(query, None)
            case _OpenSession(is_pooled):
                return await self._open_session(is_pooled)

    async def _close_at_loop_shutdown(self) -> AsyncGenerator[None, None]:
        """Close the connection when the loop shuts down.

        An async generator that waits in its `yield`: asyncio.run() closes such generators before it closes the loop.
        """
        try:
            yield
        finally:
            self.shared.close()

    def _close_without_waiting(self, session: AsyncSession) -> None:
        """Close without awaiting: the loop may be closed already."""
        if self.pid == os.getpid():
            session.close_now()


class LoopConnections:
    """The connections of all event loops."""

    def __init__(self, open_session: Callable[[bool], Awaitable[AsyncSession]]) -> None:
        """`open_session` opens a connection. Its argument: there is a pooler in between."""
        self._open_session = open_session
        self._pooler = PoolerFinding()
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopConnection] = (
            weakref.WeakKeyDictionary()
        )

    async def run_once(self, query: Query[T]) -> T:
        """Run a query on the connection of the running loop, at most once."""
        connection = await self._for_running_loop()
        return await connection.run_once(query)

    async def close(self) -> None:
        """Close the connection of the running loop."""
        from asyncio import get_running_loop

        connection = self._by_loop.pop(get_running_loop(), None)
        if connection is not None and connection.pid == os.getpid():
            async with connection.lock:
                await connection.shutdown_hook.aclose()

    def close_unused(self) -> None:
        """Close the connections of event loops that do not run. The next query opens another.

        A task of such a loop may be in the middle of a statement. It would never wake without its connection, so that one
        stays.
        """
        for loop, connection in list(self._by_loop.items()):
            if not loop.is_running() and not connection.lock.locked() and connection.pid == os.getpid():
                connection.shared.close()

    async def _for_running_loop(self) -> LoopConnection:
        from asyncio import get_running_loop

        loop = get_running_loop()
        connection = self._by_loop.get(loop)
        if connection is not None and connection.pid != os.getpid():
            _inherited_sessions.append(connection)
            connection = None
        if connection is None:
            self._drop_closed_loops()
            connection = self._by_loop[loop] = LoopConnection(self._open_session, self._pooler)
            await anext(connection.shutdown_hook)
        return connection

    def _drop_closed_loops(self) -> None:
        for loop, connection in list(self._by_loop.items()):
            if loop.is_closed():
                connection.shared.close()
                del self._by_loop[loop]


def is_pooler_error(exc: Exception) -> bool:
    """True if a prepared statement was refused because the server's session is not the one that prepared it."""
    from psycopg.errors import DuplicatePreparedStatement, InvalidSqlStatementName

    return isinstance(exc, (DuplicatePreparedStatement, InvalidSqlStatementName))
