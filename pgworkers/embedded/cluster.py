"""The data directory that initdb makes, and our database in it.

`count_foreign_sessions` counts sessions of programs that have the address of the server but hold no lock on it. Sessions
of this process are not counted: they end with it.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from pgworkers.embedded import account as accounts
from pgworkers.embedded.account import Account, EmbeddedServerError
from pgworkers.embedded.binaries import Binaries, major_version
from pgworkers.embedded.location import SOCKET_PORT, DataLocation

DATABASE_NAME = "pgworkers"
SUPERUSER = "postgres"
#: Lines of initdb, and of the server that it starts, that say what went wrong; and how much of them is shown.
_ERROR_LINE = re.compile(r"\b(?:error|hint|detail|FATAL|PANIC|ERROR|HINT|DETAIL): .*")
MAX_INITDB_ERROR_CHARACTERS = 500


def initialise(place: DataLocation, programs: Binaries, account: Account, *, sync: bool) -> None:
    """Run initdb in a temporary directory, then rename it: the data is either complete or absent."""
    fresh = place.root / f"data.new-{os.getpid()}"
    accounts.make_private(fresh, account)
    argv: list[str | Path] = [programs.program("initdb"), "--pgdata", fresh, "--username", SUPERUSER]
    argv += ["--auth=trust", "--encoding=UTF8", "--locale=C"]
    if not sync:
        argv.append("--no-sync")
    with tempfile.TemporaryFile() as out:
        if accounts.run_as(account, argv, out=out.fileno(), timeout=600) is None:
            out.seek(0)
            output = out.read().decode(errors="replace")
            shutil.rmtree(fresh, ignore_errors=True)
            raise EmbeddedServerError(
                f"the embedded Postgres could not make its data in {place.root}: {initdb_error(output)}"
            )
    fresh.rename(place.data_directory)


def initdb_error(output: str) -> str:
    """The lines of initdb's output that say why it failed. It prints its plan first and its cleanup last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [found[0] for line in lines if (found := _ERROR_LINE.search(line))] or lines[-3:]
    return "; ".join(telling)[-MAX_INITDB_ERROR_CHARACTERS:] or "initdb did not say why"


def dsn_of(socket_dir: Path) -> str:
    """The address of the server's database, complete, so that no PG* variable can change its meaning."""
    return (
        f"postgresql://{SUPERUSER}@/{DATABASE_NAME}?host={quote(str(socket_dir), safe='')}&port={SOCKET_PORT}"
    )


def data_version(place: DataLocation) -> int | None:
    try:
        return major_version((place.data_directory / "PG_VERSION").read_text())
    except FileNotFoundError:
        return None


def connect_as_superuser(socket_dir: Path) -> psycopg.Connection[tuple[Any, ...]]:
    """A session of the superuser in another database than ours, which may not exist yet."""
    return psycopg.connect(
        host=str(socket_dir),
        port=SOCKET_PORT,
        user=SUPERUSER,
        dbname="postgres",
        autocommit=True,
        connect_timeout=10,
    )


def create_database(socket_dir: Path) -> None:
    """Create our database unless it exists. The caller holds the start lock, so no other process does the same."""
    try:
        with closing(connect_as_superuser(socket_dir)) as conn:
            there = conn.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE_NAME]).fetchone()
            if there is None:
                conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE_NAME)))
    except psycopg.Error as error:
        raise EmbeddedServerError(f"the embedded Postgres runs but does not answer: {error}") from None


#: A backend whose client has just left, or was just killed with its host, is gone within this time.
SESSION_END_TIMEOUT_SECONDS = 2.0
SESSION_POLL_SECONDS = 0.02
_COUNT_OTHER_SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)


def count_foreign_sessions(socket_dir: Path) -> int:
    """Count foreign sessions, after those that are about to end have ended. 0 if the server does not answer."""
    own = _own_session_count(socket_dir)
    give_up = time.monotonic() + SESSION_END_TIMEOUT_SECONDS
    try:
        with closing(connect_as_superuser(socket_dir)) as conn:
            conn.execute("SET statement_timeout = '5s'")
            while True:
                row = conn.execute(_COUNT_OTHER_SESSIONS).fetchone()
                left = (row[0] if row else 0) - own
                if left <= 0 or time.monotonic() > give_up:
                    return max(0, left)
                time.sleep(SESSION_POLL_SECONDS)
    except psycopg.Error:
        return 0


def _own_session_count(socket_dir: Path) -> int:
    """How many sessions this process has: sockets whose other end is the server's."""
    theirs = os.fsencode(socket_dir / f".s.PGSQL.{SOCKET_PORT}")
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.fstat(int(name))
            if not stat.S_ISSOCK(status.st_mode):  # a copy of a lock's descriptor would keep the lock
                continue
            with socket.socket(fileno=os.dup(int(name))) as end:
                if end.family == socket.AF_UNIX and os.fsencode(end.getpeername()) == theirs:
                    found.add(status.st_ino)
        except OSError:  # not connected, or closed meanwhile
            continue
    return len(found)
