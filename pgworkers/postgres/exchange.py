"""Statements on a session of a host, one after the other, by libpq itself.

A psycopg cursor is made for any statement on any connection, by any number of tasks. Of a short statement that is most
of its time: for a claim after a rest 0.9 ms of this process where the same words on the wire take 0.3, and a claim is
what a job waits for (docs/adr/2001). The sessions of a host are all alike: autocommit, one answer to each statement,
the same few statements for ever, each prepared at its first use. So the bytes are sent and waited for here; how
values are written and read stays psycopg's.

An exchange that was not heard to its end (no answer in time, a task that was cancelled) leaves a session whose next answer
would be to the wrong question: its socket is cut and it is finished.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from pgworkers.clock import show_seconds
from pgworkers.postgres.statements import Query, Statement

T = TypeVar("T")

Types = tuple[int, ...]


class Exchange:
    """The statements of one connection. It is used by nothing else while one is on its way."""

    def __init__(self, conn: psycopg.AsyncConnection[Any], schema: str) -> None:
        self._pgconn: PGconn = conn.pgconn
        self._schema = schema
        self._values = Transformer(conn)
        self._prepares = conn.prepare_threshold is not None  # a pooler keeps nothing for us
        self._prepared: dict[tuple[Statement, Types], bytes] = {}
        self._turn = asyncio.Lock()

    @property
    def closed(self) -> bool:
        return self._pgconn.status == ConnStatus.BAD

    async def ask(self, query: Query[T], limit: float) -> T:
        """Run a query. `limit`: so many seconds until its session is given up."""
        async with self._turn:
            return query.read(await self._rows(query, limit))

    async def _rows(self, query: Query[Any], limit: float) -> list[tuple[Any, ...]]:
        values = self._values
        text, names = query.statement.numbered(self._schema)
        params = values.dump_sequence([query.params[name] for name in names], [PyFormat.AUTO] * len(names))
        types, formats = values.types or (), values.formats or ()
        binary = int(query.binary)
        name = self._prepared.get((query.statement, types))
        if name is None and self._prepares:
            name = b"pgworkers_%d" % len(self._prepared)
            self._read(await self._sent(limit, self._pgconn.send_prepare, name, text, types))
            self._prepared[query.statement, types] = name
        if name is None:
            return self._read(
                await self._sent(limit, self._pgconn.send_query_params, text, params, types, formats, binary)
            )
        return self._read(
            await self._sent(limit, self._pgconn.send_query_prepared, name, params, formats, binary)
        )

    async def _sent(self, limit: float, send: Callable[..., None], *what: Any) -> PGresult:
        """The answer to what is sent. What can be done after the sending is done while the server works."""
        expired = False
        try:
            send(*what)
            waiting = Waiting(self._pgconn, limit)
            try:
                return await waiting.result()
            finally:
                expired = waiting.end()
        except BaseException as error:
            cut(self._pgconn)
            if expired and isinstance(error, psycopg.Error):
                raise psycopg.OperationalError(f"no answer within {show_seconds(limit)}") from None
            raise

    def _read(self, result: PGresult) -> list[tuple[Any, ...]]:
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
        """Notifications that came with the answer."""
        handler = self._pgconn.notify_handler
        if handler is not None:
            while (notice := self._pgconn.notifies()) is not None:
                handler(notice)


class Waiting:
    """For the answers to what was sent. The time limit cuts the socket, which wakes whoever waits."""

    def __init__(self, pgconn: PGconn, limit: float) -> None:
        self._expired = False
        self._pgconn = pgconn
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(limit, self._expire)
        self._fd = pgconn.socket
        self._came: asyncio.Future[None] | None = None
        self._loop.add_reader(self._fd, self._wake)

    def end(self) -> bool:
        """True: it took too long."""
        self._timer.cancel()
        self._loop.remove_reader(self._fd)
        return self._expired

    async def result(self) -> PGresult:
        """The one answer to what was just sent."""
        pgconn = self._pgconn
        while pgconn.flush():
            await self._sendable()
            pgconn.consume_input()  # it may answer before it has heard all
        answer = None
        while True:
            while pgconn.is_busy():
                await self._ready()
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                break
            answer = result
        if answer is None:
            raise psycopg.OperationalError("the session ended")
        return answer

    async def _sendable(self) -> None:
        self._loop.add_writer(self._fd, self._wake)
        try:
            await self._ready()
        finally:
            self._loop.remove_writer(self._fd)

    async def _ready(self) -> None:
        self._came = self._loop.create_future()
        try:
            await self._came
        finally:
            self._came = None

    def _wake(self) -> None:
        if self._came is not None and not self._came.done():
            self._came.set_result(None)

    def _expire(self) -> None:
        self._expired = True
        shut(self._pgconn)


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
