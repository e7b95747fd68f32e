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

#: Behind a pooler the answer differs from the process id that was reported at the start of the session.
BACKEND_PID = "SELECT pg_catalog.pg_backend_pid()"

#: Texts with which a client that sends `options` is refused: by PgBouncer, Supavisor and Neon; by RDS Proxy; by a server
#: that is too old for one of the options or is not Postgres. A second session, without options, shows which of them it is.
_OPTIONS_REFUSALS = (
    "unsupported startup parameter",
    "support command-line options",
    "unrecognized configuration parameter",
)


def is_options_refusal(error: psycopg.OperationalError) -> bool:
    """True if connecting failed because of the startup parameter `options`."""
    return any(refusal in str(error) for refusal in _OPTIONS_REFUSALS)


def is_pooled(conn: psycopg.Connection[Any]) -> bool:
    """True if a pooler is in between. It reports a process id of its own at the start of a session."""
    row = conn.execute(BACKEND_PID).fetchone()
    return row is not None and row[0] != conn.info.backend_pid


#: In a direct session the answer is its own process id and our search_path; then the idle timeouts.
SESSION_CHECK = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('search_path'), " + ", ".join(
    f"pg_catalog.current_setting('{name}', true)" for name in IDLE_TIMEOUT_SETTINGS
)
_PARAMETER = re.compile(rb"%\((\w+)\)s|%%")


def is_direct(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], row: tuple[Any, ...]) -> bool:
    """True if the answer to SESSION_CHECK came from a session that is ours alone and took our settings."""
    pid, path = row[:2]
    return bool(pid == conn.info.backend_pid and path.replace(" ", "") == STATEMENT_SETTINGS["search_path"])


def inline_parameters(
    conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], statement: bytes, values: dict[str, Any]
) -> bytes:
    """Write the values into a statement, so that it can be sent in one message with others."""

    def replace(match: re.Match[bytes]) -> bytes:
        return b"%" if match[1] is None else sql.Literal(values[match[1].decode()]).as_bytes(conn)

    return _PARAMETER.sub(replace, statement)


class PooledCursor(psycopg.ClientCursor[Any]):
    """Sends the settings with each statement that is a transaction of its own."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> PooledCursor:
        super().execute(_pooled_query(self, query), params)
        while self.nextset():
            pass
        return self


class AsyncPooledCursor(psycopg.AsyncClientCursor[Any]):
    """`PooledCursor` for an event loop."""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> AsyncPooledCursor:
        await super().execute(_pooled_query(self, query), params)
        while self.nextset():
            pass
        return self


class PooledConnection(psycopg.Connection[Any]):
    """A connection through a transaction pooler."""

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


def _pooled_query(cursor: PooledCursor | AsyncPooledCursor, query: Any) -> Any:
    """The text to send: outside a transaction, the settings come first. Results of several statements come as text."""
    cursor.format = Format.TEXT
    conn = cursor.connection
    assert isinstance(conn, PooledConnection | AsyncPooledConnection)
    if conn.info.transaction_status != TransactionStatus.IDLE:
        return query
    return conn.settings_prefix + _as_bytes(query, conn)


def _as_bytes(query: Any, conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bytes:
    if isinstance(query, str):
        return query.encode()
    return query.as_bytes(conn) if isinstance(query, sql.Composable) else bytes(query)
