"""Migrations: numbered `.sql` files, one transaction each, with a checksum, serialised by a lock on the table `migration`.

Any number of masters may start at once on an empty database: one migrates, the others wait and find nothing to do. A
schema that is newer than this code, or was made by a file that has changed since, is refused and not touched.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.errors import InsufficientPrivilege
from psycopg.rows import tuple_row

from pgworkers.errors import PermissionDenied, SchemaOutOfDate, UsageError
from pgworkers.postgres.statements import Statement, rename
from pgworkers.settings import refuse_schema

_BOOTSTRAP = Statement.beside(__file__, "bootstrap")
_APPLIED = Statement.beside(__file__, "applied")
_RECORD = Statement.beside(__file__, "record")
#: Another session made the schema or the table `migration` at the same moment.
_MADE_MEANWHILE = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateSchema,
    psycopg.errors.DuplicateTable,
)
MAX_TRIES = 5
_ROLE = re.compile(r"\bpgworkers_(owner|worker|operator|payload|viewer|enqueue)\b")
#: What the migrations make. (A law test compares it with a database.)
_MADE = re.compile(
    r"^CREATE (?:UNLOGGED )?(?:TABLE|VIEW|TYPE|DOMAIN|FUNCTION|AGGREGATE) (?:IF NOT EXISTS )?pgworkers\.(\w+)",
    re.MULTILINE,
)
_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str  # "0001_spine"
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """`state`: applied, pending, changed (the file is not what was applied) or unknown (this code has no such file)."""

    version: int
    name: str
    state: str
    applied_at: datetime | None


@cache
def known() -> tuple[Migration, ...]:
    """The migrations of this code, in order."""
    found = []
    for entry in resources.files("pgworkers.schema").iterdir():
        match = _FILE.fullmatch(entry.name)
        if match:
            found.append(
                Migration(int(match[1]), entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8"))
            )
    return tuple(sorted(found, key=lambda migration: migration.version))


def status(
    conn: psycopg.Connection[Any], schema: str, migrations: Sequence[Migration] | None = None
) -> list[MigrationStatus]:
    """Every migration that this code or the database knows, in order."""
    applied = _applied(conn, schema)
    rows = []
    for migration in known() if migrations is None else migrations:
        row = applied.pop(migration.version, None)
        if row is None:
            rows.append(MigrationStatus(migration.version, migration.name, "pending", None))
        else:
            state = "applied" if row[2] == migration.checksum else "changed"
            rows.append(MigrationStatus(migration.version, migration.name, state, row[3]))
    rows += [MigrationStatus(row[0], row[1], "unknown", row[3]) for row in applied.values()]
    return sorted(rows, key=lambda row: row.version)


def check(conn: psycopg.Connection[Any], schema: str, migrations: Sequence[Migration] | None = None) -> None:
    """Refuse a schema that this code does not speak."""
    _refuse(schema, rows := status(conn, schema, migrations))
    pending = [row.name for row in rows if row.state == "pending"]
    if len(pending) == len(rows):
        raise SchemaOutOfDate(
            f"the database has no schema {schema}; nothing was done; run pgworkers migrate up"
        )
    if pending:
        raise SchemaOutOfDate(
            f"the schema {schema} is older than this pgworkers (missing: {', '.join(pending)}); nothing was done; "
            "run pgworkers migrate up"
        )


def up(
    conn: psycopg.Connection[Any], schema: str, migrations: Sequence[Migration] | None = None
) -> list[str]:
    """Apply what is missing. Answers the names of what was applied."""
    refuse_schema(schema)
    migrations = known() if migrations is None else migrations
    rows = status(conn, schema, migrations)
    _refuse(schema, rows)
    if all(row.state == "applied" for row in rows):
        return []
    encoding = conn.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise UsageError(
            f"the database is encoded in {encoding}; nothing was done; use a database with encoding UTF8"
        )
    try:
        return [migration.name for migration in migrations if _apply(conn, schema, migration, migrations)]
    except InsufficientPrivilege as error:
        raise _denied(conn, schema, error) from error


def render_sql(schema: str) -> str:
    """All migrations as one script and one transaction, for databases where pgworkers itself may not create tables."""
    refuse_schema(schema)
    parts = [
        "-- pgworkers: everything `pgworkers migrate up` would do to an empty database, in one transaction.",
        "BEGIN;",
        f"CREATE SCHEMA IF NOT EXISTS {_identifier(schema)};",
        rename(_BOOTSTRAP.text, schema).strip() + ";",
    ]
    for migration in known():
        record = sql.SQL("INSERT INTO {} (version, name, checksum) VALUES ({}, {}, {});").format(
            sql.Identifier(schema, "migration"), migration.version, migration.name, migration.checksum
        )
        parts += [rename(migration.text, schema).strip(), record.as_string(None)]
    parts.append("COMMIT;")
    return "\n\n".join(parts) + "\n"


def render_roles(schema: str) -> str:
    """The roles of this schema and what each may do, as one script; see docs/security.md."""
    refuse_schema(schema)
    text = (resources.files("pgworkers.schema") / "roles.sql").read_text(encoding="utf-8")
    made = (*(migration.text for migration in known()), _BOOTSTRAP.text)
    text = text.replace(
        "OURS}", ",".join(sorted({name for part in made for name in _MADE.findall(part)})) + "}"
    )
    return _ROLE.sub(rf"{schema}_\1", rename(text, schema))


def _apply(
    conn: psycopg.Connection[Any], schema: str, migration: Migration, all_of_them: Sequence[Migration]
) -> bool:
    """Apply one migration unless another session has. A session that made the schema or its first table meanwhile is
    waited for by Postgres itself, which then refuses ours; on the next try they are there."""
    for _ in range(MAX_TRIES - 1):
        try:
            return _try_to_apply(conn, schema, migration, all_of_them)
        except _MADE_MEANWHILE:
            continue
    return _try_to_apply(conn, schema, migration, all_of_them)


def _try_to_apply(
    conn: psycopg.Connection[Any], schema: str, migration: Migration, all_of_them: Sequence[Migration]
) -> bool:
    with conn.transaction():
        # A migration, and waiting for another host's, may take longer than a control statement.
        conn.execute("SET LOCAL statement_timeout = '15min'")
        conn.execute("SET LOCAL lock_timeout = 0")
        if _one(conn, "SELECT to_regnamespace(%s)", _identifier(schema)) is None:
            conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        conn.execute(_BOOTSTRAP.render(schema))
        # Not an advisory lock, which any login can hold: this takes more than the right to read the table.
        table = sql.Identifier(schema, "migration")
        conn.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(table))
        rows = status(conn, schema, all_of_them)  # again, under the lock
        _refuse(schema, rows)
        if any(row.version == migration.version and row.state == "applied" for row in rows):
            return False
        conn.execute(rename(migration.text, schema).encode())
        conn.execute(
            _RECORD.render(schema),
            {"version": migration.version, "name": migration.name, "checksum": migration.checksum},
        )
        return True


def _denied(conn: psycopg.Connection[Any], schema: str, error: InsufficientPrivilege) -> PermissionDenied:
    """What the login tried, and the GRANT that it lacks."""
    login, database = _name(conn.info.user), _name(conn.info.dbname)
    said = error.diag.message_primary or str(error)
    if _one(conn, "SELECT to_regnamespace(%s)", _identifier(schema)) is None:
        tried = f"create the schema {schema} in the database {conn.info.dbname}"
        grant = f"GRANT CREATE ON DATABASE {database} TO {login}"
        other = "run pgworkers migrate up once as a login that may"
    else:
        tried = f"create tables in the schema {schema}"
        grant = f"GRANT {_name(f'{schema}_owner')} TO {login}"
        other = "run pgworkers migrate up as the login that owns the schema"
    return PermissionDenied(
        f"the login {conn.info.user} may not {tried} ({said}); nothing was done; {grant}, or {other}"
    )


def _applied(conn: psycopg.Connection[Any], schema: str) -> dict[int, tuple[Any, ...]]:
    table = sql.Identifier(schema, "migration").as_string(None)
    try:
        if _one(conn, "SELECT to_regclass(%s)", table) is None:
            return {}
        with conn.cursor(row_factory=tuple_row) as cursor:
            return {row[0]: row for row in cursor.execute(_APPLIED.render(schema)).fetchall()}
    except InsufficientPrivilege as error:
        grants = (
            f"GRANT {_name(f'{schema}_viewer')} (or _worker, _operator, _enqueue) TO {_name(conn.info.user)}"
        )
        raise PermissionDenied(
            f"the schema {schema} is there, but the login {conn.info.user} may not use it "
            f"({error.diag.message_primary}); nothing was done; {grants}; pgworkers migrate roles makes these roles"
        ) from error


def _one(conn: psycopg.Connection[Any], query: LiteralString, param: str) -> Any:
    with conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(query, [param]).fetchone()
        return row[0] if row else None


def _refuse(schema: str, rows: list[MigrationStatus]) -> None:
    unknown = [row.name for row in rows if row.state == "unknown"]
    if unknown:
        raise SchemaOutOfDate(
            f"the schema {schema} is newer than this pgworkers, which does not know {', '.join(unknown)}; nothing was done; "
            "upgrade pgworkers on this host"
        )
    changed = [row.name for row in rows if row.state == "changed"]
    if changed:
        raise SchemaOutOfDate(
            f"the schema {schema} was made by another version of {', '.join(changed)} than this pgworkers has; nothing was "
            "done; install the version that made it, or start from an empty database (embedded: pgworkers pg reset)"
        )


def _name(name: str) -> str:
    """A name as SQL takes it, quoted unless it is plain."""
    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else sql.Identifier(name).as_string(None)


def _identifier(schema: str) -> str:
    return sql.Identifier(schema).as_string(None)
