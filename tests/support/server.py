"""Postgres for the tests: a server a run, a migrated template, a clone a test; servers to crash."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgworkers.embedded import process
from pgworkers.embedded.server import EmbeddedServer
from pgworkers.postgres.migrate import up

FAST = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "300",
    "autovacuum_naptime": "1h",
    "dynamic_shared_memory_type": "mmap",  # in the data directory: a killed server leaves nothing in /dev/shm
}
#: For a server that is crashed: what it acknowledged must be in its log. Only the machine stays up.
CRASHABLE = FAST | {"synchronous_commit": "on", "full_page_writes": "on"}
STEP = 0.02
PATIENCE = (
    30.0  # how long a connection that was just closed may still be seen; a busy machine is slow to end it
)


class Server:
    """A running server on which databases are made and dropped."""

    def __init__(self, admin: str, run: str, pooled: str | None = None) -> None:
        self.admin = admin
        self._pooled = pooled  # the same server through a pooler: what tests connect to, if it is there
        self._run = run
        self._numbers = itertools.count(1)
        self._session: psycopg.Connection[Any] | None = (
            None  # a new one for each database is half of its price
        )

    def dsn(self, database: str) -> str:
        return make_conninfo(self._pooled or self.admin, dbname=database)

    def create(self, *, template: str | None = None) -> str:
        """Make a database, empty or a clone; its name."""
        name = f"t{next(self._numbers)}_{self._run}"
        if self._pooled and template:  # the pooler holds sessions of it
            self._execute(
                sql.SQL("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}").format(
                    sql.Literal(template)
                )
            )
        names = (sql.Identifier(name), sql.Identifier(template or "template0"))
        command = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*names)
        if self._connected().info.server_version >= 150000:
            # The default since then writes every page to the log, too, which takes twice the CPU.
            command += sql.SQL(" STRATEGY FILE_COPY")
        self._patiently(command)
        return name

    def drop(self, database: str) -> None:
        self._patiently(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))

    def _patiently(self, command: sql.Composed) -> None:
        """The server itself waits five seconds for sessions that are just leaving; a busy machine needs more."""
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                self._execute(command)
                return
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > give_up:
                    raise

    def connections(self, database: str) -> list[str]:
        """Sessions of a database, after those that are just leaving have left."""
        give_up = time.monotonic() + PATIENCE
        if self._pooled:
            return []  # the pooler's own, which stay
        while True:
            found = self._execute(
                sql.SQL(
                    "SELECT format('pid %%s %%s: %%s', pid, application_name, left(query, 80))"
                    " FROM pg_stat_activity WHERE datname = {} AND backend_type = 'client backend'"
                ).format(sql.Literal(database))
            )
            if not found or time.monotonic() > give_up:
                return [row[0] for row in found]
            time.sleep(STEP)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _connected(self) -> psycopg.Connection[Any]:
        if self._session is None:
            self._session = psycopg.connect(self.admin, autocommit=True)
        return self._session

    def _execute(self, command: sql.Composed) -> list[tuple[Any, ...]]:
        session = self._connected()
        try:
            cursor = session.execute(command)
        except psycopg.OperationalError:
            if not session.broken:
                raise
            self._session = None  # a test has ended every session there was
            return self._execute(command)
        return cursor.fetchall() if cursor.description else []


class OwnServer:
    """A server that belongs to one test, which may stop, crash and start it."""

    def __init__(self, home: Path, bindir: Path | None, **options: str) -> None:
        self.embedded = EmbeddedServer(home, options=CRASHABLE | options, bindir=bindir)
        self.dsn = self.embedded.acquire()

    def crash(self) -> None:
        """Like `pg_ctl stop -m immediate`: an immediate stop, with recovery at the next start."""
        assert process.stop(self.embedded.status().data, is_fast=False), (
            "the server did not run: nothing was crashed"
        )

    def stop(self) -> None:
        assert process.stop(self.embedded.status().data), "the server did not run: nothing was stopped"

    def start(self) -> None:
        assert self.embedded.acquire() == self.dsn

    def close(self) -> None:
        self.embedded.release()


@contextmanager
def run_server(
    home: Path, run: str, bindir: Path | None, dsn: str | None, *, pooler: bool = False
) -> Iterator[Server]:
    """The server of this test run: a given one, or one of our own that is gone afterwards."""
    if dsn:
        with closing(Server(dsn, run)) as given:
            yield given
        return
    embedded = EmbeddedServer(home, options=FAST, bindir=bindir, stores=(home.parent / "store",))
    try:
        admin = embedded.acquire()
        if pooler:
            from support.pooler import pooling

            with (
                pooling(admin, home.parent / "bouncer", size=10) as pooled,
                closing(Server(admin, run, pooled)) as found,
            ):
                yield found
        else:
            with closing(Server(admin, run)) as found:
                yield found
    finally:
        embedded.release()
        assert embedded.status().pid is None, "the test server outlived the tests"


def migrated(dsn: str, schema: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        up(conn, schema)
