"""Show a dsn without its password, and refuse one that cannot be shown safely.

libpq reads a URL from the left: the rest of a wrongly written password after an unescaped `@` or `/` becomes the host,
the port or the database, which messages name. Such a URL is not tried, and nothing of it is quoted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgworkers.errors import UsageError

URL_SCHEMES = ("postgresql://", "postgres://")
SECRET_PARAMETERS = ("password", "sslpassword")


def parse_dsn(dsn: str) -> Mapping[str, Any]:
    """Parse a dsn. Refused if it cannot be parsed, or was hardly meant as libpq reads it."""
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        parts = None  # libpq's text quotes the part it stumbled over, which may be the password
    if parts is None or _has_misplaced_password(dsn, parts):
        raise UsageError(
            "the dsn cannot be read; nothing was done; write postgresql://user:password@host:5432/database "
            "(with %, @ and / in the password as %25, %40 and %2F) or host=... dbname=..."
        )
    return parts


def with_environment_password(dsn: str) -> str:
    """The address with the password that PGPASSWORD holds: for a process that does not get that variable."""
    password = os.environ.get("PGPASSWORD")
    if not password or parse_dsn(dsn).get("password"):
        return dsn
    return make_conninfo(dsn, password=password)


def show_dsn(dsn: str) -> str:
    """A dsn for people: `postgresql://user@host:5432/db`, never with its password."""
    try:
        parts = parse_dsn(dsn)
    except UsageError:
        return "(a dsn that cannot be read)"
    user = parts.get("user") or os.environ.get("PGUSER", "")
    host = (
        parts.get("host")
        or parts.get("hostaddr")
        or os.environ.get("PGHOST")
        or os.environ.get("PGHOSTADDR")
        or ""
    )
    port = parts.get("port") or os.environ.get("PGPORT", "")
    database = parts.get("dbname") or os.environ.get("PGDATABASE", "")
    where = f"{host}:{port}" if host and port and not str(host).startswith("/") else host
    return f"postgresql://{user}{'@' if user else ''}{where}/{database}"


def redact_passwords(text: str, dsn: str) -> str:
    """The message of a driver without the passwords."""
    parts = parse_dsn(dsn)
    secrets = {str(parts.get(name) or "") for name in SECRET_PARAMETERS} | {os.environ.get("PGPASSWORD", "")}
    for secret in secrets - {""}:
        text = text.replace(secret, "(password)")
    return text


def _has_misplaced_password(dsn: str, parts: Mapping[str, Any]) -> bool:
    """True if a piece of a password is where the host, the port or the database should be.

    One `@` stands in a URL before its `?`, and nothing but digits is a port. A host may begin with `@` (a socket without a
    file) and not have one later.
    """
    if any("@" in host[1:] or "://" in host for host in str(parts.get("host", "")).split(",")):
        return True
    if not dsn.startswith(URL_SCHEMES):
        return False
    before, at, after = dsn.partition("://")[2].partition("@")
    address = after if at and "/" not in before else before + at + after
    ports = str(parts.get("port", "")).replace(",", "")
    return "@" in address.partition("?")[0] or not (ports.isdecimal() or ports == "")
