"""Run steps on a connection of the caller: psycopg, psycopg2, asyncpg, or the SQLAlchemy or Django object that holds one.

An object is recognised by the names of its classes, so none of these libraries is imported here unless the caller did.
SQLAlchemy and Django hand out the driver's connection. Both begin a transaction later than the caller asks for it, so it is
begun here first: otherwise the job would be committed by itself, or would be rolled back when their commit sends nothing.

psycopg runs the steps with the runners of `postgres/steps`. `Psycopg2Runner` and `AsyncpgRunner` do the same with the other
drivers. asyncpg gets every value as text, because codecs that the caller set for a type must not change what is stored.

Errors of the other drivers become those of psycopg with the same SQLSTATE, so that one place explains them all. What the
caller must see unchanged to repeat its transaction (SQLSTATE 40xxx) stays as it is.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from pgworkers.errors import UsageError
from pgworkers.postgres.steps import (
    AsyncConnectionRunner,
    AsyncRunner,
    BlockingRunner,
    ConnectionRunner,
    CopyIn,
    Execute,
    InspectTransaction,
    Steps,
    Transaction,
    TransactionMode,
)

if TYPE_CHECKING:
    import psycopg

    from pgworkers.postgres.statements import Query, Statement

T = TypeVar("T")

_PSYCOPG = ("psycopg", "Connection")
_PSYCOPG_ASYNC = ("psycopg", "AsyncConnection")
_PSYCOPG2 = ("psycopg2.extensions", "connection")
_ASYNCPG = ("asyncpg.connection", "Connection")
_ASYNCPG_POOLED = ("asyncpg.pool", "PoolConnectionProxy")
_SQLALCHEMY = ("sqlalchemy.engine.base", "Connection")
_SQLALCHEMY_ASYNC = ("sqlalchemy.ext.asyncio.engine", "AsyncConnection")
_SQLALCHEMY_SESSIONS = (
    ("sqlalchemy.orm.session", "Session"),
    ("sqlalchemy.orm.scoping", "scoped_session"),
)
_SQLALCHEMY_ASYNC_SESSIONS = (
    ("sqlalchemy.ext.asyncio.session", "AsyncSession"),
    ("sqlalchemy.ext.asyncio.scoping", "async_scoped_session"),
)
_DJANGO = ("django.db.backends.base.base", "BaseDatabaseWrapper")
_DJANGO_PROXY = ("django.utils.connection", "ConnectionProxy")

_BLOCKING = (_PSYCOPG, _PSYCOPG2, _SQLALCHEMY, *_SQLALCHEMY_SESSIONS, _DJANGO, _DJANGO_PROXY)
_ASYNC = (_PSYCOPG_ASYNC, _ASYNCPG, _ASYNCPG_POOLED, _SQLALCHEMY_ASYNC, *_SQLALCHEMY_ASYNC_SESSIONS)

#: libpq's transaction status, as psycopg2 reports it.
_IDLE, _IN_ERROR = 0, 3


def run_steps(conn: Any, schema: str, steps: Steps[T]) -> T:
    """Run these steps on a blocking connection. UsageError if it is not one."""
    with _blocking_driver_connection(conn) as found:
        if _is_a(found, _PSYCOPG):
            return ConnectionRunner(found, schema).run(steps)
        if _is_a(found, _PSYCOPG2) and not found.async_:
            return Psycopg2Runner(found, schema).run(steps)
        if _is_a(found, *_ASYNC):
            raise UsageError(
                f"conn is a {_type_name(conn)}, which works in an event loop; nothing was enqueued; "
                "use aenqueue, aenqueue_many or abatch with it"
            )
        raise UsageError(
            f"conn is a {_type_name(conn)}; nothing was enqueued; give a connection of psycopg or psycopg2, a Session or "
            f"Connection of SQLAlchemy, or Django's connection or its alias{_hint(conn)}"
        )


async def arun_steps(conn: Any, schema: str, steps: Steps[T]) -> T:
    """Run these steps on an async connection. UsageError if it is not one."""
    found = await _async_driver_connection(conn)
    if _is_a(found, _PSYCOPG_ASYNC):
        return await AsyncConnectionRunner(found, schema).run(steps)
    if _is_a(found, _ASYNCPG, _ASYNCPG_POOLED):
        return await AsyncpgRunner(found, schema).run(steps)
    if isinstance(found, str) or _is_a(found, *_BLOCKING):
        raise UsageError(
            f"conn is a {_type_name(conn)}, which blocks; nothing was enqueued; use a blocking Connection with enqueue, "
            "enqueue_many or batch (in Django: inside sync_to_async)"
        )
    raise UsageError(
        f"conn is a {_type_name(conn)}; nothing was enqueued; give an AsyncConnection of psycopg, a connection of "
        f"asyncpg, or an AsyncSession or AsyncConnection of SQLAlchemy{_hint(conn)}"
    )


# Finding the driver's connection.


@contextmanager
def _blocking_driver_connection(conn: Any) -> Iterator[Any]:
    """The driver's connection, inside the transaction that the caller's object stands for."""
    if _is_a(conn, *_SQLALCHEMY_SESSIONS):
        conn = conn.connection()  # begins the transaction of the session
    if isinstance(conn, str) or _is_a(conn, _DJANGO, _DJANGO_PROXY):
        with _django_driver_connection(conn) as found:
            yield found
        return
    if not _is_a(conn, _SQLALCHEMY):
        yield conn
        return
    if not conn.in_transaction():
        conn.begin()  # as its first statement would: its commit() sends nothing otherwise
    found = conn.connection.driver_connection
    if not _is_driver_in_transaction(found):
        conn.exec_driver_sql("SELECT 1")  # the dialect begins the transaction now
    yield found


async def _async_driver_connection(conn: Any) -> Any:
    if _is_a(conn, *_SQLALCHEMY_ASYNC_SESSIONS):
        conn = await conn.connection()
    if not _is_a(conn, _SQLALCHEMY_ASYNC):
        return conn
    if not conn.in_transaction():
        await conn.begin()
    found = (await conn.get_raw_connection()).driver_connection
    if not _is_driver_in_transaction(found):
        await conn.exec_driver_sql("SELECT 1")
    return found


def _is_driver_in_transaction(conn: Any) -> bool:
    if _is_a(conn, _ASYNCPG):
        return bool(conn.is_in_transaction())
    return bool(conn.info.transaction_status != _IDLE)


@contextmanager
def _django_driver_connection(conn: Any) -> Iterator[Any]:
    """The driver's connection of a Django connection or alias.

    Django does not see a statement that fails here. It must not commit afterwards: the server would answer with a rollback,
    which raises nothing.
    """
    if isinstance(conn, str):
        conn = _django_connection(conn)
    if conn.vendor != "postgresql":
        raise UsageError(
            f"conn: the database {conn.alias!r} of Django is {conn.display_name}, and the queue is in Postgres; "
            "nothing was enqueued; leave conn out"
        )
    conn.validate_thread_sharing()
    conn.ensure_connection()
    found = conn.connection
    try:
        yield found
    except BaseException as error:
        if conn.in_atomic_block and found.info.transaction_status == _IN_ERROR:
            conn.needs_rollback = True
            conn.rollback_exc = error
        raise


def _django_connection(alias: str) -> Any:
    databases = sys.modules.get("django.db")
    if databases is None:
        raise UsageError(
            f"conn={alias!r} names a database of Django, and Django is not in use here; nothing was enqueued; "
            "give the connection itself"
        )
    try:
        return databases.connections[alias]
    except databases.utils.ConnectionDoesNotExist:
        known = ", ".join(databases.connections)
        raise UsageError(
            f"conn={alias!r}: Django has no such database (DATABASES: {known}); nothing was enqueued"
        ) from None


def _is_a(value: Any, *names: tuple[str, str]) -> bool:
    """True if one of the value's classes has one of these names: (module, class)."""
    return any((kind.__module__, kind.__qualname__) in names for kind in type(value).__mro__)


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _hint(conn: Any) -> str:
    name = type(conn).__qualname__
    if name in ("Engine", "AsyncEngine"):
        return ". An engine has no transaction: use `with engine.begin() as conn:`"
    if "Pool" in name:
        return ". A pool has no transaction: take a connection out of it"
    if "ursor" in name:
        return ". A cursor has a connection: give cursor.connection"
    return ""


# Running steps with other drivers.


class Psycopg2Runner(BlockingRunner):
    """Performs all steps on a connection of psycopg2."""

    def __init__(self, conn: Any, schema: str) -> None:
        self._conn = conn
        self._schema = schema
        self._savepoints = 0

    def perform(self, step: Any) -> Any:
        match step:
            case InspectTransaction():
                return self._mode()
            case Transaction(steps):
                with self._transaction():
                    return self.run(steps)
            case CopyIn(statement, blocks):
                text = io.StringIO("".join(blocks))
                with self._cursor() as cursor:
                    cursor.copy_expert(statement.render(self._schema).decode(), text)
            case Execute(statement):
                self._execute(statement)
            case query:
                return self._query(query)
        return None

    def _mode(self) -> TransactionMode:
        return TransactionMode(bool(self._conn.autocommit), self._conn.info.transaction_status != _IDLE)

    def _query(self, query: Query[T]) -> T:
        with self._cursor() as cursor:
            cursor.execute(query.statement.render(self._schema), query.params_by_name(self._schema))
            return query.read([tuple(row) for row in cursor.fetchall()])

    def _execute(self, text: Any) -> None:
        with self._cursor() as cursor:
            cursor.execute(text)

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        from psycopg2 import Error, extensions

        try:
            with self._conn.cursor(cursor_factory=extensions.cursor) as cursor:
                yield cursor
        except ValueError as error:  # a NUL character
            raise _data_error(error) from error
        except Error as error:
            explained = _as_psycopg_error(error, error.pgcode, vars_of=error.diag)
            if explained is None:
                raise
            raise explained from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A savepoint, or a transaction if each statement is one."""
        mode = self._mode()
        begin, end, undo = self._transaction_commands(mode)
        self._execute(begin)
        try:
            yield
        except BaseException:
            if not self._conn.closed:
                self._execute(undo)
            raise
        self._execute(end)

    def _transaction_commands(self, mode: TransactionMode) -> tuple[str, str, str]:
        self._savepoints += 1
        return _transaction_commands(mode, self._savepoints)


class AsyncpgRunner(AsyncRunner):
    """Performs all steps on a connection of asyncpg."""

    def __init__(self, conn: Any, schema: str) -> None:
        self._conn = conn
        self._schema = schema
        self._savepoints = 0

    async def perform(self, step: Any) -> Any:
        match step:
            case InspectTransaction():
                return self._mode()
            case Transaction(steps):
                async with self._transaction():
                    return await self.run(steps)
            case CopyIn(statement, blocks):
                await self._copy(statement, "".join(blocks).encode())
            case Execute(statement):
                await self._execute(statement)
            case query:
                return await self._query(query)
        return None

    def _mode(self) -> TransactionMode:
        return TransactionMode(is_autocommit=True, is_in_transaction=bool(self._conn.is_in_transaction()))

    async def _query(self, query: Query[T]) -> T:
        text, names = _with_text_parameters(query.statement, self._schema)
        values = query.params_by_name(self._schema)
        with _asyncpg_errors():
            rows = await self._conn.fetch(text, *(as_server_text(values[name]) for name in names))
        return query.read([tuple(row) for row in rows])

    async def _copy(self, statement: Statement, data: bytes) -> None:
        table, columns = _copy_target(statement)
        with _asyncpg_errors():
            await self._conn.copy_to_table(
                table, source=io.BytesIO(data), columns=columns, schema_name=self._schema, format="text"
            )

    async def _execute(self, text: Any) -> None:
        with _asyncpg_errors():
            await self._conn.execute(text)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        """A savepoint, or a transaction if each statement is one.

        Not `conn.transaction()`, which refuses a transaction that was begun by a statement.
        """
        self._savepoints += 1
        begin, end, undo = _transaction_commands(self._mode(), self._savepoints)
        await self._execute(begin)
        try:
            yield
        except BaseException:
            if not self._conn.is_closed():
                await self._execute(undo)
            raise
        await self._execute(end)


def _transaction_commands(mode: TransactionMode, number: int) -> tuple[str, str, str]:
    """What begins, ends and undoes a part of the caller's transaction."""
    if mode.is_autocommit and not mode.is_in_transaction:
        return "BEGIN", "COMMIT", "ROLLBACK"
    name = f"pgworkers_{number}"
    return f"SAVEPOINT {name}", f"RELEASE {name}", f"ROLLBACK TO {name}; RELEASE {name}"


def _with_text_parameters(statement: Statement, schema: str) -> tuple[str, tuple[str, ...]]:
    """The statement with a text in the place of each value; the server makes the type of it that the statement names."""
    text, names = statement.numbered(schema)
    return re.sub(r"\$(\d+)", r"($\1::pg_catalog.text)", text.decode()), names


def as_server_text(value: Any) -> str | None:
    """A value as Postgres reads it. None is NULL."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case datetime():
            return value.isoformat()
        case list() | tuple():
            return "{" + ",".join(_array_element(one) for one in value) + "}"
        case _:
            return str(value)


def _array_element(value: Any) -> str:
    text = as_server_text(value)
    if text is None:
        return "NULL"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_COPY_STATEMENT = re.compile(r"COPY pgworkers\.(\w+) \(([^)]*)\)\s+FROM STDIN\s*;?\s*\Z")


def _copy_target(statement: Statement) -> tuple[str, list[str]]:
    """The table and the columns of a COPY statement: asyncpg writes the statement itself."""
    found = _COPY_STATEMENT.search(statement.text)
    if found is None:
        raise ValueError(f"{statement.name}.sql is not a COPY of named columns")
    return found[1], [column.strip() for column in found[2].split(",")]


# Errors.


@contextmanager
def _asyncpg_errors() -> Iterator[None]:
    import asyncpg

    try:
        yield
    except asyncpg.PostgresError as error:
        explained = _as_psycopg_error(error, error.sqlstate, vars_of=error)
        if explained is None:
            raise
        raise explained from error
    except (ValueError, UnicodeError) as error:  # a lone surrogate
        raise _data_error(error) from error
    except asyncpg.InterfaceError as error:
        from psycopg import InterfaceError

        raise InterfaceError(str(error)) from error


#: What our explanations read of an error: its field in psycopg, and its names in psycopg2 and asyncpg.
_ERROR_FIELDS = (
    ("MESSAGE_PRIMARY", ("message_primary", "message")),
    ("MESSAGE_DETAIL", ("message_detail", "detail")),
    ("MESSAGE_HINT", ("message_hint", "hint")),
    ("CONSTRAINT_NAME", ("constraint_name",)),
)


def _as_psycopg_error(error: Exception, sqlstate: str | None, *, vars_of: Any) -> psycopg.Error | None:
    """The error of psycopg with the same SQLSTATE and texts. None: the caller must see the error as it is."""
    import psycopg
    from psycopg import errors
    from psycopg.pq import DiagnosticField

    if sqlstate is None:
        return psycopg.OperationalError(str(error))
    if sqlstate.startswith("40"):
        return None
    try:
        kind: type[psycopg.Error] = errors.lookup(sqlstate)
    except KeyError:
        kind = psycopg.DatabaseError
    info: dict[int, bytes | None] = {DiagnosticField.SQLSTATE: sqlstate.encode()}
    for name, attributes in _ERROR_FIELDS:
        texts = (getattr(vars_of, attribute, None) for attribute in attributes)
        text = next((text for text in texts if isinstance(text, str)), None)
        info[DiagnosticField[name]] = None if text is None else text.encode("utf-8", "replace")
    return kind(str(error), info=info)


def _data_error(error: Exception) -> psycopg.Error:
    from psycopg import DataError

    return DataError(str(error))
