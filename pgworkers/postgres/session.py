"""A statement as libpq sends it, and its answer as rows: what the blocking and the async exchange have in common.

How values are written and read stays psycopg's; which statements are prepared, and when, is said by the connection, as for
psycopg's own cursors (`prepare_threshold`: after so many uses, and None behind a pooler, which keeps nothing for us).

`exchange` for blocking callers: the session of a process that enqueues (docs/adr/09).

A cursor of psycopg is most of what an enqueue costs Python. The waiting is Python's own `poll`, not libpq's: a signal
(Ctrl-C, the raise of the stop ladder) gets through while the server has not answered.

Statements on a session of ours in an event loop, one after the other, by libpq itself. (`blocking`: without a loop.)

A psycopg cursor is made for any statement on any connection, by any number of tasks. Of a short statement that is most
of its time: for a claim after a rest 0.9 ms of this process where the same words on the wire take 0.3, and a claim is
what a job waits for (docs/adr/09). Our own sessions, those of a host and of whoever enqueues, are all alike: autocommit,
one answer to each statement, the same few statements for ever. So the bytes are sent and waited for here.

An exchange that was not heard to its end (no answer in time, a task that was cancelled) leaves a session whose next answer
would be to the wrong question: its socket is cut and it is finished.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import Buffer
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ConnStatus, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from pgworkers.postgres.pooler import AsyncPooledConnection, PooledConnection, inline_parameters
from pgworkers.postgres.statements import Query, Statement
from pgworkers.units import format_duration

_ParameterTypes = tuple[int, ...]
Rows = list[tuple[Any, ...]]
#: What is to be sent; the answer to it comes back. The rows are what it ends with.
Steps = Generator[tuple[Callable[..., None], tuple[Any, ...]], PGresult, Rows]

#: How long the server may take to hear that somebody lost patience with a statement.
CANCEL_TIMEOUT_SECONDS = 2.0


class StatementTimedOut(psycopg.OperationalError):
    """A statement was not answered in time. Its session is cut."""


class _StatementProtocol:
    """The statements of one connection."""

    def __init__(self, conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], schema: str) -> None:
        self._pgconn: PGconn = conn.pgconn
        self._pooled_conn = conn if isinstance(conn, (PooledConnection, AsyncPooledConnection)) else None
        self._poll = select.poll()
        self._poll.register(conn.pgconn.socket, select.POLLIN)
        self._schema = schema
        self._transformer = Transformer(conn)
        self._prepare_threshold = conn.prepare_threshold
        self._last_query: Query[Any] | None = None
        self._last_params: tuple[Sequence[Buffer | None], _ParameterTypes, Sequence[Format]] = ((), (), ())
        self._prepared_names: dict[tuple[Statement, _ParameterTypes], bytes] = {}
        self._use_counts: dict[tuple[Statement, _ParameterTypes], int] = {}

    @property
    def is_closed(self) -> bool:
        return self._pgconn.status == ConnStatus.BAD

    @property
    def is_idle(self) -> bool:
        pgconn = self._pgconn
        return pgconn.status == ConnStatus.OK and pgconn.transaction_status == TransactionStatus.IDLE

    @property
    def is_reusable(self) -> bool:
        """Is it as it was left? Sends nothing, and waits for nothing.

        A server has nothing to say to an idle session but that it ends it, so anything to read means: take a new one. (The
        end of the stream may follow the last message a moment later; waiting for it would lose the race.)
        """
        return self._pgconn.status == ConnStatus.OK and not self._poll.poll(0)

    def steps(self, query: Query[Any]) -> Steps:
        """One statement; before it, perhaps, that it is to be prepared."""
        pgconn = self._pgconn
        if self._pooled_conn is not None:
            return self.read_result((yield pgconn.send_query, (self._pooled_text(query, self._pooled_conn),)))
        text, names = query.statement.numbered(self._schema)
        if query is self._last_query:
            params, types, formats = self._last_params
        elif query.encoded_params is not None:
            params, types, formats = query.encoded_params, (), None
        else:
            values, given = self._transformer, query.params
            params = values.dump_sequence([given[name] for name in names], [PyFormat.AUTO] * len(names))
            types, formats = values.types or (), values.formats or ()
            if query.is_repeated:
                self._last_query, self._last_params = query, (params, types, formats)
        binary = int(query.is_binary)
        key = query.statement, types
        name = self._prepared_names.get(key)
        if name is None and self._should_prepare(key):
            name = b"pgworkers_%d" % len(self._prepared_names)
            self.read_result((yield pgconn.send_prepare, (name, text, types or None)))
            self._prepared_names[key] = name
        if name is None:
            return self.read_result(
                (yield pgconn.send_query_params, (text, params, types or None, formats, binary))
            )
        return self.read_result((yield pgconn.send_query_prepared, (name, params, formats, binary)))

    def _pooled_text(self, query: Query[Any], conn: PooledConnection | AsyncPooledConnection) -> bytes:
        """Through a pooler: the statement and the settings that it needs are one transaction."""
        text = inline_parameters(
            conn, query.statement.render(self._schema), dict(query.params_by_name(self._schema))
        )
        return conn.settings_prefix + text

    def _should_prepare(self, key: tuple[Statement, _ParameterTypes]) -> bool:
        if self._prepare_threshold is None:
            return False
        used = self._use_counts.get(key, 0)
        self._use_counts[key] = used + 1
        return used >= self._prepare_threshold

    def read_result(self, result: PGresult) -> Rows:
        self.deliver_notifications()
        if result.status == ExecStatus.COMMAND_OK:
            return []
        if result.status != ExecStatus.TUPLES_OK:
            raise errors.error_from_result(result)
        self._transformer.set_pgresult(result)
        try:
            return self._transformer.load_rows(0, result.ntuples, tuple)
        finally:
            self._transformer.set_pgresult(None)

    def deliver_notifications(self) -> None:
        """Take the notifications that are here, with each piece that is read: libpq keeps those that wait in memory, and a
        server sends all that it has before it answers."""
        handler = self._pgconn.notify_handler
        if handler is not None:
            while (notice := self._pgconn.notifies()) is not None:
                handler(notice)


def _shutdown_socket(pgconn: PGconn) -> None:
    """Shut the socket down: whoever waits on it gets an error at once."""
    try:
        with socket.socket(fileno=os.dup(pgconn.socket)) as sock:
            sock.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        pass


def _abort_connection(pgconn: PGconn) -> None:
    """End the session without a word: to close it with one may wait for the server."""
    _shutdown_socket(pgconn)
    try:
        pgconn.finish()
    except psycopg.Error:
        pass


T = TypeVar("T")


class BlockingSession(_StatementProtocol):
    """The statements of one connection, for one caller at a time."""

    def __init__(self, conn: psycopg.Connection[Any], schema: str) -> None:
        super().__init__(conn, schema)
        self.conn = conn

    def run(self, query: Query[T]) -> T:
        turns = self.steps(query)
        send, what = next(turns)
        while True:
            answer = self._send(send, what)
            try:
                send, what = turns.send(answer)
            except StopIteration as end:
                return query.read(end.value)

    def _send(self, send: Callable[..., None], what: tuple[Any, ...]) -> PGresult:
        try:
            send(*what)
            return self._wait_for_result()
        except BaseException as error:
            try:
                if not isinstance(error, Exception):
                    self._cancel_on_server()
            finally:
                _abort_connection(self._pgconn)
            raise

    def _wait_for_result(self) -> PGresult:
        """The one answer to what was just sent."""
        pgconn, fd = self._pgconn, self._pgconn.socket
        if pgconn.flush():
            self._poll.modify(fd, select.POLLIN | select.POLLOUT)
            while pgconn.flush():
                self._poll.poll()
                pgconn.consume_input()  # it may answer before it has heard all
                self.deliver_notifications()
            self._poll.modify(fd, select.POLLIN)
        answer = None
        while True:
            while pgconn.is_busy():
                self._poll.poll()
                pgconn.consume_input()
                self.deliver_notifications()
            result = pgconn.get_result()
            if result is None:
                break
            answer = result
        if answer is None:
            raise psycopg.OperationalError("the session ended")
        return answer

    def _cancel_on_server(self) -> None:
        """Somebody raised through the waiting: the server need not go on."""
        if self._pgconn.transaction_status == TransactionStatus.ACTIVE:
            try:
                self.conn.cancel_safe(timeout=CANCEL_TIMEOUT_SECONDS)
            except psycopg.Error:
                pass  # it may be over, or the server out of reach


class AsyncSession(_StatementProtocol):
    """The statements of one connection. It is used by nothing else while one is on its way."""

    def __init__(
        self,
        conn: psycopg.AsyncConnection[Any],
        schema: str,
        *,
        should_cancel_on_server: bool = False,
        sole: bool = False,
    ) -> None:
        """Prepare to use this connection in an event loop.

        `should_cancel_on_server`: a statement whose task was cancelled is cancelled on the server, too. That may take a
        while.

        `sole`: nothing else uses the connection, ever, and before it is closed it is left. Then the loop watches its socket
        all the time.
        """
        super().__init__(conn, schema)
        self.conn = conn
        self._should_cancel_on_server = should_cancel_on_server
        self._lock = asyncio.Lock()
        self._waiting = Waiting(conn.pgconn, self.deliver_notifications, stays=sole)

    async def run(self, query: Query[T], timeout: float | None) -> T:
        """Run a query. `timeout`: so many seconds until its session is given up."""
        async with self._lock:
            turns = self.steps(query)
            send, what = next(turns)
            while True:
                answer = await self._send(timeout, send, what)
                try:
                    send, what = turns.send(answer)
                except StopIteration as end:
                    return query.read(end.value)

    async def execute(self, text: bytes) -> None:
        """Run a command that answers no rows, for as long as the caller waits."""
        async with self._lock:
            self.read_result(await self._send(None, self._pgconn.send_query, (text,)))

    def leave(self) -> None:
        """Before the connection is closed by somebody else."""
        self._waiting.leave()

    def abort(self) -> None:
        """End the session without a word."""
        self.leave()
        _abort_connection(self._pgconn)

    async def _send(self, limit: float | None, send: Callable[..., None], what: tuple[Any, ...]) -> PGresult:
        """The answer to what is sent. Little is done before the wait: the server may be waiting for our core."""
        waiting = self._waiting
        expired = False
        try:
            send(*what)
            waiting.begin(limit)
            try:
                return await waiting.result()
            finally:
                expired = waiting.end()
        except BaseException as error:
            waiting.leave()
            try:
                if self._should_cancel_on_server and isinstance(error, asyncio.CancelledError):
                    await self.conn.cancel_safe(timeout=CANCEL_TIMEOUT_SECONDS)
            except psycopg.Error:
                pass  # it may be over, or the server out of reach
            finally:
                _abort_connection(self._pgconn)
            if expired and limit is not None and isinstance(error, psycopg.Error):
                raise StatementTimedOut(f"no answer within {format_duration(limit)}") from None
            raise


class Waiting:
    """For the answers of one session. The time limit cuts the socket, which wakes whoever waits."""

    def __init__(self, pgconn: PGconn, hear: Callable[[], None], *, stays: bool) -> None:
        """`hear` takes the notifications that are here. `stays`: the loop watches the socket even when no caller waits."""
        self._pgconn = pgconn
        self._hear = hear
        self._fd = pgconn.socket
        self._stays = stays
        self._loop: asyncio.AbstractEventLoop | None = None  # that watches
        self._came: asyncio.Future[None] | None = None  # what the task waits for
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    def begin(self, limit: float | None) -> None:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
            loop.add_reader(self._fd, self._on_readable)
        self._expired = False
        if limit is not None:
            self._timer = loop.call_later(limit, self._expire)

    def end(self) -> bool:
        """True: it took too long."""
        self._stop_timer()
        if not self._stays:
            self.leave()
        return self._expired

    def leave(self) -> None:
        """The loop forgets the socket; that must be before it is closed."""
        if self._loop is not None:
            self._loop.remove_reader(self._fd)
            self._loop = None
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def result(self) -> PGresult:
        """The one answer to what was just sent."""
        pgconn = self._pgconn
        while pgconn.flush():
            await self._sendable()
        answer = None
        while True:
            while pgconn.is_busy():
                await self._ready()
            result = pgconn.get_result()
            if result is None:
                break
            answer = result
        if answer is None:
            raise psycopg.OperationalError("the session ended")
        return answer

    async def _sendable(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_writer(
            self._fd, self._wake
        )  # what the server answers meanwhile is read, or it would not read on
        try:
            await self._ready()
        finally:
            loop.remove_writer(self._fd)

    async def _ready(self) -> None:
        self._came = asyncio.get_running_loop().create_future()
        try:
            await self._came
        finally:
            self._came = None

    def _on_readable(self) -> None:
        """Read what has arrived, and wake the task when an answer is complete."""
        came = self._came
        if came is None:
            self.leave()  # no statement is running: the session has ended, and the next statement finds that out
            return
        try:
            self._pgconn.consume_input()
            self._hear()
        except BaseException as error:
            if not came.done():
                came.set_exception(error)
            return
        if not self._pgconn.is_busy():
            self._wake()

    def _wake(self) -> None:
        if self._came is not None and not self._came.done():
            self._came.set_result(None)

    def _expire(self) -> None:
        self._expired = True
        _shutdown_socket(self._pgconn)
