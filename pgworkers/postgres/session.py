"""Statements on a connection that only we use, sent through libpq directly.

The plain version is `statements.run` and `statements.arun`, which use a psycopg cursor. `BlockingSession` and `AsyncSession`
run the same queries. A cursor serves any statement on any connection, and for a short statement most of the time of this
process is spent in it (docs/adr/09). Our own sessions are all alike: autocommit, one answer per statement, and few
different statements.

Parameters are still dumped and rows still loaded by psycopg's `Transformer`. Statements are prepared when psycopg would
prepare them: after `prepare_threshold` uses, and never if it is None (behind a pooler).

Two rules hold for both classes:
- A statement that was not answered (no answer in time, a cancelled task, a signal) closes its connection. The next answer
  would belong to the wrong statement.
- Notifications are delivered with every piece that is read. libpq would keep them in memory, and a server sends all that it
  has before it answers.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

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
Rows = list[Any]
T = TypeVar("T")

#: Limit for a request to the server to cancel a statement.
CANCEL_TIMEOUT_SECONDS = 2.0


class StatementTimedOut(psycopg.OperationalError):
    """A statement got no answer in time. Its connection is closed."""


class Send(NamedTuple):
    """A call of libpq that sends something."""

    function: Callable[..., None]  # a send_* method of PGconn
    arguments: tuple[Any, ...]


#: Yields what is sent, gets the result of each, and returns the rows of the last.
Steps = Generator[Send, PGresult, Rows]


class _StatementProtocol:
    """What is sent for a query and how its result is read. The subclasses wait for the result."""

    def __init__(self, conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], schema: str) -> None:
        self._pgconn: PGconn = conn.pgconn
        self._pooled_conn = conn if isinstance(conn, (PooledConnection, AsyncPooledConnection)) else None
        self._poll = select.poll()
        self._poll.register(conn.pgconn.socket, select.POLLIN)
        self._schema = schema
        self._transformer = Transformer(conn)
        self._prepare_threshold = conn.prepare_threshold
        self._prepared_names: dict[tuple[Statement, _ParameterTypes], bytes] = {}
        self._use_counts: dict[tuple[Statement, _ParameterTypes], int] = {}

    @property
    def is_closed(self) -> bool:
        """True if libpq has closed the connection, or found it broken."""
        return self._pgconn.status == ConnStatus.BAD

    @property
    def is_idle(self) -> bool:
        """True if the connection is open and outside a transaction."""
        pgconn = self._pgconn
        return pgconn.status == ConnStatus.OK and pgconn.transaction_status == TransactionStatus.IDLE

    @property
    def is_reusable(self) -> bool:
        """True if the connection is open and the server has sent nothing since the last result. Sends nothing itself.

        A server writes to an idle session only to end it, so a session with something to read must be replaced. (The end of
        the stream may follow that message a moment later; waiting for it would lose the race.)
        """
        return self._pgconn.status == ConnStatus.OK and not self._poll.poll(0)

    def steps(self, query: Query[Any]) -> Steps:
        """Prepare the statement if it is due, then send it."""
        pgconn = self._pgconn
        if self._pooled_conn is not None:
            text = self._pooled_text(query, self._pooled_conn)
            return self.read_result((yield Send(pgconn.send_query, (text,))), query.record)
        text, names = query.statement.numbered(self._schema)
        params: Sequence[Buffer | None]
        types: _ParameterTypes = ()
        formats: Sequence[Format] | None = None
        if query.encoded_params is not None:
            params = query.encoded_params
        else:
            transformer, values = self._transformer, [query.params[name] for name in names]
            params = transformer.dump_sequence(values, [PyFormat.AUTO] * len(names))
            types, formats = transformer.types or (), transformer.formats or ()
        binary = int(query.is_binary)
        key = query.statement, types
        name = self._prepared_names.get(key)
        if name is None and self._should_prepare(key):
            name = b"pgworkers_%d" % len(self._prepared_names)
            self.read_result((yield Send(pgconn.send_prepare, (name, text, types or None))))
            self._prepared_names[key] = name
        if name is None:
            unprepared = (text, params, types or None, formats, binary)
            return self.read_result((yield Send(pgconn.send_query_params, unprepared)), query.record)
        prepared = (name, params, formats, binary)
        return self.read_result((yield Send(pgconn.send_query_prepared, prepared)), query.record)

    def _pooled_text(self, query: Query[Any], conn: PooledConnection | AsyncPooledConnection) -> bytes:
        """The statement after the settings that it needs, as one message, which is one transaction."""
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

    def read_result(self, result: PGresult, record: type[Any] | None = None) -> Rows:
        """The rows of a result, as tuples or as records. Raises the error that the server reported."""
        self.deliver_notifications()
        if result.status == ExecStatus.COMMAND_OK:
            return []
        if result.status != ExecStatus.TUPLES_OK:
            raise errors.error_from_result(result)
        self._transformer.set_pgresult(result)
        try:
            make_row = tuple if record is None else _record_maker(record, result)
            return self._transformer.load_rows(0, result.ntuples, make_row)
        finally:
            self._transformer.set_pgresult(None)

    def deliver_notifications(self) -> None:
        """Pass on the notifications that libpq has read."""
        handler = self._pgconn.notify_handler
        if handler is not None:
            while (notice := self._pgconn.notifies()) is not None:
                handler(notice)


def _record_maker(record: type[Any], result: PGresult) -> Callable[[Sequence[Any]], Any]:
    names = [(result.fname(column) or b"").decode() for column in range(result.nfields)]
    return lambda values: record(**dict(zip(names, values, strict=True)))


class BlockingSession(_StatementProtocol):
    """The statements of one connection without an event loop, for one caller at a time.

    It waits with Python's `poll` and not inside libpq, so that a signal (Ctrl-C, the exception of the stop ladder)
    interrupts the wait.
    """

    def __init__(self, conn: psycopg.Connection[Any], schema: str) -> None:
        super().__init__(conn, schema)
        self.conn = conn

    def run(self, query: Query[T]) -> T:
        """Run a query and return what it reads."""
        steps = self.steps(query)
        step = next(steps)
        while True:
            result = self._send(step)
            try:
                step = steps.send(result)
            except StopIteration as end:
                return query.read(end.value)

    def _send(self, step: Send) -> PGresult:
        try:
            step.function(*step.arguments)
            return self._wait_for_result()
        except BaseException as error:
            try:
                if not isinstance(error, Exception):
                    self._cancel_on_server()
            finally:
                _abort_connection(self._pgconn)
            raise

    def _wait_for_result(self) -> PGresult:
        """The one result of what was just sent."""
        pgconn, fd = self._pgconn, self._pgconn.socket
        if pgconn.flush():
            self._poll.modify(fd, select.POLLIN | select.POLLOUT)
            while pgconn.flush():
                self._poll.poll()
                pgconn.consume_input()  # the server may answer before it has read everything
                self.deliver_notifications()
            self._poll.modify(fd, select.POLLIN)
        last = None
        while True:
            while pgconn.is_busy():
                self._poll.poll()
                pgconn.consume_input()
                self.deliver_notifications()
            result = pgconn.get_result()
            if result is None:
                break
            last = result
        if last is None:
            raise psycopg.OperationalError("the session ended")
        return last

    def _cancel_on_server(self) -> None:
        """Cancel the statement on the server after an interrupted wait."""
        if self._pgconn.transaction_status == TransactionStatus.ACTIVE:
            try:
                self.conn.cancel_safe(timeout=CANCEL_TIMEOUT_SECONDS)
            except psycopg.Error:
                pass  # the statement may have ended, or the server is out of reach


class AsyncSession(_StatementProtocol):
    """The statements of one connection in an event loop. Statements of several tasks run one after the other.

    Nothing else may use the connection during a statement.
    """

    def __init__(
        self, conn: psycopg.AsyncConnection[Any], schema: str, *, should_cancel_on_server: bool = False
    ) -> None:
        """Use this connection.

        `should_cancel_on_server`: when a task is cancelled, its statement is cancelled on the server as well. That can take
        CANCEL_TIMEOUT_SECONDS.
        """
        super().__init__(conn, schema)
        self.conn = conn
        self._should_cancel_on_server = should_cancel_on_server
        self._lock = asyncio.Lock()
        self._fd = conn.pgconn.socket
        self._watching_loop: asyncio.AbstractEventLoop | None = None  # while a statement waits

    async def run(self, query: Query[T], timeout: float | None) -> T:
        """Run a query and return what it reads. After `timeout` seconds the connection is closed."""
        async with self._lock:
            steps = self.steps(query)
            step = next(steps)
            while True:
                result = await self._send(step, timeout)
                try:
                    step = steps.send(result)
                except StopIteration as end:
                    return query.read(end.value)

    async def execute(self, command: bytes) -> None:
        """Run a command that returns no rows, without a time limit."""
        async with self._lock:
            self.read_result(await self._send(Send(self._pgconn.send_query, (command,)), None))

    def close_now(self) -> None:
        """Close the connection without awaiting. No statement may be waiting, or its caller must be cancelled."""
        self._stop_watching()
        self._pgconn.finish()

    def abort(self) -> None:
        """`close_now` without a message to the server."""
        self._stop_watching()
        _abort_connection(self._pgconn)

    async def _send(self, step: Send, timeout: float | None) -> PGresult:
        try:
            async with asyncio.timeout(timeout):
                step.function(*step.arguments)
                return await self._wait_for_result()
        except BaseException as error:
            await self._give_up(error)
            if isinstance(error, TimeoutError) and timeout is not None:
                raise StatementTimedOut(f"no answer within {format_duration(timeout)}") from None
            raise

    async def _give_up(self, error: BaseException) -> None:
        try:
            if self._should_cancel_on_server and isinstance(error, asyncio.CancelledError):
                await self.conn.cancel_safe(timeout=CANCEL_TIMEOUT_SECONDS)
        except psycopg.Error:
            pass  # the statement may have ended, or the server is out of reach
        finally:
            _abort_connection(self._pgconn)

    async def _wait_for_result(self) -> PGresult:
        """The one result of what was just sent."""
        pgconn = self._pgconn
        while pgconn.flush():
            await self._wait_for_socket(is_writing=True)
            pgconn.consume_input()  # the server may answer before it has read everything
            self.deliver_notifications()
        last = None
        while True:
            while pgconn.is_busy():
                await self._wait_for_socket()
                pgconn.consume_input()
                self.deliver_notifications()
            result = pgconn.get_result()
            if result is None:
                break
            last = result
        if last is None:
            raise psycopg.OperationalError("the session ended")
        return last

    async def _wait_for_socket(self, *, is_writing: bool = False) -> None:
        """Wait until there is something to read; with `is_writing`, or until more can be sent."""
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        self._watching_loop = loop
        loop.add_reader(self._fd, _set_ready, ready)
        if is_writing:
            loop.add_writer(self._fd, _set_ready, ready)
        try:
            await ready
        finally:
            self._stop_watching()

    def _stop_watching(self) -> None:
        """Unregister the socket from the event loop. After it is closed its number may belong to another file."""
        loop, self._watching_loop = self._watching_loop, None
        if loop is not None:
            loop.remove_reader(self._fd)
            loop.remove_writer(self._fd)


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _shutdown_socket(pgconn: PGconn) -> None:
    """Shut the socket down. A wait for it ends at once, with an error."""
    try:
        with socket.socket(fileno=os.dup(pgconn.socket)) as sock:
            sock.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        pass


def _abort_connection(pgconn: PGconn) -> None:
    """Close the connection without a message to the server: sending one could block."""
    _shutdown_socket(pgconn)
    try:
        pgconn.finish()
    except psycopg.Error:
        pass
