"""Connections: which database, and what every session of ours is like.

All session settings travel in `options`, so they are the session's own defaults: they hold from the first statement,
whatever the database or the role says, and survive RESET ALL.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from pgworkers.errors import DatabaseUnreachable, UsageError
from pgworkers.postgres.dsn import discreet, parsed, shown
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

#: What PgBouncer says to `options`.
_POOLERS_REFUSAL = "unsupported startup parameter"


#: The sessions of a host, whose statements are planned once and must not be led astray by statistics (docs/adr/1101): every
#: plan is for any values, by index and by nested loops. (JIT: what a switched-off method costs on paper would set it going.)
STEADY_ROLES = frozenset({"claim", "finish", "listen", "leadership"})
STEADY = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which Postgres, and why. `dsn` is empty for PG* variables (libpq reads them), and for the embedded server."""

    dsn: str
    source: str
    embedded: bool
    home: Path  # of the embedded server


def choose(
    settings: Settings, sources: Mapping[str, str], config_dir: Path, environ: Mapping[str, str] | None = None
) -> Chosen:
    """The first of: --dsn, PGWORKERS_DSN or DATABASE_URL, the app, PG* variables; else the embedded server."""
    environ = os.environ if environ is None else environ
    home = Path(settings.home).expanduser() if settings.home else config_dir / ".pgworkers"
    home = home.absolute()
    if settings.dsn:
        said = sources.get("dsn", "default")
        source = {"command line": "--dsn", "app": "the app's dsn"}.get(said, said)
        return Chosen(settings.dsn, source, False, home)
    if any(environ.get(name) for name in PG_VARIABLES):
        return Chosen("", "PG* variables", False, home)
    return Chosen("", "embedded server", True, home)


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


def connect(settings: Settings, dsn: str, role: str) -> psycopg.Connection[Any]:
    """A blocking connection for `role` ("cli", "client"): autocommit, READ COMMITTED, every wait bounded."""
    conninfo = _conninfo(settings, dsn, role)
    try:
        try:
            conn = psycopg.connect(conninfo, autocommit=True)
        except psycopg.OperationalError as exc:
            if _POOLERS_REFUSAL not in str(exc):
                raise
            conn = psycopg.connect(_pooled_conninfo(settings, dsn), autocommit=True, prepare_threshold=None)
    except psycopg.OperationalError as exc:
        raise _unreachable(dsn, exc) from None
    try:
        _accept(conn.info.server_version)
    except UsageError:
        conn.close()
        raise
    return conn


async def aconnect(settings: Settings, dsn: str, role: str) -> psycopg.AsyncConnection[Any]:
    """`connect` for an event loop."""
    conninfo = _conninfo(settings, dsn, role)
    open_ = psycopg.AsyncConnection.connect
    try:
        try:
            conn = await open_(conninfo, autocommit=True, prepare_threshold=0 if role in STEADY_ROLES else 5)
        except psycopg.OperationalError as exc:
            if _POOLERS_REFUSAL not in str(exc):
                raise
            conn = await open_(_pooled_conninfo(settings, dsn), autocommit=True, prepare_threshold=None)
    except psycopg.OperationalError as exc:
        raise _unreachable(dsn, exc) from None
    try:
        _accept(conn.info.server_version)
    except UsageError:
        await conn.close()
        raise
    return conn


def is_pooled(conn: psycopg.Connection[Any]) -> bool:
    """Is there a pooler between us and the server? It hands out a process id of its own at the start of a session."""
    row = conn.execute("SELECT pg_catalog.pg_backend_pid()").fetchone()
    return row is not None and row[0] != conn.info.backend_pid


def connect_handler(
    settings: Settings, dsn: str, name: str, kind: type[psycopg.Connection[Any]], **options: Any
) -> psycopg.Connection[Any]:
    """A connection for user code: psycopg's own manners, our name on it, and a cut network is noticed."""
    conninfo = _handler_conninfo(settings, dsn, name)
    try:
        return kind.connect(conninfo, **options)
    except psycopg.OperationalError as exc:
        raise _unreachable(dsn, exc) from None


async def aconnect_handler(
    settings: Settings, dsn: str, name: str, **options: Any
) -> psycopg.AsyncConnection[Any]:
    """`connect_handler` for an event loop."""
    conninfo = _handler_conninfo(settings, dsn, name)
    try:
        return await psycopg.AsyncConnection.connect(conninfo, **options)
    except psycopg.OperationalError as exc:
        raise _unreachable(dsn, exc) from None


def _conninfo(settings: Settings, dsn: str, role: str) -> str:
    given = parsed(dsn)
    probe = max(1, math.ceil(settings.tcp_timeout) // 3)
    options = {
        "default_transaction_isolation": "read committed",
        "statement_timeout": _ms(settings.statement_timeout),
        "lock_timeout": _ms(settings.statement_timeout),
        "idle_in_transaction_session_timeout": _ms(max(settings.tcp_timeout, settings.statement_timeout)),
        "search_path": "pg_catalog,pg_temp",
        # The server's half: a session whose client was cut off must not keep its locks.
        "tcp_keepalives_idle": str(probe),
        "tcp_keepalives_interval": str(probe),
        "tcp_keepalives_count": "2",
        "tcp_user_timeout": _ms(settings.tcp_timeout),
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
        "tcp_user_timeout": _ms(settings.tcp_timeout),
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


def _accept(version: int) -> None:
    if version < OLDEST_SERVER:
        raise UsageError(
            f"this Postgres is version {version // 10000}; nothing was done; use Postgres 13 or newer"
        )


def _ms(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
