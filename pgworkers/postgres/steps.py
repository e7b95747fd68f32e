"""Operations that are written once, and run by blocking callers and in event loops.

An operation is a generator. It yields steps (a query, a pause, a transaction) and receives their answers. A runner performs
the steps: `ConnectionRunner` on a blocking connection, `AsyncConnectionRunner` on an async one. The client of an app has two
runners of its own (`client/client`), whose steps also choose the connection.

Rules for operations: make no blocking call, open no `with` on a connection (yield a `Transaction`), and type an answer with
`yield from ask(query)` or an annotation. An error of a step is raised where it was yielded.

psycopg and asyncio are imported by the first use: a process that declares an app loads neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import psycopg
    from psycopg.abc import Query as DriverQuery

    from pgworkers.postgres.statements import Query, Statement

T = TypeVar("T")

#: An operation: it yields steps, receives their answers, and returns a T.
Steps = Generator[Any, Any, T]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Pause."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Transaction:
    """Run these steps in one transaction, or in a savepoint if the connection is in one. Answers their result."""

    steps: Steps[Any]


@dataclass(frozen=True, slots=True)
class Execute:
    """Run a statement whose rows are not needed: SET, LISTEN."""

    statement: DriverQuery


@dataclass(frozen=True, slots=True)
class CopyIn:
    """Send these blocks of text by COPY. The COPY stays open while the iterator works."""

    statement: Statement
    blocks: Iterable[str]


@dataclass(frozen=True, slots=True)
class WaitForNotifications:
    """Wait until at least one notification has arrived. Answers their payloads; none: the time is up."""

    timeout: float


@dataclass(frozen=True, slots=True)
class InspectTransaction:
    """Answer the connection's `TransactionMode`. Sends nothing."""


@dataclass(frozen=True, slots=True)
class TransactionMode:
    """Whether each statement of a connection commits by itself, and whether it is in a transaction now."""

    is_autocommit: bool
    is_in_transaction: bool


#: Begins the transaction of a connection that is not in autocommit mode.
_BEGIN_STATEMENT = "SELECT"


def begin_callers_transaction() -> Steps[TransactionMode]:
    """Begin the transaction of a connection that is not in autocommit mode, if it has not begun yet.

    Without this a `Transaction` would be the outermost one, and its end would commit in the caller's place.
    """
    mode: TransactionMode = yield InspectTransaction()
    if not mode.is_autocommit and not mode.is_in_transaction:
        yield Execute(_BEGIN_STATEMENT)
        return TransactionMode(is_autocommit=False, is_in_transaction=True)
    return mode


def ask(query: Query[T]) -> Steps[T]:
    """One query as an operation. A bare query is a step, too, but its answer has no type."""
    answer: T = yield query
    return answer


def transaction_mode(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> TransactionMode:
    from psycopg.pq import TransactionStatus

    return TransactionMode(conn.autocommit, conn.info.transaction_status != TransactionStatus.IDLE)


class BlockingRunner(ABC):
    """Performs the steps of an operation one after the other, and blocks the caller."""

    def run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    answer = self.perform(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()  # a signal may raise between two steps: clean up now, not when the generator is collected

    @abstractmethod
    def perform(self, step: Any) -> Any:
        """Perform one step and return its answer."""


class AsyncRunner(ABC):
    """Performs the steps of an operation one after the other, in the running event loop."""

    async def run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self.perform(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()  # a signal may raise between two steps: clean up now, not when the generator is collected

    @abstractmethod
    async def perform(self, step: Any) -> Any:
        """Perform one step and return its answer."""


class ConnectionRunner(BlockingRunner):
    """Performs all steps on one blocking connection."""

    def __init__(self, conn: psycopg.Connection[Any], schema: str) -> None:
        self._conn = conn
        self._schema = schema

    def perform(self, step: Any) -> Any:
        match step:
            case Transaction(steps):
                with self._conn.transaction():
                    return self.run(steps)
            case CopyIn(statement, blocks):
                with self._conn.cursor() as cursor, cursor.copy(statement.render(self._schema)) as copy:
                    for block in blocks:
                        copy.write(block)
            case Execute(statement):
                self._conn.execute(statement)
            case WaitForNotifications(timeout):
                return [note.payload for note in self._conn.notifies(timeout=timeout, stop_after=1)]
            case InspectTransaction():
                return transaction_mode(self._conn)
            case Sleep(seconds):
                from time import sleep

                sleep(seconds)
            case query:
                from pgworkers.postgres.statements import run

                return run(self._conn, self._schema, query)
        return None


class AsyncConnectionRunner(AsyncRunner):
    """Performs all steps on one async connection."""

    def __init__(self, conn: psycopg.AsyncConnection[Any], schema: str) -> None:
        self._conn = conn
        self._schema = schema

    async def perform(self, step: Any) -> Any:
        match step:
            case Transaction(steps):
                async with self._conn.transaction():
                    return await self.run(steps)
            case CopyIn(statement, blocks):
                async with self._conn.cursor() as cursor, cursor.copy(statement.render(self._schema)) as copy:
                    for block in blocks:
                        await copy.write(block)
            case Execute(statement):
                await self._conn.execute(statement)
            case WaitForNotifications(timeout):
                return [note.payload async for note in self._conn.notifies(timeout=timeout, stop_after=1)]
            case InspectTransaction():
                return transaction_mode(self._conn)
            case Sleep(seconds):
                from asyncio import sleep

                await sleep(seconds)
            case query:
                from pgworkers.postgres.statements import arun

                return await arun(self._conn, self._schema, query)
        return None
