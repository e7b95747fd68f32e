"""Databases for tests: a clone of a migrated template for each test, on an embedded server or on a given one.

All processes of a test run share one embedded server: its home lies in the directory that they have in common, and the last
user stops it. The template is made once. The processes take turns by an advisory lock, and it gets its name when it is
complete, so that a killed run leaves no half of a template.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgworkers.errors import PgworkersError
from pgworkers.postgres import migrate

#: For data that is not needed after a crash: a test waits for no disk.
FAST_SERVER_OPTIONS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "autovacuum_naptime": "1h",
}
#: How long sessions that are just leaving a database may block its copy or its end.
LEAVING_SESSIONS_TIMEOUT_SECONDS = 30.0
RETRY_PAUSE_SECONDS = 0.05
#: Names of the databases that are made here begin with it.
NAME_PREFIX = "pgworkers_test_"
_LOCK_KEY = 0x7067776B  # "pgwk"


class TestDatabases:
    """Makes and drops databases on one server."""

    __test__ = False  # for pytest: not a class of tests

    def __init__(self, admin_dsn: str) -> None:
        """`admin_dsn`: the address of a login that may create databases."""
        self.admin_dsn = admin_dsn

    def create(self, schema: str = "pgworkers") -> str:
        """Clone the migrated template. Returns the address of the new database."""
        template = self._template(schema)
        name = NAME_PREFIX + uuid.uuid4().hex[:16]
        self._patiently("CREATE DATABASE {} TEMPLATE {}", name, template)
        return make_conninfo(self.admin_dsn, dbname=name)

    def drop(self, dsn: str) -> None:
        """Drop a database that `create` made, and end its sessions."""
        name = psycopg.conninfo.conninfo_to_dict(dsn).get("dbname")
        assert isinstance(name, str)
        assert name.startswith(NAME_PREFIX), f"{name} was not made by a test; it was not dropped"
        self._patiently("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def _template(self, schema: str) -> str:
        """The name of the migrated template. Made if this version of the schema has none on this server."""
        name = f"{NAME_PREFIX}template_{_schema_digest(schema)}"
        with self._admin_connection() as admin:
            admin.execute("SELECT pg_advisory_lock(%s)", [_LOCK_KEY])
            known = admin.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchone()
            if known is None:
                self._make_template(name, schema)
            return name

    def _make_template(self, name: str, schema: str) -> None:
        unfinished = NAME_PREFIX + uuid.uuid4().hex[:16]
        self._patiently("CREATE DATABASE {} TEMPLATE template0", unfinished)
        try:
            with psycopg.connect(make_conninfo(self.admin_dsn, dbname=unfinished), autocommit=True) as conn:
                migrate.up(conn, schema)
            self._patiently("ALTER DATABASE {} RENAME TO {}", unfinished, name)
        except BaseException:
            with suppress(psycopg.Error):
                self._patiently("DROP DATABASE IF EXISTS {} WITH (FORCE)", unfinished)
            raise

    def _patiently(self, command: LiteralString, *names: str) -> None:
        until = time.monotonic() + LEAVING_SESSIONS_TIMEOUT_SECONDS
        statement = sql.SQL(command).format(*map(sql.Identifier, names))
        while True:
            try:
                with self._admin_connection() as admin:
                    admin.execute(statement)
                return
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > until:
                    raise
                time.sleep(RETRY_PAUSE_SECONDS)

    def _admin_connection(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.admin_dsn, autocommit=True, application_name="pgworkers tests")


@contextmanager
def embedded_databases(home: Path) -> Iterator[TestDatabases]:
    """The databases of an embedded server in this directory. Its last user stops the server and deletes its data."""
    from pgworkers.embedded.server import EmbeddedServer

    for left_behind in _homes_of_other_runs(home):
        with suppress(PgworkersError, OSError):  # in use, or just removed by another process
            EmbeddedServer(left_behind).reset()
    server = EmbeddedServer(home, options=FAST_SERVER_OPTIONS)
    try:
        dsn = server.acquire()
    except PgworkersError as error:
        raise PgworkersError(
            f"no server for the tests: {error}; give one with --pgworkers-dsn, or install pgworkers[embedded]"
        ) from error
    try:
        yield TestDatabases(dsn)
    finally:
        server.release()
        with suppress(PgworkersError):  # another process of this run still uses it
            server.reset()


def _homes_of_other_runs(home: Path) -> list[Path]:
    """Homes next to this one in pytest's own directory, which no other account can write. A killed run leaves its server."""
    root = home.parent.parent
    if not root.name.startswith("pytest-of-"):
        return []  # --basetemp: the neighbours may be anything
    return [
        other
        for other in root.glob(f"pytest-*/{home.name}")
        if other != home and not other.parent.is_symlink()
    ]


def _schema_digest(schema: str) -> str:
    """Changes with the files of the schema: a server that outlives the run may have templates of other versions."""
    digest = hashlib.sha256(schema.encode())
    for file in sorted(Path(migrate.__file__).parents[1].joinpath("schema").glob("*.sql")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
