"""Migrations: numbered `.sql` files, one transaction each, with a checksum, serialised by a lock on the table `migration`.

Any number of masters may start at once on an empty database: one migrates, the others wait and find nothing to do. A
schema that was made by a file that has changed since is refused and not touched.

The first line of each file is `-- serves: NNNN`, the oldest code that still works on the schema after it: code whose newest
migration is NNNN. It is recorded with the migration. Code of an older version goes on as long as all newer migrations serve
it, and is refused otherwise (docs/adr/10).
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg import sql
from psycopg.errors import InsufficientPrivilege
from psycopg.rows import tuple_row

from pgworkers.errors import PermissionDenied, SchemaOutOfDate, UsageError
from pgworkers.postgres import lock_wait, session_settings
from pgworkers.postgres.statements import Statement, query_records, run, with_schema
from pgworkers.settings import check_schema_name

_MIGRATION_TABLE = Statement.from_file(__file__, "migrate_table")
_APPLIED = Statement.from_file(__file__, "migrate_applied")
_OLDER_HOSTS = Statement.from_file(__file__, "migrate_older_hosts")
#: Another session made the schema or the table `migration` at the same moment.
_CREATED_CONCURRENTLY = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateSchema,
    psycopg.errors.DuplicateTable,
)
MAX_APPLY_ATTEMPTS = 5
_ROLE_NAME = re.compile(r"\bpgworkers_(owner|worker|operator|payload|viewer|enqueue)\b")
#: What the migrations make. roles.sql refuses other objects; tests/database/test_roles.py runs it on a migrated database.
_CREATED_OBJECT = re.compile(
    r"^CREATE (?:UNLOGGED )?(?:TABLE|VIEW|TYPE|DOMAIN|FUNCTION|AGGREGATE) (?:IF NOT EXISTS )?pgworkers\.(\w+)",
    re.MULTILINE,
)
_MIGRATION_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_SERVES_HEADER = re.compile(r"-- serves: (\d{4})\n")
#: How long one statement of a migration may run, once it has its locks.
_MIGRATION_STATEMENT_TIMEOUT = "15min"
_log = logging.getLogger("pgworkers.migrate")


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str  # "0001_initial"
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def oldest_supported(self) -> int:
        """The newest migration of the oldest code that works on the schema after this one."""
        header = _SERVES_HEADER.match(self.text)
        if header is None or not 1 <= int(header[1]) <= self.version:
            raise ValueError(
                f"{self.name}: the first line must be `-- serves: NNNN` with a number from 0001 to {self.version:04d}"
            )
        return int(header[1])


class MigrationState(StrEnum):
    APPLIED = "applied"
    PENDING = "pending"
    CHANGED = "changed"  #: the file is not what was applied
    NEWER = "newer"  #: this code has no such file, and works with it
    UNKNOWN = "unknown"  #: this code has no such file, and does not work with it


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    version: int
    name: str
    state: MigrationState
    oldest_supported: int
    applied_at: datetime | None

    @property
    def is_usable(self) -> bool:
        return self.state in (MigrationState.APPLIED, MigrationState.NEWER)


@cache
def known_migrations() -> tuple[Migration, ...]:
    """The migrations of this code, in order."""
    found = []
    for entry in resources.files("pgworkers.schema").iterdir():
        match = _MIGRATION_FILE.fullmatch(entry.name)
        if match:
            found.append(
                Migration(int(match[1]), entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8"))
            )
    return tuple(sorted(found, key=lambda migration: migration.version))


def status(
    conn: psycopg.Connection[Any], schema: str, migrations: Sequence[Migration] | None = None
) -> list[MigrationStatus]:
    """Every migration that this code or the database knows, in order."""
    migrations = known_migrations() if migrations is None else migrations
    newest = migrations[-1].version
    applied = _read_applied(conn, schema)
    rows = []
    for one in migrations:
        row = applied.pop(one.version, None)
        if row is None:
            rows.append(
                MigrationStatus(
                    version=one.version,
                    name=one.name,
                    state=MigrationState.PENDING,
                    oldest_supported=one.oldest_supported,
                    applied_at=None,
                )
            )
        else:
            is_same = row.checksum == one.checksum
            rows.append(row.status(MigrationState.APPLIED if is_same else MigrationState.CHANGED))
    for row in applied.values():
        is_supported = row.version > newest and row.serves <= newest
        rows.append(row.status(MigrationState.NEWER if is_supported else MigrationState.UNKNOWN))
    return sorted(rows, key=lambda row: row.version)


def describe_schema(conn: psycopg.Connection[Any], schema: str) -> str:
    """The line about the schema that a host logs at its start."""
    newer = [row.name for row in status(conn, schema) if row.state == MigrationState.NEWER]
    if newer:
        return f"newer than this pgworkers ({', '.join(newer)}), which it still serves"
    return "up to date"


def check_schema(
    conn: psycopg.Connection[Any], schema: str, migrations: Sequence[Migration] | None = None
) -> None:
    """Refuse a schema that this code cannot work with."""
    _refuse_incompatible(schema, rows := status(conn, schema, migrations))
    missing = [row.name for row in rows if row.state == MigrationState.PENDING]
    if len(missing) == len(rows):
        raise SchemaOutOfDate(
            f"the database has no schema {schema}; nothing was done; run pgworkers migrate up"
        )
    if missing:
        raise SchemaOutOfDate(
            f"the schema {schema} is older than this pgworkers (missing: {', '.join(missing)}); nothing was done; "
            "run pgworkers migrate up"
        )


def pending_migrations(
    conn: psycopg.Connection[Any], schema: str, migrations: Sequence[Migration] | None = None
) -> list[Migration]:
    """What `up` would apply. Refuses a database or a schema that it would refuse."""
    check_schema_name(schema)
    migrations = known_migrations() if migrations is None else migrations
    rows = status(conn, schema, migrations)
    _refuse_incompatible(schema, rows)
    missing = {row.version for row in rows if row.state == MigrationState.PENDING}
    encoding = conn.info.parameter_status("server_encoding")
    if missing and encoding != "UTF8":
        raise UsageError(
            f"the database is encoded in {encoding}; nothing was done; use a database with encoding UTF8"
        )
    return [migration for migration in migrations if migration.version in missing]


def up(
    conn: psycopg.Connection[Any],
    schema: str,
    migrations: Sequence[Migration] | None = None,
    *,
    on_message: Callable[[str], None] = _log.warning,
    max_lock_wait: float = lock_wait.MAX_LOCK_WAIT_SECONDS,
) -> list[str]:
    """Apply the missing migrations. Returns the names of those that were applied.

    `on_message` gets a line while a migration waits for a lock. After `max_lock_wait` seconds of failed attempts in
    total it is DatabaseUnreachable; the migrations before it stay applied.
    """
    migrations = known_migrations() if migrations is None else migrations
    retry = lock_wait.LockRetry(on_message, max_lock_wait)
    applied = []
    try:
        for migration in pending_migrations(conn, schema, migrations):
            if _apply(conn, schema, migration, migrations, retry):
                applied.append(migration.name)
    except InsufficientPrivilege as error:
        raise _explain_missing_grant(conn, schema, error) from error
    return applied


def render_sql(schema: str) -> str:
    """All migrations as one script and one transaction, for databases where pgworkers itself may not create tables."""
    check_schema_name(schema)
    parts = [
        "-- pgworkers: everything `pgworkers migrate up` would do to an empty database, in one transaction.",
        "BEGIN;",
        *_script_settings(),
        f"CREATE SCHEMA IF NOT EXISTS {_quote_schema(schema)};",
        with_schema(_MIGRATION_TABLE.text, schema).strip() + ";",
    ]
    for migration in known_migrations():
        parts += [with_schema(migration.text, schema).strip(), _insert_migration_row(schema, migration) + ";"]
    parts.append("COMMIT;")
    return "\n\n".join(parts) + "\n"


def render_pending(
    conn: psycopg.Connection[Any], schema: str, migrations: Sequence[Migration] | None = None
) -> str:
    """What `up` would run on this database now, as a script for psql: a transaction for each migration.

    Each transaction stops, and changes nothing, unless the schema is at the migration before it.
    """
    missing = pending_migrations(conn, schema, migrations)
    if not missing:
        return f"-- pgworkers: nothing is pending in the schema {schema}.\n"
    parts = [
        "-- pgworkers: what `pgworkers migrate up` would run on this database, a transaction for each migration."
    ]
    opening = _bootstrap_statements(conn, schema)
    before = max((row.version for row in status(conn, schema, migrations) if row.is_usable), default=0)
    for migration in missing:
        statements = [
            *opening,
            _lock_migration_table(schema),
            _check_script_state(schema, before, migration),
            with_schema(migration.text, schema).strip().rstrip(";"),
        ]
        parts += [f"-- {migration.name}\nBEGIN;", *_script_settings()]
        parts += [f"{statement};" for statement in (*statements, _insert_migration_row(schema, migration))]
        parts.append("COMMIT;")
        opening, before = [], max(before, migration.version)
    return "\n\n".join(parts) + "\n"


def render_roles(schema: str) -> str:
    """The roles of this schema and what each may do, as one script; see docs/how-to/separate-logins.md."""
    check_schema_name(schema)
    text = (resources.files("pgworkers.schema") / "roles.sql").read_text(encoding="utf-8")
    made = (*(migration.text for migration in known_migrations()), _MIGRATION_TABLE.text)
    names = sorted({name for part in made for name in _CREATED_OBJECT.findall(part)})
    text = text.replace("OURS}", ",".join(names) + "}").replace(
        "NEWEST}", f"{known_migrations()[-1].version}}}"
    )
    return _ROLE_NAME.sub(rf"{schema}_\1", with_schema(text, schema))


def _apply(
    conn: psycopg.Connection[Any],
    schema: str,
    migration: Migration,
    migrations: Sequence[Migration],
    retry: lock_wait.LockRetry,
) -> bool:
    """Apply one migration unless another session has. A session that made the schema or its first table meanwhile is
    waited for by Postgres itself, which then refuses ours; on the next try they are there."""
    tries = 1
    while True:
        try:
            return _apply_in_transaction(conn, schema, migration, migrations, retry)
        except _CREATED_CONCURRENTLY:
            if tries == MAX_APPLY_ATTEMPTS:
                raise
            tries += 1
        except lock_wait.LOCK_ERRORS as error:
            retry.pause(f"migration {migration.name}", error)


def _apply_in_transaction(
    conn: psycopg.Connection[Any],
    schema: str,
    migration: Migration,
    all_of_them: Sequence[Migration],
    retry: lock_wait.LockRetry,
) -> bool:
    with conn.transaction():
        for setting in _timeouts():
            conn.execute(setting.encode())
        with retry.recording_blockers(conn):
            for statement in (*_bootstrap_statements(conn, schema), _lock_migration_table(schema)):
                conn.execute(statement.encode())
        rows = status(conn, schema, all_of_them)  # again, under the lock
        _refuse_incompatible(schema, rows)
        if any(row.version == migration.version and row.state == MigrationState.APPLIED for row in rows):
            return False
        while not _apply_in_savepoint(conn, schema, migration, retry):
            pass
        return True


def _apply_in_savepoint(
    conn: psycopg.Connection[Any], schema: str, migration: Migration, retry: lock_wait.LockRetry
) -> bool:
    """Run the migration in a savepoint. Without its locks it is undone, which frees those that it got.

    The lock on `migration` stays meanwhile: else the next of many masters would try at once, and leave no room for other
    sessions.
    """
    try:
        with conn.transaction(), retry.recording_blockers(conn):
            _refuse_older_hosts(conn, schema, migration)
            conn.execute(with_schema(migration.text, schema).encode())
            conn.execute(_insert_migration_row(schema, migration).encode())
            return True
    except lock_wait.LOCK_ERRORS as error:
        retry.pause(f"migration {migration.name}", error)
        return False


def _timeouts() -> list[str]:
    """A migration may take longer than a control statement, but the sessions behind it must not wait for its locks."""
    return [
        f"SET LOCAL statement_timeout = '{_MIGRATION_STATEMENT_TIMEOUT}'",
        f"SET LOCAL lock_timeout = '{session_settings.milliseconds(lock_wait.LOCK_TIMEOUT_SECONDS)}ms'",
    ]


def _script_settings() -> list[str]:
    """The settings of a transaction in a script: our sessions begin with them, those of psql do not."""
    meaning = [
        f"SET LOCAL {name} = {', '.join(_literal(one) for one in value.split(','))}"
        for name, value in session_settings.STATEMENT_SETTINGS.items()
    ]
    return ["\n".join(f"{setting};" for setting in (*meaning, *_timeouts()))]


def _bootstrap_statements(conn: psycopg.Connection[Any], schema: str) -> list[str]:
    """Statements that create the schema and the table `migration` if they are missing."""
    statements = []
    if _fetch_value(conn, "SELECT to_regnamespace(%s)", _quote_schema(schema)) is None:
        statements.append(f"CREATE SCHEMA {_quote_schema(schema)}")
    if _fetch_value(conn, "SELECT to_regclass(%s)", _table(schema)) is None:
        statements.append(_MIGRATION_TABLE.render(schema).decode())
    return statements


def _lock_migration_table(schema: str) -> str:
    """Lock the table. Any login could hold an advisory lock; this needs more than the right to read the table."""
    return f"LOCK TABLE {_table(schema)} IN SHARE ROW EXCLUSIVE MODE"


def _check_script_state(schema: str, newest: int, migration: Migration) -> str:
    """Stop a script that was made for another state of the schema, or whose migration would break hosts that are running."""
    host = sql.Identifier(schema, "host").as_string(None)
    running = f"""
    IF EXISTS (SELECT FROM {host} WHERE newest_migration < {migration.oldest_supported} AND renewed_at >= now() - lease) THEN
        RAISE EXCEPTION '{migration.name} does not serve hosts that are running; nothing was done';
    END IF;"""
    return f"""DO $$ BEGIN
    IF (SELECT coalesce(max(version), 0) FROM {_table(schema)}) <> {newest} THEN
        RAISE EXCEPTION 'this script was made for another state: the newest migration is not {newest:04d}; nothing was done';
    END IF;{running if newest else ""}
END $$"""


def _insert_migration_row(schema: str, migration: Migration) -> str:
    """Record a migration as applied, in its transaction."""
    return (
        f"INSERT INTO {_table(schema)} (version, name, checksum, serves) VALUES"
        f" ({migration.version}, {_literal(migration.name)}, {_literal(migration.checksum)}, {migration.oldest_supported})"
    )


def _explain_missing_grant(
    conn: psycopg.Connection[Any], schema: str, error: InsufficientPrivilege
) -> PermissionDenied:
    """The error for a login that lacks a GRANT, with that GRANT."""
    login, database = _quote_if_needed(conn.info.user), _quote_if_needed(conn.info.dbname)
    reason = error.diag.message_primary or str(error)
    if _fetch_value(conn, "SELECT to_regnamespace(%s)", _quote_schema(schema)) is None:
        tried = f"create the schema {schema} in the database {conn.info.dbname}"
        grant = f"GRANT CREATE ON DATABASE {database} TO {login}"
        other = "run pgworkers migrate up once as a login that may"
    else:
        tried = f"create tables in the schema {schema}"
        grant = f"GRANT {_quote_if_needed(f'{schema}_owner')} TO {login}"
        other = "run pgworkers migrate up as the login that owns the schema"
    return PermissionDenied(
        f"the login {conn.info.user} may not {tried} ({reason}); nothing was done; {grant}, or {other}"
    )


class _AppliedMigration(NamedTuple):
    version: int
    name: str
    checksum: str
    serves: int
    applied_at: datetime

    def status(self, state: MigrationState) -> MigrationStatus:
        return MigrationStatus(
            version=self.version,
            name=self.name,
            state=state,
            oldest_supported=self.serves,
            applied_at=self.applied_at,
        )


def _read_applied(conn: psycopg.Connection[Any], schema: str) -> dict[int, _AppliedMigration]:
    try:
        if _fetch_value(conn, "SELECT to_regclass(%s)", _table(schema)) is None:
            return {}
        applied = run(conn, schema, query_records(_APPLIED, _AppliedMigration))
        return {migration.version: migration for migration in applied}
    except InsufficientPrivilege as error:
        grants = (
            f"GRANT {_quote_if_needed(f'{schema}_viewer')} (or _worker, _operator, _enqueue) "
            f"TO {_quote_if_needed(conn.info.user)}"
        )
        raise PermissionDenied(
            f"the schema {schema} is there, but the login {conn.info.user} may not use it "
            f"({error.diag.message_primary}); nothing was done; {grants}; pgworkers migrate roles makes these roles"
        ) from error


def _fetch_value(conn: psycopg.Connection[Any], query: LiteralString, param: str) -> Any:
    with conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(query, [param]).fetchone()
        return row[0] if row else None


def _refuse_incompatible(schema: str, rows: list[MigrationStatus]) -> None:
    unknown = [row for row in rows if row.state == MigrationState.UNKNOWN]
    if unknown:
        newest = max(
            (row.version for row in rows if row.state not in (MigrationState.NEWER, MigrationState.UNKNOWN)),
            default=0,
        )
        raise SchemaOutOfDate(
            f"the schema {schema} is newer than this pgworkers, which does not know "
            f"{', '.join(row.name for row in unknown)}: that serves code from migration "
            f"{max(row.oldest_supported for row in unknown):04d} on, and the newest one here is {newest:04d}; "
            "nothing was done; upgrade pgworkers on this host"
        )
    newer = [row.name for row in rows if row.state == MigrationState.NEWER]
    missing = [row.name for row in rows if row.state == MigrationState.PENDING]
    if newer and missing:
        raise SchemaOutOfDate(
            f"the schema {schema} has {', '.join(newer)}, which is newer than this pgworkers, but lacks "
            f"{', '.join(missing)}; nothing was done; upgrade pgworkers on this host"
        )
    changed = [row.name for row in rows if row.state == MigrationState.CHANGED]
    if changed:
        raise SchemaOutOfDate(
            f"the schema {schema} was made by another version of {', '.join(changed)} than this pgworkers has; nothing was "
            "done; install the version that made it, or start from an empty database (embedded: pgworkers pg reset)"
        )


def _refuse_older_hosts(conn: psycopg.Connection[Any], schema: str, migration: Migration) -> None:
    """Refuse a migration that would break hosts that are running."""
    table = sql.Identifier(schema, "host").as_string(None)
    if _fetch_value(conn, "SELECT to_regclass(%s)", table) is None:
        return
    with conn.cursor(row_factory=tuple_row) as cursor:
        found = cursor.execute(_OLDER_HOSTS.render(schema), {"serves": migration.oldest_supported}).fetchall()
    if found:
        hosts = ", ".join(f"{name} (pid {pid}, newest migration {newest:04d})" for name, pid, newest in found)
        raise SchemaOutOfDate(
            f"migration {migration.name} does not serve hosts that are running: {hosts}; it changed nothing; stop them and "
            "try again (a killed host counts until its lease is over)"
        )


def _quote_if_needed(name: str) -> str:
    """A name as SQL takes it, quoted unless it is plain."""
    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else sql.Identifier(name).as_string(None)


def _quote_schema(schema: str) -> str:
    return sql.Identifier(schema).as_string(None)


def _table(schema: str) -> str:
    return sql.Identifier(schema, "migration").as_string(None)


def _literal(value: str) -> str:
    return sql.Literal(value).as_string(None)
