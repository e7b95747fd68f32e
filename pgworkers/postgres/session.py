"""The settings that our statements rely on, declared once, and how each kind of session gets them.

A database or a role may have any defaults (ALTER DATABASE ... SET, ALTER ROLE ... SET). A direct session of ours begins with
its own: they travel in `options`, so they hold from the first statement and survive RESET ALL. A transaction pooler takes no
`options` and keeps nothing between two transactions. There every statement travels together with SET LOCAL, in one message,
which the server runs as one transaction. A database that is read-only by default is refused: an operator or a provider may
have fenced it so. Connections of users' code (`ctx.connect()`, `using(conn=)`) keep their settings.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import Format, TransactionStatus

from pgworkers.settings import Settings

#: How values are written and read, and which names and operators are meant.
MEANING = {
    "search_path": "pg_catalog,pg_temp",
    "DateStyle": "ISO,MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "row_security": "on",
    "transform_null_equals": "off",
    "jit": "off",  # our statements are short: compiling one takes a thousand times as long as running it
}
#: Timeouts of the server's own that would end a session of ours: 0 switches them off. Not every server knows them.
IDLE_TIMEOUTS = ("idle_session_timeout", "transaction_timeout")

#: What a direct session must say about itself, else there is a pooler: its own process id, our search_path.
CHECK = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('search_path'), " + ", ".join(
    f"pg_catalog.current_setting('{name}', true)" for name in IDLE_TIMEOUTS
)
_PLACES = re.compile(rb"%\((\w+)\)s|%%")


def timeouts(settings: Settings) -> dict[str, str]:
    """How long anything may take."""
    return {
        "statement_timeout": milliseconds(settings.statement_timeout),
        "lock_timeout": milliseconds(settings.statement_timeout),
        "idle_in_transaction_session_timeout": milliseconds(
            max(settings.tcp_timeout, settings.statement_timeout)
        ),
    }


def direct(settings: Settings) -> dict[str, str]:
    """The settings of a direct session."""
    transactions = {
        "default_transaction_isolation": "read committed",
        "default_transaction_deferrable": "off",
    }
    return MEANING | transactions | timeouts(settings)


def local(settings: Settings) -> str:
    """The same for one transaction, as statements that begin it."""
    parts = ["SET TRANSACTION ISOLATION LEVEL READ COMMITTED, NOT DEFERRABLE"]
    for name, value in (MEANING | timeouts(settings)).items():
        values = ", ".join(f"'{one}'" for one in value.split(","))
        parts.append(f"SET LOCAL {name} = {values}")
    return "; ".join(parts) + ";\n"


def milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def is_direct(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], row: tuple[Any, ...]) -> bool:
    """True if the answer to CHECK came from a session that is ours alone and took our settings."""
    pid, path = row[:2]
    return bool(pid == conn.info.backend_pid and path.replace(" ", "") == MEANING["search_path"])


def patience(row: tuple[Any, ...]) -> str:
    """What switches off the timeouts that the answer to CHECK shows; nothing, where none is set."""
    found = zip(IDLE_TIMEOUTS, row[2:], strict=True)
    return "; ".join(f"SET {name} = 0" for name, value in found if value not in (None, "0"))


def with_literals(
    conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], statement: bytes, values: dict[str, Any]
) -> bytes:
    """A statement with its values written into it: only such a one can travel together with others."""

    def put(match: re.Match[bytes]) -> bytes:
        return b"%" if match[1] is None else sql.Literal(values[match[1].decode()]).as_bytes(conn)

    return _PLACES.sub(put, statement)


class PooledCursor(psycopg.ClientCursor[Any]):
    """Sends the settings with each statement that is a transaction of its own."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> PooledCursor:
        self.format = Format.TEXT
        conn = self.connection
        assert isinstance(conn, PooledConnection)
        if conn.info.transaction_status == TransactionStatus.IDLE:
            query = conn.local + _text(query, conn)
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
            query = conn.local + _text(query, conn)
        await super().execute(query, params)
        while self.nextset():
            pass
        return self


class PooledConnection(psycopg.Connection[Any]):
    """A session of ours through a transaction pooler."""

    local = b""

    @contextmanager
    def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> Iterator[psycopg.Transaction]:
        outermost = self.info.transaction_status == TransactionStatus.IDLE
        with super().transaction(savepoint_name, force_rollback) as transaction:
            if outermost:
                self.execute(self.local)
            yield transaction


class AsyncPooledConnection(psycopg.AsyncConnection[Any]):
    """`PooledConnection` for an event loop."""

    local = b""

    @asynccontextmanager
    async def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AsyncIterator[psycopg.AsyncTransaction]:
        outermost = self.info.transaction_status == TransactionStatus.IDLE
        async with super().transaction(savepoint_name, force_rollback) as transaction:
            if outermost:
                await self.execute(self.local)
            yield transaction


def _text(query: Any, conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bytes:
    if isinstance(query, str):
        return query.encode()
    return query.as_bytes(conn) if isinstance(query, sql.Composable) else bytes(query)
