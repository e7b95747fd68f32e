"""Connections: which database, and what every session of ours is like.

What our sessions rely on is declared in `session`.

Times that Python's datetime cannot hold: a reader gets the nearest one that it can.

Postgres knows infinite times and the years after 9999. The tables refuse them (`pgworkers.moment`), but one such row must
not hide all the others from a reader.
"""

from __future__ import annotations

import math
import os
from datetime import datetime
from typing import Any

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
from pgworkers.postgres.pooler import _OPTIONS_REFUSALS, BACKEND_PID
from pgworkers.postgres.session_settings import HOST_PLANNER_SETTINGS, HOST_ROLES
from pgworkers.settings import Settings

OLDEST_SERVER_VERSION_NUM = 130000

#: What libpq says when trying again cannot help (its errors at connect carry no SQLSTATE).
_PERMANENT_CONNECT_ERRORS = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "could not translate host name",
    "invalid port",
)

#: What libpq asks of a direct session (target_session_attrs), for one through a pooler.
_READ_ONLY_CHECK = "SELECT pg_catalog.current_setting('transaction_read_only')"
_READ_ONLY_ERROR = "session is read-only"


def connect(settings: Settings, dsn: str, role: str, *, is_pooled: bool = False) -> psycopg.Connection[Any]:
    """A blocking connection for `role` ("cli", "client"): autocommit, READ COMMITTED, every wait bounded.

    `is_pooled`: a pooler is known to be there; otherwise the first answer tells.
    """
    try:
        conn = (None if is_pooled else _connect_direct(settings, dsn, role)) or _connect_pooled(settings, dsn)
    except psycopg.OperationalError as exc:
        raise _unreachable(dsn, exc) from None
    read_any_timestamp(conn)
    return conn


def _connect_direct(settings: Settings, dsn: str, role: str) -> psycopg.Connection[Any] | None:
    """None: there is a pooler, which does not take, or does not keep, our settings."""
    try:
        conn = psycopg.connect(_direct_conninfo(settings, dsn, role), autocommit=True)
    except psycopg.OperationalError as exc:
        if any(refusal in str(exc) for refusal in _OPTIONS_REFUSALS):
            return None
        raise
    try:
        _refuse_unsupported_server(conn)
        row = conn.execute(pooler.SESSION_CHECK, prepare=False).fetchone()
        assert row is not None
        if pooler.is_direct(conn, row):
            if patience := session_settings.disable_idle_timeouts(row):
                conn.execute(patience.encode(), prepare=False)
            return conn
    except BaseException:
        conn.close()
        raise
    conn.close()
    return None


def _connect_pooled(settings: Settings, dsn: str) -> psycopg.Connection[Any]:
    conn = pooler.PooledConnection.connect(
        _pooled_conninfo(settings, dsn),
        autocommit=True,
        prepare_threshold=None,
        cursor_factory=pooler.PooledCursor,
    )
    conn.settings_prefix = session_settings.local_settings(settings).encode()
    try:
        _refuse_unsupported_server(conn)
        row = conn.execute(_READ_ONLY_CHECK).fetchone()
        if row is not None and row[0] == "on":
            raise psycopg.OperationalError(_READ_ONLY_ERROR)
    except BaseException:
        conn.close()
        raise
    return conn


async def aconnect(
    settings: Settings, dsn: str, role: str, *, is_pooled: bool = False
) -> psycopg.AsyncConnection[Any]:
    """`connect` for an event loop."""
    try:
        conn = (None if is_pooled else await _aconnect_direct(settings, dsn, role)) or await _aconnect_pooled(
            settings, dsn
        )
    except psycopg.OperationalError as exc:
        raise _unreachable(dsn, exc) from None
    read_any_timestamp(conn)
    return conn


async def _aconnect_direct(settings: Settings, dsn: str, role: str) -> psycopg.AsyncConnection[Any] | None:
    """`_connect_direct` for an event loop."""
    threshold = 0 if role in HOST_ROLES else 5
    try:
        conn = await psycopg.AsyncConnection.connect(
            _direct_conninfo(settings, dsn, role), autocommit=True, prepare_threshold=threshold
        )
    except psycopg.OperationalError as exc:
        if any(refusal in str(exc) for refusal in _OPTIONS_REFUSALS):
            return None
        raise
    try:
        _refuse_unsupported_server(conn)
        row = await (await conn.execute(pooler.SESSION_CHECK, prepare=False)).fetchone()
        assert row is not None
        if pooler.is_direct(conn, row):
            if patience := session_settings.disable_idle_timeouts(row):
                await conn.execute(patience.encode(), prepare=False)
            return conn
    except BaseException:
        await conn.close()
        raise
    await conn.close()
    return None


async def _aconnect_pooled(settings: Settings, dsn: str) -> psycopg.AsyncConnection[Any]:
    conn = await pooler.AsyncPooledConnection.connect(
        _pooled_conninfo(settings, dsn),
        autocommit=True,
        prepare_threshold=None,
        cursor_factory=pooler.AsyncPooledCursor,
    )
    conn.settings_prefix = session_settings.local_settings(settings).encode()
    try:
        _refuse_unsupported_server(conn)
        row = await (await conn.execute(_READ_ONLY_CHECK)).fetchone()
        if row is not None and row[0] == "on":
            raise psycopg.OperationalError(_READ_ONLY_ERROR)
    except BaseException:
        await conn.close()
        raise
    return conn


def connect_for_handler(
    settings: Settings, dsn: str, name: str, connection_class: type[psycopg.Connection[Any]], **options: Any
) -> psycopg.Connection[Any]:
    """A connection for user code: psycopg's own manners, our name on it, and a cut network is noticed.

    Through a pooler psycopg must prepare no statement: the next one may meet another session. A caller that passes
    prepare_threshold has decided that itself.
    """
    conninfo = _handler_conninfo(settings, dsn, name)
    try:
        conn = connection_class.connect(conninfo, **(options | {"autocommit": True}))
        try:
            if "prepare_threshold" not in options:
                with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
                    if cursor.execute(BACKEND_PID).fetchone() != (conn.info.backend_pid,):
                        conn.prepare_threshold = None
            conn.autocommit = options.get("autocommit", False)
        except BaseException:
            conn.close()
            raise
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
        try:
            if "prepare_threshold" not in options:
                async with psycopg.AsyncCursor(conn, row_factory=tuple_row) as cursor:
                    await cursor.execute(BACKEND_PID)
                    if await cursor.fetchone() != (conn.info.backend_pid,):
                        conn.prepare_threshold = None
            await conn.set_autocommit(options.get("autocommit", False))
        except BaseException:
            await conn.close()
            raise
    except psycopg.OperationalError as exc:
        raise _unreachable(dsn, exc) from None
    return conn


def _direct_conninfo(settings: Settings, dsn: str, role: str) -> str:
    given = parse_dsn(dsn)
    probe = max(1, math.ceil(settings.tcp_timeout) // 3)
    options = session_settings.direct_settings(settings) | {
        # The server's half: a session whose client was cut off must not keep its locks.
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
    """Through a pooler: it takes no session settings, and keeps nothing of a session between two transactions."""
    parse_dsn(dsn)
    return make_conninfo(dsn, client_encoding="UTF8", **_keepalive_options(settings))


def _handler_conninfo(settings: Settings, dsn: str, name: str) -> str:
    """What the user wrote into the dsn counts; timeouts of control statements are not for handlers."""
    given = parse_dsn(dsn)
    ours = {key: value for key, value in _keepalive_options(settings).items() if key not in given}
    return make_conninfo(dsn, application_name=name, **ours)


def _keepalive_options(settings: Settings) -> dict[str, Any]:
    """The client's half of noticing that the network was cut."""
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
    return DatabaseUnreachable(
        f"cannot connect to {show_dsn(dsn)}: {reason}; nothing was done; "
        "check that Postgres runs there and that the dsn is right",
        is_transient=not any(sign in reason for sign in _PERMANENT_CONNECT_ERRORS),
        summary=_short_reason(dsn, reason),
    )


def _short_reason(dsn: str, reason: str) -> str:
    """`no Postgres at 127.0.0.1:5432 (connection refused)`"""
    said = parse_dsn(dsn)
    host, port = str(said.get("host") or ""), str(said.get("port") or 5432)
    one = host and "," not in host and not host.startswith("/")
    why = reason.rpartition("failed: ")[2].partition(";")[0].strip() or reason
    return f"no Postgres at {f'{host}:{port}' if one else show_dsn(dsn)} ({why[:1].lower()}{why[1:]})"


def _refuse_unsupported_server(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Raise UsageError for a server that cannot work, judged by what it reports at connect (docs/reference/databases.md)."""
    said = conn.info.parameter_status
    if said("crdb_version"):
        lacks = "CockroachDB, which has no LISTEN, no ctid and no advisory locks of sessions"
    elif "-YB-" in (said("server_version") or ""):
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
    """Reads ISO. psycopg's own goes by the DateStyle that the server last told, which is not that of a SET LOCAL."""

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


def read_any_timestamp(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Let this connection read every timestamptz."""
    loaders: tuple[type[Loader], ...] = (_TimestampTextLoader, _TimestampBinaryLoader)
    for loader in loaders:
        conn.adapters.register_loader(_TIMESTAMPTZ_OID, loader)
