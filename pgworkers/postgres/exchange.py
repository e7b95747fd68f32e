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

from pgworkers.alarm import Alarm
from pgworkers.clock import show_seconds
from pgworkers.postgres.statements import Query
from pgworkers.postgres.wording import WITHDRAWAL, NoAnswer, Wording, cut, shut
from pgworkers.prompt import Prompt

T = TypeVar("T")


class Exchange(Wording):
    """The statements of one connection. It is used by nothing else while one is on its way."""

    def __init__(
        self,
        conn: psycopg.AsyncConnection[Any],
        schema: str,
        *,
        withdraws: bool = False,
        sole: bool = False,
    ) -> None:
        """`withdraws`: a statement whose task was cancelled is cancelled on the server, too, which may take a while.

        `sole`: nothing else uses the connection, ever, and before it is closed it is left. Then the loop watches its socket
        all the time.
        """
        super().__init__(conn, schema)
        self.conn = conn
        self._withdraws = withdraws
        self._turn = asyncio.Lock()
        self._waiting = Waiting(conn.pgconn, self._hear, stays=sole)

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

    async def command(self, text: bytes) -> None:
        """Run a command that answers no rows, for as long as the caller waits."""
        async with self._turn:
            self._read(await self._sent(None, self._pgconn.send_query, (text,)))

    def leave(self) -> None:
        """Before the connection is closed by somebody else."""
        self._waiting.leave()

    def cut(self) -> None:
        """End the session without a word."""
        self.leave()
        cut(self._pgconn)

    async def _sent(self, limit: float | None, send: Callable[..., None], what: tuple[Any, ...]) -> PGresult:
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
                if self._withdraws and isinstance(error, asyncio.CancelledError):
                    await self.conn.cancel_safe(timeout=WITHDRAWAL)
            except psycopg.Error:
                pass  # it may be over, or the server out of reach
            finally:
                cut(self._pgconn)
            if expired and limit is not None and isinstance(error, psycopg.Error):
                raise NoAnswer(f"no answer within {show_seconds(limit)}") from None
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
        self._came: Prompt | None = None
        self._limit = Alarm(self._expire)
        self._expired = False

    def begin(self, limit: float | None) -> None:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
            loop.add_reader(self._fd, self._wake)
        self._expired = False
        if limit is not None:
            self._limit.set(loop, loop.time() + limit)

    def end(self) -> bool:
        """True: it took too long."""
        self._limit.off()
        if not self._stays:
            self.leave()
        return self._expired

    def leave(self) -> None:
        """The loop forgets the socket; that must be before it is closed."""
        if self._loop is not None:
            self._loop.remove_reader(self._fd)
            self._loop = None
        self._limit.stop()

    async def result(self) -> PGresult:
        """The one answer to what was just sent."""
        pgconn = self._pgconn
        while pgconn.flush():
            await self._sendable()
            pgconn.consume_input()  # it may answer before it has heard all
            self._hear()
        answer = None
        while True:
            while pgconn.is_busy():
                await self._ready()
                pgconn.consume_input()
                self._hear()
            result = pgconn.get_result()
            if result is None:
                break
            answer = result
        if answer is None:
            raise psycopg.OperationalError("the session ended")
        return answer

    async def _sendable(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_writer(self._fd, self._wake)
        try:
            await self._ready()
        finally:
            loop.remove_writer(self._fd)

    async def _ready(self) -> None:
        self._came = Prompt(asyncio.get_running_loop())
        try:
            await self._came
        finally:
            self._came = None

    def _wake(self) -> None:
        if self._came is not None:
            self._came.set()
        else:
            self.leave()  # nobody asked: the session ends, and whoever asks next hears of it

    def _expire(self) -> None:
        self._expired = True
        shut(self._pgconn)
