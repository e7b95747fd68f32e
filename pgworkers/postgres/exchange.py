"""Statements on a session of ours in an event loop, one after the other, by libpq itself. (`blocking`: without a loop.)

A psycopg cursor is made for any statement on any connection, by any number of tasks. Of a short statement that is most
of its time: for a claim after a rest 0.9 ms of this process where the same words on the wire take 0.3, and a claim is
what a job waits for (docs/adr/2001). Our own sessions, those of a host and of whoever enqueues, are all alike: autocommit,
one answer to each statement, the same few statements for ever. So the bytes are sent and waited for here.

An exchange that was not heard to its end (no answer in time, a task that was cancelled) leaves a session whose next answer
would be to the wrong question: its socket is cut and it is finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg.pq.abc import PGconn, PGresult

from pgworkers.clock import show_seconds
from pgworkers.postgres.statements import Query
from pgworkers.postgres.wording import WITHDRAWAL, Wording, cut, shut

T = TypeVar("T")


class Exchange(Wording):
    """The statements of one connection. It is used by nothing else while one is on its way."""

    def __init__(self, conn: psycopg.AsyncConnection[Any], schema: str, *, withdraws: bool = False) -> None:
        """`withdraws`: a statement whose task was cancelled is cancelled on the server, too, which may take a while."""
        super().__init__(conn, schema)
        self.conn = conn
        self._withdraws = withdraws
        self._turn = asyncio.Lock()

    async def ask(self, query: Query[T], limit: float | None) -> T:
        """Run a query. `limit`: so many seconds until its session is given up."""
        async with self._turn:
            turns = self._turns(query)
            send, what = next(turns)
            while True:
                answer = await self._sent(limit, send, what)
                try:
                    send, what = turns.send(answer)
                except StopIteration as end:
                    return query.read(end.value)

    async def _sent(self, limit: float | None, send: Callable[..., None], what: tuple[Any, ...]) -> PGresult:
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
            try:
                if self._withdraws and isinstance(error, asyncio.CancelledError):
                    await self.conn.cancel_safe(timeout=WITHDRAWAL)
            except psycopg.Error:
                pass  # it may be over, or the server out of reach
            finally:
                cut(self._pgconn)
            if expired and limit is not None and isinstance(error, psycopg.Error):
                raise psycopg.OperationalError(f"no answer within {show_seconds(limit)}") from None
            raise


class Waiting:
    """For the answers to what was sent. The time limit cuts the socket, which wakes whoever waits."""

    def __init__(self, pgconn: PGconn, limit: float | None) -> None:
        self._expired = False
        self._pgconn = pgconn
        self._loop = asyncio.get_running_loop()
        self._timer = None if limit is None else self._loop.call_later(limit, self._expire)
        self._fd = pgconn.socket
        self._came: asyncio.Future[None] | None = None
        self._loop.add_reader(self._fd, self._wake)

    def end(self) -> bool:
        """True: it took too long."""
        if self._timer is not None:
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
