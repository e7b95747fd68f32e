"""Connections: which database, and what every session of ours is like.

What our sessions rely on is declared in `session`.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import tuple_row

from pgworkers.errors import DatabaseUnreachable, UsageError
from pgworkers.postgres import session
from pgworkers.postgres.dsn import discreet, parsed, shown
from pgworkers.postgres.moments import read_any_moment
from pgworkers.postgres.ownership import reason_to_distrust
from pgworkers.settings import Settings

OLDEST_SERVER = 130000
#: Any of these says which server is meant; PGUSER or PGPASSWORD alone do not.
PG_VARIABLES = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGSERVICE")

#: What libpq says when trying again cannot help (its errors at connect carry no SQLSTATE).
_WRONG_ADDRESS = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "could not translate host name",
    "invalid port",
)

#: What libpq asks of a direct session (target_session_attrs), for one through a pooler.
_READ_ONLY = "SELECT pg_catalog.current_setting('transaction_read_only')"
_FENCED = "session is read-only"
#: Differs from the process id that the session was given at its start: there is a pooler.
_BACKEND_PID = "SELECT pg_catalog.pg_backend_pid()"

#: How a client that sends `options` is refused: by PgBouncer, Supavisor and Neon; by RDS Proxy; by a server that is too old
#: for one of them or is no Postgres. A second session, without options, finds out which it is.
_OPTIONS_REFUSALS = (
    "unsupported startup parameter",
    "support command-line options",
    "unrecognized configuration parameter",
)


#: The sessions of a host, whose statements are planned once and must not be led astray by statistics (docs/adr/1101): every
#: plan is for any values, by index and by nested loops.
STEADY_ROLES = frozenset({"claim", "finish", "listen", "leadership"})
STEADY = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which Postgres, and why. `dsn` is empty for PG* variables (libpq reads them), and for the embedded server."""

    dsn: str
    source: str
    embedded: bool
    home: Path  # of the embedded server
    is_home_named: bool = False  # else it was found beside the app


def choose(
    settings: Settings, sources: Mapping[str, str], config_dir: Path, environ: Mapping[str, str] | None = None
) -> Chosen:
    """The first of: --dsn, PGWORKERS_DSN, DATABASE_URL, the app's dsn, PG* variables; else the embedded server.

    PG* variables come after the app because they only fill in what an address leaves open, as in libpq.
    """
    environ = os.environ if environ is None else environ
    home = Path(settings.home).expanduser() if settings.home else config_dir / ".pgworkers"
    home, named = home.absolute(), bool(settings.home)
    if settings.dsn:
        said = sources.get("dsn", "default")
        source = {"command line": "--dsn", "app": "the app's dsn"}.get(said, said)
        return Chosen(settings.dsn, source, False, home, named)
    if any(environ.get(name) for name in PG_VARIABLES):
        return Chosen("", "PG* variables", False, home, named)
    return Chosen("", "embedded server", True, home, named)


def refuse_foreign_home(chosen: Chosen, app_owner: int | None) -> None:
    """Refuse an embedded server's directory that was found and may be another user's doing.

    `app_owner`: the user whose app was named or is running here already. His directory is as good as his code.
    """
    if chosen.is_home_named:
        return
    why = reason_to_distrust(chosen.home, () if app_owner is None else (app_owner,))
    if why is not None:
        raise UsageError(
            f"{chosen.home} {why}, so it is not used as the embedded server's directory; nothing was done. If you trust it, "
            f"say PGWORKERS_HOME={shlex.quote(str(chosen.home))}; or name a Postgres with --dsn or DATABASE_URL"
        )


def owner_of(config: str | None) -> int | None:
    """The user that an app belongs to, as far as its name tells; None: there is no app."""
    if config is None:
        return None
    file = Path(config.rpartition(":")[0] or config)
    try:
        return (file if file.is_file() else beside(config)).stat().st_uid
    except OSError:
        return None


def beside(config: str | None) -> Path:
    """The directory of an app, by its name alone: the embedded server lives there, as it does for Python (`origin_of`).

    A dotted name is looked for as an import would, but nothing of it is imported: who asks is often the master.
    """
    name = (config or "").rpartition(":")[0] or config or ""
    path = Path(name)
    if name.endswith(".py") or os.sep in name or path.is_file():
        return path.resolve().parent
    for root in (os.getcwd(), *sys.path) if name else ():
        module = Path(root, *name.split("."))
        for file in (module / "__init__.py", module.with_name(f"{module.name}.py")):
            if file.is_file():
                return file.resolve().parent
    return Path.cwd()


def connect(settings: Settings, dsn: str, role: str, *, pooled: bool = False) -> psycopg.Connection[Any]:
    """A blocking connection for `role` ("cli", "client"): autocommit, READ COMMITTED, every wait bounded.

    `pooled`: a pooler is known to be there; otherwise the first answer tells.
    """
    try:
        conn = (None if pooled else _direct(settings, dsn, role)) or _pooled(settings, dsn)
    except psycopg.OperationalError as exc:
        raise _unreachable(dsn, exc) from None
    read_any_moment(conn)
    return conn


def _direct(settings: Settings, dsn: str, role: str) -> psycopg.Connection[Any] | None:
    """None: there is a pooler, which does not take, or does not keep, our settings."""
    try:
        conn = psycopg.connect(_conninfo(settings, dsn, role), autocommit=True)
    except psycopg.OperationalError as exc:
        if any(refusal in str(exc) for refusal in _OPTIONS_REFUSALS):
            return None
        raise
    try:
        _accept(conn)
        row = conn.execute(session.CHECK, prepare=False).fetchone()
        assert row is not None
        if session.is_direct(conn, row):
            if patience := session.patience(row):
                conn.execute(patience.encode(), prepare=False)
            return conn
    except BaseException:
        conn.close()
        raise
    conn.close()
    return None


def _pooled(settings: Settings, dsn: str) -> psycopg.Connection[Any]:
    conn = session.PooledConnection.connect(
        _pooled_conninfo(settings, dsn),
        autocommit=True,
        prepare_threshold=None,
        cursor_factory=session.PooledCursor,
    )
    conn.local = session.local(settings).encode()
    try:
        _accept(conn)
        row = conn.execute(_READ_ONLY).fetchone()
        if row is not None and row[0] == "on":
            raise psycopg.OperationalError(_FENCED)
    except BaseException:
        conn.close()
        raise
    return conn


async def aconnect(
    settings: Settings, dsn: str, role: str, *, pooled: bool = False
) -> psycopg.AsyncConnection[Any]:
    """`connect` for an event loop."""
    try:
        conn = (None if pooled else await _adirect(settings, dsn, role)) or await _apooled(settings, dsn)
    except psycopg.OperationalError as exc:
        raise _unreachable(dsn, exc) from None
    read_any_moment(conn)
    return conn


async def _adirect(settings: Settings, dsn: str, role: str) -> psycopg.AsyncConnection[Any] | None:
    """`_direct` for an event loop."""
    threshold = 0 if role in STEADY_ROLES else 5
    try:
        conn = await psycopg.AsyncConnection.connect(
            _conninfo(settings, dsn, role), autocommit=True, prepare_threshold=threshold
        )
    except psycopg.OperationalError as exc:
        if any(refusal in str(exc) for refusal in _OPTIONS_REFUSALS):
            return None
        raise
    try:
        _accept(conn)
        row = await (await conn.execute(session.CHECK, prepare=False)).fetchone()
        assert row is not None
        if session.is_direct(conn, row):
            if patience := session.patience(row):
                await conn.execute(patience.encode(), prepare=False)
            return conn
    except BaseException:
        await conn.close()
        raise
    await conn.close()
    return None


async def _apooled(settings: Settings, dsn: str) -> psycopg.AsyncConnection[Any]:
    conn = await session.AsyncPooledConnection.connect(
        _pooled_conninfo(settings, dsn),
        autocommit=True,
        prepare_threshold=None,
        cursor_factory=session.AsyncPooledCursor,
    )
    conn.local = session.local(settings).encode()
    try:
        _accept(conn)
        row = await (await conn.execute(_READ_ONLY)).fetchone()
        if row is not None and row[0] == "on":
            raise psycopg.OperationalError(_FENCED)
    except BaseException:
        await conn.close()
        raise
    return conn


def is_pooled(conn: psycopg.Connection[Any]) -> bool:
    """Is there a pooler between us and the server? It hands out a process id of its own at the start of a session."""
    row = conn.execute(_BACKEND_PID).fetchone()
    return row is not None and row[0] != conn.info.backend_pid


def connect_handler(
    settings: Settings, dsn: str, name: str, kind: type[psycopg.Connection[Any]], **options: Any
) -> psycopg.Connection[Any]:
    """A connection for user code: psycopg's own manners, our name on it, and a cut network is noticed.

    Through a pooler psycopg must prepare no statement: the next one may meet another session. A caller that passes
    prepare_threshold has decided that itself.
    """
    conninfo = _handler_conninfo(settings, dsn, name)
    try:
        conn = kind.connect(conninfo, **(options | {"autocommit": True}))
        try:
            if "prepare_threshold" not in options:
                with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
                    if cursor.execute(_BACKEND_PID).fetchone() != (conn.info.backend_pid,):
                        conn.prepare_threshold = None
            conn.autocommit = options.get("autocommit", False)
        except BaseException:
            conn.close()
            raise
    except psycopg.OperationalError as exc:
        raise _unreachable(dsn, exc) from None
    return conn


async def aconnect_handler(
    settings: Settings, dsn: str, name: str, **options: Any
) -> psycopg.AsyncConnection[Any]:
    """`connect_handler` for an event loop."""
    conninfo = _handler_conninfo(settings, dsn, name)
    try:
        conn: psycopg.AsyncConnection[Any] = await psycopg.AsyncConnection.connect(
            conninfo, **(options | {"autocommit": True})
        )
        try:
            if "prepare_threshold" not in options:
                async with psycopg.AsyncCursor(conn, row_factory=tuple_row) as cursor:
                    await cursor.execute(_BACKEND_PID)
                    if await cursor.fetchone() != (conn.info.backend_pid,):
                        conn.prepare_threshold = None
            await conn.set_autocommit(options.get("autocommit", False))
        except BaseException:
            await conn.close()
            raise
    except psycopg.OperationalError as exc:
        raise _unreachable(dsn, exc) from None
    return conn


def _conninfo(settings: Settings, dsn: str, role: str) -> str:
    given = parsed(dsn)
    probe = max(1, math.ceil(settings.tcp_timeout) // 3)
    options = session.direct(settings) | {
        # The server's half: a session whose client was cut off must not keep its locks.
        "tcp_keepalives_idle": str(probe),
        "tcp_keepalives_interval": str(probe),
        "tcp_keepalives_count": "2",
        "tcp_user_timeout": session.milliseconds(settings.tcp_timeout),
    }
    if role in STEADY_ROLES:
        options |= STEADY
    ours = " ".join(f"-c {name}={_escaped(value)}" for name, value in options.items())
    theirs = str(given.get("options") or os.environ.get("PGOPTIONS", ""))
    return make_conninfo(
        dsn,
        application_name=f"pgworkers {role}",
        client_encoding="UTF8",
        target_session_attrs="read-write",
        options=f"{theirs} {ours}".strip(),  # the last one wins
        **_noticing(settings),
    )


def _pooled_conninfo(settings: Settings, dsn: str) -> str:
    """Through a pooler: it takes no session settings, and keeps nothing of a session between two transactions."""
    parsed(dsn)
    return make_conninfo(dsn, client_encoding="UTF8", **_noticing(settings))


def _handler_conninfo(settings: Settings, dsn: str, name: str) -> str:
    """What the user wrote into the dsn counts; timeouts of control statements are not for handlers."""
    given = parsed(dsn)
    ours = {key: value for key, value in _noticing(settings).items() if key not in given}
    return make_conninfo(dsn, application_name=name, **ours)


def _noticing(settings: Settings) -> dict[str, Any]:
    """The client's half of noticing that the network was cut."""
    probe = max(1, math.ceil(settings.tcp_timeout) // 3)
    return {
        "connect_timeout": max(2, math.ceil(settings.connect_timeout)),
        "keepalives": 1,
        "keepalives_idle": probe,
        "keepalives_interval": probe,
        "keepalives_count": 2,
        "tcp_user_timeout": session.milliseconds(settings.tcp_timeout),
    }


def _unreachable(dsn: str, exc: psycopg.OperationalError) -> DatabaseUnreachable:
    reason = "; ".join(line.strip() for line in str(exc).splitlines() if line.strip()) or type(exc).__name__
    reason = discreet(reason, dsn)
    return DatabaseUnreachable(
        f"cannot connect to {shown(dsn)}: {reason}; nothing was done; "
        "check that Postgres runs there and that the dsn is right",
        transient=not any(sign in reason for sign in _WRONG_ADDRESS),
        brief=_brief(dsn, reason),
    )


def _brief(dsn: str, reason: str) -> str:
    """`no Postgres at 127.0.0.1:5432 (connection refused)`"""
    said = parsed(dsn)
    host, port = str(said.get("host") or ""), str(said.get("port") or 5432)
    one = host and "," not in host and not host.startswith("/")
    why = reason.rpartition("failed: ")[2].partition(";")[0].strip() or reason
    return f"no Postgres at {f'{host}:{port}' if one else shown(dsn)} ({why[:1].lower()}{why[1:]})"


def _accept(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """UsageError for a server that cannot work, by what it says of itself at the start of a session (docs/databases.md)."""
    said = conn.info.parameter_status
    if said("crdb_version"):
        lacks = "CockroachDB, which has no LISTEN, no ctid and no advisory locks of sessions"
    elif "-YB-" in (said("server_version") or ""):
        lacks = "YugabyteDB, which has no ctid"
    else:
        version = conn.info.server_version
        if version < OLDEST_SERVER:
            raise UsageError(
                f"this Postgres is version {version // 10000}; nothing was done; use Postgres 13 or newer"
            )
        return
    raise UsageError(
        f"this is {lacks}: pgworkers cannot work there; nothing was done; use Postgres 13 or newer (docs/databases.md)"
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
