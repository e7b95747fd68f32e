"""The database connection of a process that enqueues: a web server, a script, a handler.

One connection per process, opened by the first enqueue and shared by threads under a lock; one per event loop
for async callers. In a worker, which runs one handler at a time, both kinds share one, and it is closed when the worker
rests. A forked child never touches what its parent opened. psycopg is imported by the first use.

A connection that broke while idle is replaced without a word. A connection that breaks under an enqueue is
another matter: the job may have been committed, so nothing is sent twice and the caller is told that the
outcome is unknown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from pgworkers.client.connections import LoopConnections, ProcessConnection, lost
from pgworkers.client.database import ClientDatabase
from pgworkers.errors import NotFound, OutcomeUnknown, UsageError

if TYPE_CHECKING:
    import asyncio

    import psycopg

    from pgworkers.client.batches import CreatedBatch
    from pgworkers.client.waiting import LoopWaiters, ThreadWaiters
    from pgworkers.job.enqueue import Enqueued
    from pgworkers.job.model import NewJob, OnFailed
    from pgworkers.postgres.session import AsyncSession, BlockingSession
    from pgworkers.postgres.statements import Query
    from pgworkers.settings import Settings

T = TypeVar("T")


class Client:
    """Runs queries for an app."""

    def __init__(self, address: ClientDatabase) -> None:
        self.database = address
        self._process_connection = ProcessConnection(self._open_session)
        self._loop_connections = LoopConnections(self._aopen_session)
        self.has_single_connection = (
            False  # blocking and async queries never come at the same time: one connection is enough
        )
        self._thread_waiters: dict[int, ThreadWaiters] = {}  # by pid: a fork leaves its parent's behind
        self._loop_waiters: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWaiters] = WeakKeyDictionary()

    @property
    def settings(self) -> Settings:
        return self.database.settings

    # Writing: sent at most once.

    @cached_property
    def _verb(self) -> Callable[..., Query[Enqueued]]:
        """Found once: an `import` in the way of every job is felt."""
        from pgworkers.job.enqueue import enqueue

        return enqueue

    def enqueue(self, new: NewJob, conn: Any = None) -> Enqueued:
        if conn is None:
            try:
                return self._process_connection.run(self._verb(new, is_own_transaction=True))
            except Exception as exc:
                raise self._explain_enqueue_error(exc, lost=lost(exc)) from exc
        from pgworkers.postgres.statements import run

        theirs = _require_blocking(conn)
        guard: AbstractContextManager[Any] = (
            theirs.transaction() if _needs_savepoint(theirs, new) else nullcontext()
        )
        try:
            with guard:
                return run(theirs, self.settings.schema, self._verb(new))
        except Exception as exc:
            raise self._explain_enqueue_error(exc, theirs=True) from exc

    async def aenqueue(self, new: NewJob, conn: Any = None) -> Enqueued:
        if conn is None:
            try:
                return await self._loop_connections.run(self._verb(new, is_own_transaction=True))
            except Exception as exc:
                raise self._explain_enqueue_error(exc, lost=lost(exc)) from exc
        from pgworkers.postgres.statements import arun

        theirs = _require_async(conn)
        try:
            if not _needs_savepoint(theirs, new):
                return await arun(theirs, self.settings.schema, self._verb(new))
            async with theirs.transaction():
                return await arun(theirs, self.settings.schema, self._verb(new))
        except Exception as exc:
            raise self._explain_enqueue_error(exc, theirs=True) from exc

    def enqueue_many(self, jobs: Iterable[NewJob], conn: Any, progress: Callable[[int], None] | None) -> int:
        """COPY on the user's connection, or on one of its own: the generator may itself enqueue."""
        from pgworkers.job.copy import copy_jobs

        own = None if conn is not None else self.connect("copy")
        try:
            theirs = own or _require_blocking(conn)
            return copy_jobs(
                theirs, self.settings.schema, CallerJobs(jobs), progress, is_own_connection=own is not None
            )
        except Exception as exc:
            raise self._explain_enqueue_error(
                exc, lost=own is not None and own.broken, theirs=own is None, role="worker"
            ) from exc
        finally:
            if own is not None:
                own.close()

    async def aenqueue_many(
        self,
        jobs: Iterable[NewJob],
        conn: Any,
        progress: Callable[[int], None] | None,
    ) -> int:
        from pgworkers.job.copy import acopy_jobs

        own = None if conn is not None else await self.aconnect("copy")
        try:
            theirs = own or _require_async(conn)
            return await acopy_jobs(
                theirs, self.settings.schema, CallerJobs(jobs), progress, is_own_connection=own is not None
            )
        except Exception as exc:
            raise self._explain_enqueue_error(
                exc, lost=own is not None and own.broken, theirs=own is None, role="worker"
            ) from exc
        finally:
            if own is not None:
                await own.close()

    def create_batch(
        self,
        jobs: Iterable[NewJob],
        then: NewJob | None,
        on_failed: OnFailed,
        conn: Any,
        progress: Callable[[int], None] | None,
    ) -> CreatedBatch:
        """A batch with all its jobs, or nothing."""
        from pgworkers.client import batches

        own = None if conn is not None else self.connect("copy")
        try:
            return batches.create_batch_steps(
                own or _require_blocking(conn),
                self.settings.schema,
                CallerJobs(jobs),
                then,
                on_failed,
                progress,
                ours=own is not None,
            )
        except Exception as exc:
            raise self._explain_enqueue_error(
                exc, lost=own is not None and own.broken, theirs=own is None, role="worker"
            ) from exc
        finally:
            if own is not None:
                own.close()

    async def acreate_batch(
        self,
        jobs: Iterable[NewJob],
        then: NewJob | None,
        on_failed: OnFailed,
        conn: Any,
        progress: Callable[[int], None] | None,
    ) -> CreatedBatch:
        from pgworkers.client import batches

        own = None if conn is not None else await self.aconnect("copy")
        try:
            return await batches.acreate(
                own or _require_async(conn),
                self.settings.schema,
                CallerJobs(jobs),
                then,
                on_failed,
                progress,
                ours=own is not None,
            )
        except Exception as exc:
            raise self._explain_enqueue_error(
                exc, lost=own is not None and own.broken, theirs=own is None, role="worker"
            ) from exc
        finally:
            if own is not None:
                await own.close()

    # Reading, and wishes that may be repeated.

    def run(self, query: Query[T]) -> T:
        try:
            return self._process_connection.run(query)
        except Exception as exc:
            if not lost(exc):
                raise self.explain_read_error(exc) from exc
        try:
            return self._process_connection.run(query)
        except Exception as exc:
            raise self.explain_read_error(exc) from exc

    async def arun(self, query: Query[T]) -> T:
        try:
            return await self._loop_connections.run(query)
        except Exception as exc:
            if not lost(exc):
                raise self.explain_read_error(exc) from exc
        try:
            return await self._loop_connections.run(query)
        except Exception as exc:
            raise self.explain_read_error(exc) from exc

    def thread_waiters(self) -> ThreadWaiters:
        """Where the threads of this process wait for jobs."""
        from pgworkers.client.waiting import ThreadWaiters

        return self._thread_waiters.setdefault(
            os.getpid(), ThreadWaiters(self)
        )  # atomic: all threads get the same one

    def loop_waiters(self) -> LoopWaiters:
        """Where the coroutines of the running event loop wait for jobs."""
        from asyncio import get_running_loop

        from pgworkers.client.waiting import LoopWaiters

        loop = get_running_loop()
        return self._loop_waiters.setdefault(loop, LoopWaiters(self))

    # Connections.

    def connect(self, role: str, *, pooled: bool = False) -> psycopg.Connection[Any]:
        from pgworkers.postgres import connect

        return connect.connect(self.settings, self.database.dsn(), role, is_pooled=pooled)

    async def aconnect(self, role: str, *, pooled: bool = False) -> psycopg.AsyncConnection[Any]:
        from asyncio import to_thread

        from pgworkers.postgres import connect

        dsn = await to_thread(self.database.dsn)  # an embedded server takes a while to start
        return await connect.aconnect(self.settings, dsn, role, is_pooled=pooled)

    def _open_session(self, pooled: bool) -> BlockingSession:
        from pgworkers.postgres.session import BlockingSession

        if self.has_single_connection:
            self._loop_connections.close_unused()
        return BlockingSession(self.connect("client", pooled=pooled), self.settings.schema)

    async def _aopen_session(self, pooled: bool) -> AsyncSession:
        from pgworkers.postgres.session import AsyncSession

        if self.has_single_connection:
            self._process_connection.close_unused()
        conn = await self.aconnect("client", pooled=pooled)
        return AsyncSession(conn, self.settings.schema, should_cancel_on_server=True)

    def close(self) -> None:
        """Close this process's connection and let the embedded server go."""
        self._process_connection.close()
        self.database.release_embedded()

    def close_unused(self) -> None:
        """Close every connection that nothing uses just now. The next query opens another."""
        self._process_connection.close_unused()
        self._loop_connections.close_unused()

    async def aclose(self) -> None:
        """Close the connection of the running event loop."""
        await self._loop_connections.close()

    def _explain_enqueue_error(
        self, exc: Exception, *, lost: bool = False, theirs: bool = False, role: str = "enqueue"
    ) -> Exception:
        """An error while enqueueing as one that says what to do.

        `theirs`: on a connection of the caller, who may have to run the transaction again. `role`: which of our roles may
        do what was tried.
        """
        from psycopg import Error

        from pgworkers.job.enqueue import enqueue_error
        from pgworkers.postgres.driver_errors import is_callers_to_retry

        if lost:
            return OutcomeUnknown(
                "the connection broke while jobs were being enqueued: they may or may not have been committed, "
                "and nothing was sent again. Look before you enqueue again; with idempotency_key= repeating is safe"
            )
        if (
            not isinstance(exc, Error)
            or getattr(exc, "of_caller", False)
            or (theirs and is_callers_to_retry(exc))
        ):
            return exc
        return enqueue_error(exc, f"{self.settings.schema}_{role}")

    def explain_read_error(self, exc: Exception) -> Exception:
        """An error while reading, or of a request such as cancel."""
        from psycopg import Error
        from psycopg.errors import NoDataFound

        from pgworkers.postgres.driver_errors import first_line, translate_error

        if isinstance(exc, NoDataFound):
            return NotFound(first_line(exc))
        if not isinstance(exc, Error):
            return exc
        schema = self.settings.schema
        return translate_error(exc, role=f"{schema}_payload to read, {schema}_operator to change jobs,")


def CallerJobs(jobs: Iterable[NewJob]) -> Iterator[NewJob]:
    """The caller's jobs. What its iterator raises is marked: it is not ours to explain."""
    try:
        yield from jobs
    except Exception as exc:
        exc.of_caller = True  # type: ignore[attr-defined]
        raise


def _needs_savepoint(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], new: NewJob) -> bool:
    """A refusal must not spoil the transaction the user is in."""
    from psycopg.pq import TransactionStatus

    return new.on_conflict == "raise" and conn.info.transaction_status == TransactionStatus.INTRANS


def _require_blocking(conn: Any) -> psycopg.Connection[Any]:
    import psycopg

    if isinstance(conn, psycopg.Connection):
        return conn
    raise UsageError(
        _explain_wrong_connection(conn, "a psycopg.Connection", "use aenqueue with an AsyncConnection")
    )


def _require_async(conn: Any) -> psycopg.AsyncConnection[Any]:
    import psycopg

    if isinstance(conn, psycopg.AsyncConnection):
        return conn
    raise UsageError(
        _explain_wrong_connection(conn, "a psycopg.AsyncConnection", "use enqueue with a blocking Connection")
    )


def _explain_wrong_connection(conn: Any, wanted: str, instead: str) -> str:
    return (
        f"conn is a {type(conn).__module__}.{type(conn).__name__}, not {wanted}; nothing was enqueued; "
        f"{instead} (SQLAlchemy: session.connection().connection.driver_connection)"
    )
