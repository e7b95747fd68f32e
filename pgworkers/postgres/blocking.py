"""`exchange` for blocking callers: the session of a process that enqueues (docs/adr/2301).

A cursor of psycopg is most of what an enqueue costs Python. The waiting is Python's own `poll`, not libpq's: a signal
(Ctrl-C, the raise of the stop ladder) gets through while the server has not answered.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult

from pgworkers.postgres.statements import Query
from pgworkers.postgres.wording import WITHDRAWAL, Wording, cut

T = TypeVar("T")


class Blocking(Wording):
    """The statements of one connection, for one caller at a time."""

    def __init__(self, conn: psycopg.Connection[Any], schema: str) -> None:
        super().__init__(conn, schema)
        self.conn = conn

    def ask(self, query: Query[T]) -> T:
        turns = self._turns(query)
        send, what = next(turns)
        while True:
            answer = self._sent(send, what)
            try:
                send, what = turns.send(answer)
            except StopIteration as end:
                return query.read(end.value)

    def _sent(self, send: Callable[..., None], what: tuple[Any, ...]) -> PGresult:
        try:
            send(*what)
            return self._result()
        except BaseException as error:
            try:
                if not isinstance(error, Exception):
                    self._withdraw()
            finally:
                cut(self._pgconn)
            raise

    def _result(self) -> PGresult:
        """The one answer to what was just sent."""
        pgconn, fd = self._pgconn, self._pgconn.socket
        if pgconn.flush():
            self._poll.modify(fd, select.POLLIN | select.POLLOUT)
            while pgconn.flush():
                self._poll.poll()
                pgconn.consume_input()  # it may answer before it has heard all
                self._hear()
            self._poll.modify(fd, select.POLLIN)
        answer = None
        while True:
            while pgconn.is_busy():
                self._poll.poll()
                pgconn.consume_input()
                self._hear()
            result = pgconn.get_result()
            if result is None:
                break
            answer = result
        if answer is None:
            raise psycopg.OperationalError("the session ended")
        return answer

    def _withdraw(self) -> None:
        """Somebody raised through the waiting: the server need not go on."""
        if self._pgconn.transaction_status == TransactionStatus.ACTIVE:
            try:
                self.conn.cancel_safe(timeout=WITHDRAWAL)
            except psycopg.Error:
                pass  # it may be over, or the server out of reach
