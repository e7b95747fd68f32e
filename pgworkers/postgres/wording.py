"""A statement as libpq sends it, and its answer as rows: what the blocking and the async exchange have in common.

How values are written and read stays psycopg's; which statements are prepared, and when, is said by the connection, as for
psycopg's own cursors (`prepare_threshold`: after so many uses, and None behind a pooler, which keeps nothing for us).
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Generator, Sequence
from typing import Any

import psycopg
from psycopg import errors
from psycopg.abc import Buffer
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ConnStatus, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from pgworkers.postgres.session import AsyncPooledConnection, PooledConnection, with_literals
from pgworkers.postgres.statements import Query, Statement

Types = tuple[int, ...]
Rows = list[tuple[Any, ...]]
#: What is to be sent; the answer to it comes back. The rows are what it ends with.
Turns = Generator[tuple[Callable[..., None], tuple[Any, ...]], PGresult, Rows]

#: How long the server may take to hear that somebody lost patience with a statement.
WITHDRAWAL = 2.0


class NoAnswer(psycopg.OperationalError):
    """A statement was not answered in time. Its session is cut."""


class Wording:
    """The statements of one connection."""

    def __init__(self, conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], schema: str) -> None:
        self._pgconn: PGconn = conn.pgconn
        self._through = conn if isinstance(conn, (PooledConnection, AsyncPooledConnection)) else None
        self._poll = select.poll()
        self._poll.register(conn.pgconn.socket, select.POLLIN)
        self._schema = schema
        self._values = Transformer(conn)
        self._threshold = conn.prepare_threshold
        self._last: Query[Any] | None = None
        self._last_values: tuple[Sequence[Buffer | None], Types, Sequence[Format]] = ((), (), ())
        self._prepared: dict[tuple[Statement, Types], bytes] = {}
        self._used: dict[tuple[Statement, Types], int] = {}

    @property
    def closed(self) -> bool:
        return self._pgconn.status == ConnStatus.BAD

    @property
    def idle(self) -> bool:
        pgconn = self._pgconn
        return pgconn.status == ConnStatus.OK and pgconn.transaction_status == TransactionStatus.IDLE

    @property
    def quiet(self) -> bool:
        """Is it as it was left? Sends nothing, and waits for nothing.

        A server has nothing to say to an idle session but that it ends it, so anything to read means: take a new one. (The
        end of the stream may follow the last message a moment later; waiting for it would lose the race.)
        """
        return self._pgconn.status == ConnStatus.OK and not self._poll.poll(0)

    def _turns(self, query: Query[Any]) -> Turns:
        """One statement; before it, perhaps, that it is to be prepared."""
        pgconn = self._pgconn
        if self._through is not None:
            return self._read((yield pgconn.send_query, (self._with_settings(query, self._through),)))
        text, names = query.statement.numbered(self._schema)
        if query is self._last:
            params, types, formats = self._last_values
        elif query.wire is not None:
            params, types, formats = query.wire, (), None
        else:
            values, given = self._values, query.params
            params = values.dump_sequence([given[name] for name in names], [PyFormat.AUTO] * len(names))
            types, formats = values.types or (), values.formats or ()
            if query.again:
                self._last, self._last_values = query, (params, types, formats)
        binary = int(query.binary)
        key = query.statement, types
        name = self._prepared.get(key)
        if name is None and self._due(key):
            name = b"pgworkers_%d" % len(self._prepared)
            self._read((yield pgconn.send_prepare, (name, text, types or None)))
            self._prepared[key] = name
        if name is None:
            return self._read(
                (yield pgconn.send_query_params, (text, params, types or None, formats, binary))
            )
        return self._read((yield pgconn.send_query_prepared, (name, params, formats, binary)))

    def _with_settings(self, query: Query[Any], conn: PooledConnection | AsyncPooledConnection) -> bytes:
        """Through a pooler: the statement and the settings that it needs are one transaction."""
        text = with_literals(conn, query.statement.render(self._schema), dict(query.named(self._schema)))
        return conn.local + text

    def _due(self, key: tuple[Statement, Types]) -> bool:
        if self._threshold is None:
            return False
        used = self._used.get(key, 0)
        self._used[key] = used + 1
        return used >= self._threshold

    def _read(self, result: PGresult) -> Rows:
        self._hear()
        if result.status == ExecStatus.COMMAND_OK:
            return []
        if result.status != ExecStatus.TUPLES_OK:
            raise errors.error_from_result(result)
        self._values.set_pgresult(result)
        try:
            return self._values.load_rows(0, result.ntuples, tuple)
        finally:
            self._values.set_pgresult(None)

    def _hear(self) -> None:
        """Take the notifications that are here, with each piece that is read: libpq keeps those that wait in memory, and a
        server sends all that it has before it answers."""
        handler = self._pgconn.notify_handler
        if handler is not None:
            while (notice := self._pgconn.notifies()) is not None:
                handler(notice)


def shut(pgconn: PGconn) -> None:
    """Shut the socket down: whoever waits on it gets an error at once."""
    try:
        with socket.socket(fileno=os.dup(pgconn.socket)) as sock:
            sock.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        pass


def cut(pgconn: PGconn) -> None:
    """End the session without a word: to close it with one may wait for the server."""
    shut(pgconn)
    try:
        pgconn.finish()
    except psycopg.Error:
        pass
