"""`Client`: runs the queries of an app in a process that enqueues: a web server, a script, a handler.

Every operation is written once, as steps (`postgres/steps`). `run_steps` performs them with blocking calls, `arun_steps` in
the running event loop. The steps of a client say on which connection something happens. A bare query is a read.

Blocking callers share one connection per process, async callers one per event loop. The first query opens it. In a worker,
which runs one handler at a time, opening one kind closes the other, and both are closed while the worker is idle. A forked
child does not use what its parent opened.

A connection that broke while it was idle is replaced silently. When it breaks under an enqueue, the job may have been
committed: nothing is sent twice, and the caller gets OutcomeUnknown. A read is repeated once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from pgworkers.client import callers_connection
from pgworkers.client.connections import ConnectionLost, LoopConnections, ProcessConnection
from pgworkers.client.database import ClientDatabase
from pgworkers.errors import NotFound, OutcomeUnknown, SchemaOutOfDate
from pgworkers.postgres.steps import (
    AsyncConnectionRunner,
    AsyncRunner,
    BlockingRunner,
    ConnectionRunner,
    Sleep,
    Steps,
    Transaction,
    ask,
    begin_callers_transaction,
)

if TYPE_CHECKING:
    import asyncio

    import psycopg

    from pgworkers.client.background import BackgroundLoop
    from pgworkers.client.batches import CreatedBatch
    from pgworkers.client.django_database import DjangoDatabase
    from pgworkers.client.waiting import LoopWaiters, ThreadWaiters
    from pgworkers.client.watching import LoopWatchers
    from pgworkers.job.enqueue import Enqueued
    from pgworkers.job.model import NewJob, OnFailed
    from pgworkers.postgres.session import AsyncSession, BlockingSession
    from pgworkers.postgres.statements import Query
    from pgworkers.settings import Settings

T = TypeVar("T")
ProgressCallback = Callable[[int], None] | None


class Once(msgspec.Struct, frozen=True):  # made for every enqueue: a dataclass takes longer
    """Run this query on the shared connection, at most once."""

    query: Query[Any]


@dataclass(frozen=True, slots=True)
class OnConnection:
    """Run these steps on the caller's connection (`client/callers_connection`)."""

    conn: Any
    steps: Steps[Any]


@dataclass(frozen=True, slots=True)
class FindCurrentConnection:
    """Answer the connection of the transaction that the caller is in, if a framework knows it, else None."""


@dataclass(frozen=True, slots=True)
class OnNewConnection:
    """Run these steps on a connection that is opened for them and closed after them."""

    role: str
    steps: Steps[Any]


class Client:
    """The database connections of an app, and the operations on them."""

    def __init__(self, database: ClientDatabase) -> None:
        self.database = database
        #: The framework whose transactions blocking enqueues join by themselves.
        self.django: DjangoDatabase | None = None
        #: Takes every operation instead of this client while a test captures jobs (`app.testing()`).
        self.substitute: Client | None = None
        #: Blocking and async queries never run at the same time: keep one connection, not one of each kind.
        self.has_single_connection = False
        self._process_connection = ProcessConnection(self._open_session)
        self._loop_connections = LoopConnections(self._aopen_session)
        self._blocking_runner = BlockingClientRunner(self, self._process_connection)
        self._async_runner = AsyncClientRunner(self, self._loop_connections)
        #: By pid: a forked child does not use its parent's.
        self._thread_waiters: dict[int, ThreadWaiters] = {}
        self._background_loops: dict[int, BackgroundLoop] = {}
        self._loop_waiters: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWaiters] = WeakKeyDictionary()
        self._loop_watchers: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWatchers] = WeakKeyDictionary()

    @property
    def settings(self) -> Settings:
        return self.database.settings

    # Running.

    @property
    def current(self) -> Client:
        """The client that takes operations now. Handles keep it, so that they stay with the jobs of a test."""
        return self if self.substitute is None else self.substitute

    def run_steps(self, steps: Steps[T]) -> T:
        """Run an operation with blocking calls."""
        if self.substitute is not None:
            return self.substitute.run_steps(steps)
        return self._blocking_runner.run(steps)

    async def arun_steps(self, steps: Steps[T]) -> T:
        """Run an operation in the running event loop."""
        if self.substitute is not None:
            return await self.substitute.arun_steps(steps)
        return await self._async_runner.run(steps)

    def run(self, query: Query[T]) -> T:
        """Run a query that may be sent twice."""
        return self.run_steps(self.read_steps(query))

    async def arun(self, query: Query[T]) -> T:
        """`run` for asyncio."""
        return await self.arun_steps(self.read_steps(query))

    # Writing: sent at most once.

    def enqueue_steps(self, job: NewJob, conn: Any = None) -> Steps[Enqueued]:
        """Insert one job, on the caller's connection if there is one."""
        from pgworkers.job.enqueue import enqueue

        conn = yield from self._callers_connection_steps(conn)
        step = (
            Once(enqueue(job, is_own_transaction=True))
            if conn is None
            else OnConnection(conn, _insert_steps(job))
        )
        try:
            found: Enqueued = yield step
            return found
        except Exception as error:
            explained = self._explain_enqueue_error(error, is_callers_connection=conn is not None)
            if explained is error:
                raise
            raise explained from _driver_error(error)

    def enqueue_many_steps(
        self, jobs: Iterable[NewJob], conn: Any, report_count: ProgressCallback
    ) -> Steps[int]:
        """Insert jobs by COPY, all or none. Returns their number."""
        from pgworkers.job.copy import copy_steps

        conn = yield from self._callers_connection_steps(conn)
        callers = CallerJobs(jobs)
        steps = copy_steps(callers, report_count, is_own_connection=conn is None)
        return (yield from self._bulk_steps(steps, callers, conn))

    def create_batch_steps(
        self,
        jobs: Iterable[NewJob],
        then: NewJob | None,
        *,
        on_failed: OnFailed,
        conn: Any,
        report_count: ProgressCallback,
    ) -> Steps[CreatedBatch]:
        """Insert a batch with all its jobs, or nothing."""
        from pgworkers.client.batches import create_batch_steps

        conn = yield from self._callers_connection_steps(conn)
        callers = CallerJobs(jobs)
        steps = create_batch_steps(
            callers, then, on_failed=on_failed, report_count=report_count, is_own_connection=conn is None
        )
        return (yield from self._bulk_steps(steps, callers, conn))

    def _callers_connection_steps(self, conn: Any) -> Steps[Any]:
        """The connection that the caller gave, else that of the framework's transaction that it is in, else None."""
        if conn is None and self.django is not None:
            return (yield FindCurrentConnection())
        return conn

    def _bulk_steps(self, steps: Steps[T], jobs: CallerJobs, conn: Any) -> Steps[T]:
        """Run these on the caller's connection, or on one of their own: the iterator of the jobs may itself enqueue."""
        try:
            answer: T = yield OnNewConnection("copy", steps) if conn is None else OnConnection(conn, steps)
            return answer
        except Exception as error:
            if error is jobs.error:
                raise
            explained = self._explain_enqueue_error(
                error, is_callers_connection=conn is not None, role="worker"
            )
            if explained is error:
                raise
            raise explained from _driver_error(error)

    # Reading, and requests that may be repeated.

    def read_steps(self, query: Query[T]) -> Steps[T]:
        """Run a query, and once more if the connection broke under it."""
        answer: T
        try:
            try:
                answer = yield Once(query)
            except ConnectionLost:
                answer = yield Once(query)
            return answer
        except Exception as error:
            explained = self.explain_read_error(error)
            if explained is error:
                raise
            raise explained from _driver_error(error)

    def thread_waiters(self) -> ThreadWaiters:
        """The threads of this process that wait for jobs."""
        from pgworkers.client.waiting import ThreadWaiters

        # setdefault is atomic: all threads get the same one
        return self._thread_waiters.setdefault(os.getpid(), ThreadWaiters(self))

    def loop_waiters(self) -> LoopWaiters:
        """The coroutines of the running event loop that wait for jobs."""
        from asyncio import get_running_loop

        from pgworkers.client.waiting import LoopWaiters

        return self._loop_waiters.setdefault(get_running_loop(), LoopWaiters(self))

    def loop_watchers(self) -> LoopWatchers:
        """The coroutines of the running event loop that watch jobs."""
        from asyncio import get_running_loop

        from pgworkers.client.watching import LoopWatchers

        return self._loop_watchers.setdefault(get_running_loop(), LoopWatchers(self))

    def background_loop(self) -> BackgroundLoop:
        """The background thread of this process, for blocking callers that follow many jobs at once."""
        from pgworkers.client.background import BackgroundLoop

        return self._background_loops.setdefault(os.getpid(), BackgroundLoop(self))

    # Connections.

    def connect(self, role: str, *, is_pooled: bool = False) -> psycopg.Connection[Any]:
        from pgworkers.postgres import connect

        return connect.connect(self.settings, self.database.dsn(), role, is_pooled=is_pooled)

    async def aconnect(self, role: str, *, is_pooled: bool = False) -> psycopg.AsyncConnection[Any]:
        from asyncio import to_thread

        from pgworkers.postgres import connect

        dsn = await to_thread(self.database.dsn)  # an embedded server takes a while to start
        return await connect.aconnect(self.settings, dsn, role, is_pooled=is_pooled)

    def _open_session(self, is_pooled: bool) -> BlockingSession:
        from pgworkers.postgres.session import BlockingSession

        if self.has_single_connection:
            self._loop_connections.close_unused()
        return BlockingSession(self.connect("client", is_pooled=is_pooled), self.settings.schema)

    async def _aopen_session(self, is_pooled: bool) -> AsyncSession:
        from pgworkers.postgres.session import AsyncSession

        if self.has_single_connection:
            self._process_connection.close_unused()
        conn = await self.aconnect("client", is_pooled=is_pooled)
        return AsyncSession(conn, self.settings.schema, should_cancel_on_server=True)

    def close(self) -> None:
        """Close this process's connection and release the embedded server."""
        self._process_connection.close()
        self.database.release_embedded()

    def close_unused(self) -> None:
        """Close every connection that is not in use. The next query opens another."""
        self._process_connection.close_unused()
        self._loop_connections.close_unused()

    async def aclose(self) -> None:
        """Close the connection of the running event loop."""
        await self._loop_connections.close()

    # Errors.

    def _explain_enqueue_error(
        self, error: Exception, *, is_callers_connection: bool, role: str = "enqueue"
    ) -> Exception:
        """Return an error of an enqueue as one that says what to do.

        `is_callers_connection`: the caller may have to run its transaction again, and needs the driver's error for that.
        `role`: which of our database roles may do what was tried.
        """
        from psycopg import Error

        from pgworkers.job.enqueue import enqueue_error
        from pgworkers.postgres.driver_errors import is_callers_to_retry

        if isinstance(error, ConnectionLost):
            return OutcomeUnknown(
                "the connection broke while jobs were being enqueued: they may or may not have been committed, "
                "and nothing was sent again. Look before you enqueue again; with idempotency_key= repeating is safe"
            )
        if not isinstance(error, Error) or (is_callers_connection and is_callers_to_retry(error)):
            return error
        explained = enqueue_error(error, f"{self.settings.schema}_{role}")
        if is_callers_connection and isinstance(explained, SchemaOutOfDate):
            return SchemaOutOfDate(
                f"the database of conn has no schema {self.settings.schema} of pgworkers, or one of another version; "
                "nothing was enqueued; give a connection to the database of the queue, or run there: "
                "pgworkers migrate up --dsn ADDRESS"
            )
        return explained

    def explain_read_error(self, error: Exception) -> Exception:
        """Return an error of a read, or of a request such as cancel, as one that says what to do."""
        from psycopg import Error
        from psycopg.errors import NoDataFound

        from pgworkers.postgres.driver_errors import first_line, translate_error

        error = _driver_error(error)
        if isinstance(error, NoDataFound):
            return NotFound(first_line(error))
        if not isinstance(error, Error):
            return error
        schema = self.settings.schema
        return translate_error(error, role=f"{schema}_payload to read, {schema}_operator to change jobs,")


class BlockingClientRunner(BlockingRunner):
    """Runs operations for blocking callers."""

    def __init__(self, client: Client, shared: ProcessConnection) -> None:
        self._client = client
        self._shared = shared

    def perform(self, step: Any) -> Any:
        match step:
            case Once():
                return self._shared.run_once(step.query)
            case FindCurrentConnection():
                django = self._client.django
                return None if django is None else django.find_current_connection(self._client.database.dsn)
            case OnConnection(conn, steps):
                return callers_connection.run_steps(conn, self._client.settings.schema, steps)
            case OnNewConnection(role, steps):
                return self._run_on_new_connection(role, steps)
            case Sleep(seconds):
                from time import sleep

                return sleep(seconds)
            case query:
                return self.run(self._client.read_steps(query))

    def _run_on_new_connection(self, role: str, steps: Steps[T]) -> T:
        conn = self._client.connect(role)
        try:
            return self._runner(conn).run(steps)
        except Exception as error:
            if conn.broken:
                raise ConnectionLost(error) from error
            raise
        finally:
            conn.close()

    def _runner(self, conn: psycopg.Connection[Any]) -> ConnectionRunner:
        return ConnectionRunner(conn, self._client.settings.schema)


class AsyncClientRunner(AsyncRunner):
    """Runs operations in the running event loop."""

    def __init__(self, client: Client, shared: LoopConnections) -> None:
        self._client = client
        self._shared = shared

    async def perform(self, step: Any) -> Any:
        match step:
            case Once():
                return await self._shared.run_once(step.query)
            case FindCurrentConnection():
                return None  # transactions of Django belong to threads
            case OnConnection(conn, steps):
                return await callers_connection.arun_steps(conn, self._client.settings.schema, steps)
            case OnNewConnection(role, steps):
                return await self._run_on_new_connection(role, steps)
            case Sleep(seconds):
                from asyncio import sleep

                return await sleep(seconds)
            case query:
                return await self.run(self._client.read_steps(query))

    async def _run_on_new_connection(self, role: str, steps: Steps[T]) -> T:
        conn = await self._client.aconnect(role)
        try:
            return await self._runner(conn).run(steps)
        except Exception as error:
            if conn.broken:
                raise ConnectionLost(error) from error
            raise
        finally:
            await conn.close()

    def _runner(self, conn: psycopg.AsyncConnection[Any]) -> AsyncConnectionRunner:
        return AsyncConnectionRunner(conn, self._client.settings.schema)


class CallerJobs:
    """The jobs of a caller.

    Remembers what their iterator raised: that error reaches the caller unchanged.
    """

    def __init__(self, jobs: Iterable[NewJob]) -> None:
        self._jobs = jobs
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[NewJob]:
        try:
            yield from self._jobs
        except Exception as error:
            self.error = error
            raise


def _insert_steps(job: NewJob) -> Steps[Enqueued]:
    """Insert a job on the caller's connection.

    A refusal must not abort the transaction that the caller is in.
    """
    from pgworkers.job.enqueue import enqueue

    if job.on_conflict == "raise":
        mode = yield from begin_callers_transaction()
        if mode.is_in_transaction:
            found: Enqueued = yield Transaction(ask(enqueue(job)))
            return found
    return (yield from ask(enqueue(job)))


def _driver_error(error: Exception) -> Exception:
    return error.error if isinstance(error, ConnectionLost) else error
