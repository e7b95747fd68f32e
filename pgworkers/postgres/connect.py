"""Open connections: ours, direct or through a pooler, and those of user code.

Our sessions are opened directly with the settings of `session_settings`. If a pooler is in between, the session is opened
again without them, and they travel with each statement (`pooler`). Which database is used is decided in
`database_choice`.

Our connections read every timestamptz. Postgres has infinite times and years after 9999, which Python's datetime cannot
hold. The tables refuse them (`pgworkers.bounded_timestamp`), but one such row must not hide all the others, so the
nearest time that datetime can hold is returned.
"""

from __future__ import annotations

import math
import os
from collections.abc import Generator
from datetime import datetime
from typing import Any, TypeAlias, TypeVar, cast

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import make_conninfo
from psycopg.rows import tuple_row
from psycopg.types.datetime import TimestamptzBinaryLoader

from pgworkers.bounds import MAX_TIMESTAMP, MIN_TIMESTAMP
from pgworkers.errors import DatabaseUnreachable, UsageError
from pgworkers.postgres import pooler, session_settings
from pgworkers.postgres.dsn import parse_dsn, redact_passwords, show_dsn
from pgworkers.postgres.session_settings import HOST_PLANNER_SETTINGS, HOST_ROLES
from pgworkers.settings import Settings

T = TypeVar("T")
AnyConnection: TypeAlias = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
SessionCheck: TypeAlias = Generator[str, tuple[Any, ...] | None, T]

OLDEST_SERVER_VERSION_NUM = 130000

#: Texts of libpq errors that a retry cannot cure. Errors at connect carry no SQLSTATE.
_PERMANENT_CONNECT_ERRORS = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "could not translate host name",
    "invalid port",
)

#: The check that libpq makes for a direct session (target_session_attrs), for one through a pooler.
_READ_ONLY_CHECK = "SELECT pg_catalog.current_setting('transaction_read_only')"
_READ_ONLY_ERROR = "session is read-only"


def connect(settings: Settings, dsn: str, role: str, *, is_pooled: bool = False) -> psycopg.Connection[Any]:
    """Open a blocking connection in autocommit, READ COMMITTED, with a limit on every wait.

    `role` becomes part of the application name, for example "cli", "client", "wait" or "migrate". `is_pooled`: a
    pooler is known to be in between; otherwise the answer to the first statement shows it.
    """
    try:
        conn = (None if is_pooled else _connect_direct(settings, dsn, role)) or _connect_pooled(settings, dsn)
    except psycopg.OperationalError as exc:
        raise _unreachable(dsn, exc) from None
    read_any_timestamp(conn)
    return conn


async def aconnect(
    settings: Settings, dsn: str, role: str, *, is_pooled: bool = False
) -> psycopg.AsyncConnection[Any]:
    """`connect` for an event loop."""
    try:
        direct = None if is_pooled else await _aconnect_direct(settings, dsn, role)
        conn = direct or await _aconnect_pooled(settings, dsn)
    except psycopg.OperationalError as exc:
        raise _unreachable(dsn, exc) from None
    read_any_timestamp(conn)
    return conn


def _connect_direct(settings: Settings, dsn: str, role: str) -> psycopg.Connection[Any] | None:
    """Open a direct session. None if a pooler refuses or drops our settings."""
    try:
        conn = psycopg.connect(_direct_conninfo(settings, dsn, role), autocommit=True)
    except psycopg.OperationalError as exc:
        if pooler.is_options_refusal(exc):
            return None
        raise
    if _drive(conn, _check_direct_session(conn)):
        return conn
    conn.close()
    return None


async def _aconnect_direct(settings: Settings, dsn: str, role: str) -> psycopg.AsyncConnection[Any] | None:
    """`_connect_direct` for an event loop. Sessions of a host prepare their statements at the first use."""
    threshold = 0 if role in HOST_ROLES else 5
    try:
        conn = await psycopg.AsyncConnection.connect(
            _direct_conninfo(settings, dsn, role), autocommit=True, prepare_threshold=threshold
        )
    except psycopg.OperationalError as exc:
        if pooler.is_options_refusal(exc):
            return None
        raise
    if await _adrive(conn, _check_direct_session(conn)):
        return conn
    await conn.close()
    return None


def _connect_pooled(settings: Settings, dsn: str) -> psycopg.Connection[Any]:
    conn = pooler.PooledConnection.connect(
        _pooled_conninfo(settings, dsn),
        autocommit=True,
        prepare_threshold=None,
        cursor_factory=pooler.PooledCursor,
    )
    conn.settings_prefix = session_settings.local_settings(settings).encode()
    _drive(conn, _check_pooled_session(conn))
    return conn


async def _aconnect_pooled(settings: Settings, dsn: str) -> psycopg.AsyncConnection[Any]:
    conn = await pooler.AsyncPooledConnection.connect(
        _pooled_conninfo(settings, dsn),
        autocommit=True,
        prepare_threshold=None,
        cursor_factory=pooler.AsyncPooledCursor,
    )
    conn.settings_prefix = session_settings.local_settings(settings).encode()
    await _adrive(conn, _check_pooled_session(conn))
    return conn


def connect_for_handler(
    settings: Settings, dsn: str, name: str, connection_class: type[psycopg.Connection[Any]], **options: Any
) -> psycopg.Connection[Any]:
    """Open a connection for user code: psycopg's defaults, our application name, and a cut network is noticed.

    Behind a pooler psycopg must not prepare statements, because the next one may run in another session. A caller that
    passes prepare_threshold has made that decision itself.
    """
    conninfo = _handler_conninfo(settings, dsn, name)
    try:
        conn = connection_class.connect(conninfo, **(options | {"autocommit": True}))
        if "prepare_threshold" not in options:
            _drive(conn, _check_handler_session(conn))
        conn.autocommit = options.get("autocommit", False)
    except psycopg.OperationalError as exc:
        raise _unreachable(dsn, exc) from None
    return conn


async def aconnect_for_handler(
    settings: Settings, dsn: str, name: str, **options: Any
) -> psycopg.AsyncConnection[Any]:
    """`connect_for_handler` for an event loop."""
    conninfo = _handler_conninfo(settings, dsn, name)
    try:
        conn: psycopg.AsyncConnection[Any] = await psycopg.AsyncConnection.connect(
            conninfo, **(options | {"autocommit": True})
        )
        if "prepare_threshold" not in options:
            await _adrive(conn, _check_handler_session(conn))
        await conn.set_autocommit(options.get("autocommit", False))
    except psycopg.OperationalError as exc:
        raise _unreachable(dsn, exc) from None
    return conn


# What is checked after connecting, written once for blocking and async connections. A check yields statements and gets the
# first row of each answer. `_drive` and `_adrive` run it, and close the connection if it raises.


def _check_direct_session(conn: AnyConnection) -> SessionCheck[bool]:
    """Return True if the session is ours alone and took our settings."""
    _refuse_unsupported_server(conn)
    row = yield pooler.SESSION_CHECK
    assert row is not None
    if not pooler.is_direct(conn, row):
        return False
    if statements := session_settings.disable_idle_timeouts(row):
        yield statements
    return True


def _check_pooled_session(conn: AnyConnection) -> SessionCheck[None]:
    """Refuse a read-only session, as target_session_attrs does for a direct one."""
    _refuse_unsupported_server(conn)
    row = yield _READ_ONLY_CHECK
    if row is not None and row[0] == "on":
        raise psycopg.OperationalError(_READ_ONLY_ERROR)


def _check_handler_session(conn: AnyConnection) -> SessionCheck[None]:
    """Switch prepared statements off behind a pooler."""
    row = yield pooler.BACKEND_PID
    if row != (conn.info.backend_pid,):
        conn.prepare_threshold = None


def _drive(conn: psycopg.Connection[Any], check: SessionCheck[T]) -> T:
    try:
        statement = next(check)
        while True:
            with conn.cursor(row_factory=tuple_row) as cursor:
                cursor.execute(statement.encode(), prepare=False)
                row = cursor.fetchone() if cursor.description is not None else None
            statement = check.send(row)
    except StopIteration as end:
        return cast("T", end.value)
    except BaseException:
        conn.close()
        raise


async def _adrive(conn: psycopg.AsyncConnection[Any], check: SessionCheck[T]) -> T:
    try:
        statement = next(check)
        while True:
            async with conn.cursor(row_factory=tuple_row) as cursor:
                await cursor.execute(statement.encode(), prepare=False)
                row = await cursor.fetchone() if cursor.description is not None else None
            statement = check.send(row)
    except StopIteration as end:
        return cast("T", end.value)
    except BaseException:
        await conn.close()
        raise


def _direct_conninfo(settings: Settings, dsn: str, role: str) -> str:
    given = parse_dsn(dsn)
    probe = max(1, math.ceil(settings.tcp_timeout) // 3)
    options = session_settings.direct_settings(settings) | {
        # Server-side detection: a session whose client was cut off must not keep its locks.
        "tcp_keepalives_idle": str(probe),
        "tcp_keepalives_interval": str(probe),
        "tcp_keepalives_count": "2",
        "tcp_user_timeout": session_settings.milliseconds(settings.tcp_timeout),
    }
    if role in HOST_ROLES:
        options |= HOST_PLANNER_SETTINGS
    ours = " ".join(f"-c {name}={_escape_option(value)}" for name, value in options.items())
    theirs = str(given.get("options") or os.environ.get("PGOPTIONS", ""))
    return make_conninfo(
        dsn,
        application_name=f"pgworkers {role}",
        client_encoding="UTF8",
        target_session_attrs="read-write",
        options=f"{theirs} {ours}".strip(),  # the last one wins
        **_keepalive_options(settings),
    )


def _pooled_conninfo(settings: Settings, dsn: str) -> str:
    """Without session settings: a pooler accepts none, and keeps nothing of a session between two transactions."""
    parse_dsn(dsn)
    return make_conninfo(dsn, client_encoding="UTF8", **_keepalive_options(settings))


def _handler_conninfo(settings: Settings, dsn: str, name: str) -> str:
    """Parameters in the dsn win over ours. The timeouts of our own statements do not apply to handlers."""
    given = parse_dsn(dsn)
    ours = {key: value for key, value in _keepalive_options(settings).items() if key not in given}
    return make_conninfo(dsn, application_name=name, **ours)


def _keepalive_options(settings: Settings) -> dict[str, Any]:
    """Client-side parameters that detect a cut network."""
    probe = max(1, math.ceil(settings.tcp_timeout) // 3)
    return {
        "connect_timeout": max(2, math.ceil(settings.connect_timeout)),
        "keepalives": 1,
        "keepalives_idle": probe,
        "keepalives_interval": probe,
        "keepalives_count": 2,
        "tcp_user_timeout": session_settings.milliseconds(settings.tcp_timeout),
    }


def _unreachable(dsn: str, exc: psycopg.OperationalError) -> DatabaseUnreachable:
    reason = "; ".join(line.strip() for line in str(exc).splitlines() if line.strip()) or type(exc).__name__
    reason = redact_passwords(reason, dsn)
    if _READ_ONLY_ERROR in reason:
        return DatabaseUnreachable(
            f"{show_dsn(dsn)} takes no writes: its sessions are read-only; nothing was done; "
            "the server is a standby, or default_transaction_read_only is on for the server, the database or the login",
            summary=f"the database at {_address(dsn)} is read-only",
        )
    return DatabaseUnreachable(
        f"cannot connect to {show_dsn(dsn)}: {reason}; nothing was done; "
        "check that Postgres runs there and that the dsn is right",
        is_transient=not any(sign in reason for sign in _PERMANENT_CONNECT_ERRORS),
        summary=_short_reason(dsn, reason),
    )


def _short_reason(dsn: str, reason: str) -> str:
    """`no Postgres at 127.0.0.1:5432 (connection refused)`"""
    cause = reason.rpartition("failed: ")[2].partition(";")[0].strip() or reason
    return f"no Postgres at {_address(dsn)} ({cause[:1].lower()}{cause[1:]})"


def _address(dsn: str) -> str:
    given = parse_dsn(dsn)
    host, port = str(given.get("host") or ""), str(given.get("port") or 5432)
    is_one_address = host and "," not in host and not host.startswith("/")
    return f"{host}:{port}" if is_one_address else show_dsn(dsn)


def _refuse_unsupported_server(conn: AnyConnection) -> None:
    """Raise UsageError for a server that cannot work. It says what it is at connect."""
    parameter_status = conn.info.parameter_status
    if parameter_status("crdb_version"):
        lacks = "CockroachDB, which has no LISTEN, no ctid and no advisory locks of sessions"
    elif "-YB-" in (parameter_status("server_version") or ""):
        lacks = "YugabyteDB, which has no ctid"
    else:
        version = conn.info.server_version
        if version < OLDEST_SERVER_VERSION_NUM:
            raise UsageError(
                f"this Postgres is version {version // 10000}; nothing was done; use Postgres 13 or newer"
            )
        return
    raise UsageError(
        f"this is {lacks}: pgworkers cannot work there; nothing was done; "
        "use Postgres 13 or newer (docs/reference/databases.md)"
    )


def _escape_option(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


_TIMESTAMPTZ_OID = psycopg.adapters.types["timestamptz"].oid


class _TimestampTextLoader(Loader):
    """Reads ISO. psycopg's loader uses the DateStyle that the server last reported, and SET LOCAL is not reported."""

    def load(self, data: Buffer) -> datetime:
        text = bytes(data).decode()
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            return MIN_TIMESTAMP if text.startswith("-") or text.endswith("BC") else MAX_TIMESTAMP


class _TimestampBinaryLoader(TimestamptzBinaryLoader):
    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except psycopg.DataError:
            return MIN_TIMESTAMP if bytes(data)[0] & 0x80 else MAX_TIMESTAMP


def read_any_timestamp(conn: AnyConnection) -> None:
    """Make this connection read every timestamptz."""
    loaders: tuple[type[Loader], ...] = (_TimestampTextLoader, _TimestampBinaryLoader)
    for loader in loaders:
        conn.adapters.register_loader(_TIMESTAMPTZ_OID, loader)
