"""Sessions through a transaction pooler: how one is recognised, and how our settings reach the server behind it.

Behind a pooler each transaction may run in another session of the server, so settings cannot be made once at connect.
They are sent together with the statement instead, in one message (`PooledCursor`), or at the start of a transaction
(`PooledConnection`). Such a message cannot have parameters: values are written into the statement.

A pooler is recognised because the process id that it reports at the start of a session is not the one that the server
reports, or because it refuses the startup parameter `options`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import Format, TransactionStatus

from pgworkers.postgres.session_settings import IDLE_TIMEOUT_SETTINGS, STATEMENT_SETTINGS

#: Differs from the process id that the session was given at its start: there is a pooler.
BACKEND_PID = "SELECT pg_catalog.pg_backend_pid()"

#: How a client that sends `options` is refused: by PgBouncer, Supavisor and Neon; by RDS Proxy; by a server that is too old
#: for one of them or is no Postgres. A second session, without options, finds out which it is.
_OPTIONS_REFUSALS = (
    "unsupported startup parameter",
    "support command-line options",
    "unrecognized configuration parameter",
)


def is_pooled(conn: psycopg.Connection[Any]) -> bool:
    """Is there a pooler between us and the server? It hands out a process id of its own at the start of a session."""
    row = conn.execute(BACKEND_PID).fetchone()
    return row is not None and row[0] != conn.info.backend_pid


#: What a direct session must say about itself, else there is a pooler: its own process id, our search_path.
SESSION_CHECK = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('search_path'), " + ", ".join(
    f"pg_catalog.current_setting('{name}', true)" for name in IDLE_TIMEOUT_SETTINGS
)
_PARAMETER = re.compile(rb"%\((\w+)\)s|%%")


def is_direct(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], row: tuple[Any, ...]) -> bool:
    """True if the answer to CHECK came from a session that is ours alone and took our settings."""
    pid, path = row[:2]
    return bool(pid == conn.info.backend_pid and path.replace(" ", "") == STATEMENT_SETTINGS["search_path"])


def inline_parameters(
    conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], statement: bytes, values: dict[str, Any]
) -> bytes:
    """A statement with its values written into it: only such a one can travel together with others."""

    def put(match: re.Match[bytes]) -> bytes:
        return b"%" if match[1] is None else sql.Literal(values[match[1].decode()]).as_bytes(conn)

    return _PARAMETER.sub(put, statement)


class PooledCursor(psycopg.ClientCursor[Any]):
    """Sends the settings with each statement that is a transaction of its own."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> PooledCursor:
        self.format = Format.TEXT
        conn = self.connection
        assert isinstance(conn, PooledConnection)
        if conn.info.transaction_status == TransactionStatus.IDLE:
            query = conn.settings_prefix + _as_bytes(query, conn)
        super().execute(query, params)
        while self.nextset():
            pass
        return self


class AsyncPooledCursor(psycopg.AsyncClientCursor[Any]):
    """`PooledCursor` for an event loop."""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> AsyncPooledCursor:
        self.format = Format.TEXT
        conn = self.connection
        assert isinstance(conn, AsyncPooledConnection)
        if conn.info.transaction_status == TransactionStatus.IDLE:
            query = conn.settings_prefix + _as_bytes(query, conn)
        await super().execute(query, params)
        while self.nextset():
            pass
        return self


class PooledConnection(psycopg.Connection[Any]):
    """A session of ours through a transaction pooler."""

    settings_prefix = b""

    @contextmanager
    def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> Iterator[psycopg.Transaction]:
        outermost = self.info.transaction_status == TransactionStatus.IDLE
        with super().transaction(savepoint_name, force_rollback) as transaction:
            if outermost:
                self.execute(self.settings_prefix)
            yield transaction


class AsyncPooledConnection(psycopg.AsyncConnection[Any]):
    """`PooledConnection` for an event loop."""

    settings_prefix = b""

    @asynccontextmanager
    async def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AsyncIterator[psycopg.AsyncTransaction]:
        outermost = self.info.transaction_status == TransactionStatus.IDLE
        async with super().transaction(savepoint_name, force_rollback) as transaction:
            if outermost:
                await self.execute(self.settings_prefix)
            yield transaction


def _as_bytes(query: Any, conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bytes:
    if isinstance(query, str):
        return query.encode()
    return query.as_bytes(conn) if isinstance(query, sql.Composable) else bytes(query)
