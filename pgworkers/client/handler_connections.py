"""The database sessions of one execution: `ctx.connect()` opens them, and they end with the execution.

They are named after job and lease, so that hosts can end them when the worker died. They are ordinary psycopg connections
with one difference: when the handler is stopped inside a statement (JobStopped), the statement is cancelled on the server
first, so that the handler's own clean-up can still use the session. For async connections psycopg does that itself, because
they see a CancelledError.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.pq import ConnStatus, TransactionStatus
from psycopg.rows import Row

from pgworkers.client.client import Client
from pgworkers.errors import JobStopped, UsageError
from pgworkers.job.handler_sessions import session_name
from pgworkers.postgres import connect
from pgworkers.postgres.session import CANCEL_TIMEOUT_SECONDS

#: How long a thread may keep a session whose statement was cancelled.
THREAD_RELEASE_TIMEOUT_SECONDS = 0.2


class JobConnection(psycopg.Connection[Row]):
    """A connection that cancels its statement on the server when the handler is stopped inside it."""

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        try:
            return super().wait(gen, *args, **kwargs)
        except JobStopped:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                try:
                    self.cancel_safe(timeout=CANCEL_TIMEOUT_SECONDS)
                    super().wait(gen, *args, **kwargs)  # until the server has stopped it
                except psycopg.Error:
                    pass  # QueryCanceled, as requested, or the session is lost with its statement
            raise


class HandlerConnections:
    """All sessions of one execution."""

    def __init__(self, client: Client, job: int, lease: int) -> None:
        self._client = client
        self._job = job
        self._lease = lease
        self._open: list[psycopg.Connection[Any] | psycopg.AsyncConnection[Any]] = []
        self._pid = os.getpid()

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        settings = self._client.settings
        dsn = self._client.database.dsn()
        conn = connect.connect_for_handler(
            settings, dsn, self._application_name(options), JobConnection, **options
        )
        self._track(conn)
        return conn

    async def aconnect(self, **options: Any) -> psycopg.AsyncConnection[Any]:
        settings = self._client.settings
        dsn = await asyncio.to_thread(self._client.database.dsn)
        conn = await connect.aconnect_for_handler(settings, dsn, self._application_name(options), **options)
        self._track(conn)
        return conn

    def _application_name(self, options: dict[str, Any]) -> str:
        if "application_name" in options:
            raise UsageError(
                "ctx.connect(application_name=...): the name says whose session it is, so that it ends with the job; "
                "leave it out. Nothing was opened"
            )
        return session_name(self._client.settings.schema, self._job, self._lease)

    def _track(self, conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        self._open = [known for known in self._open if not known.closed]
        self._open.append(conn)

    def close(self) -> None:
        """Close all sessions after the handler, and cancel what still runs in a thread that it left. Does not use a loop."""
        if self._pid != os.getpid():
            return  # a forked child: the sessions belong to its parent
        for conn in self._open:
            pgconn = conn.pgconn
            if pgconn.status != ConnStatus.OK:
                continue
            try:
                if pgconn.transaction_status == TransactionStatus.ACTIVE:
                    pgconn.get_cancel().cancel()
            except psycopg.Error:
                pass  # it is closed in any case
            _end_session(conn)
        self._open.clear()


def _end_session(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """End a session.

    If a thread that the handler left is inside libpq, shut down its socket only, and free nothing.
    """
    if not isinstance(conn, psycopg.Connection):
        conn.pgconn.finish()  # its event loop does not run any more
    elif conn.lock.acquire(timeout=THREAD_RELEASE_TIMEOUT_SECONDS):
        try:
            conn.pgconn.finish()
        finally:
            conn.lock.release()
    else:  # the lock is also held by an unfinished `notifies()`
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(conn.pgconn.socket)) as line:
            line.shutdown(socket.SHUT_RDWR)
