"""What is inside: the data directory as initdb makes it, and the one database we put there."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from pgworkers.postgres import embedded_account as accounts
from pgworkers.postgres.embedded_account import Account, NoServer
from pgworkers.postgres.embedded_binaries import Binaries, major
from pgworkers.postgres.embedded_place import PORT, Place

DATABASE = "pgworkers"
SUPERUSER = "postgres"
#: Lines of initdb, and of the server that it starts, that say what went wrong; and how much of them is told.
_TELLING = re.compile(r"\b(?:error|hint|detail|FATAL|PANIC|ERROR|HINT|DETAIL): .*")
MOST = 500


def initialise(place: Place, programs: Binaries, account: Account, *, sync: bool) -> None:
    """initdb into a directory beside, then rename: data is either whole or not there."""
    fresh = place.root / f"data.new-{os.getpid()}"
    accounts.make_private(fresh, account)
    argv: list[str | Path] = [programs.program("initdb"), "--pgdata", fresh, "--username", SUPERUSER]
    argv += ["--auth=trust", "--encoding=UTF8", "--locale=C"]
    if not sync:
        argv.append("--no-sync")
    with tempfile.TemporaryFile() as out:
        if accounts.run(account, argv, out=out.fileno(), timeout=600) is None:
            out.seek(0)
            said = out.read().decode(errors="replace")
            shutil.rmtree(fresh, ignore_errors=True)
            raise NoServer(f"the embedded Postgres could not make its data in {place.root}: {reason(said)}")
    fresh.rename(place.data)


def reason(said: str) -> str:
    """Why initdb failed, of all that it said: it tells first what it is about to do, and last what it tidies up."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [found[0] for line in lines if (found := _TELLING.search(line))] or lines[-3:]
    return "; ".join(telling)[-MOST:] or "initdb did not say why"


def address(socket_dir: Path) -> str:
    """The address of the server's database, complete, so that no PG* variable can change its meaning."""
    return f"postgresql://{SUPERUSER}@/{DATABASE}?host={quote(str(socket_dir), safe='')}&port={PORT}"


def version(place: Place) -> int | None:
    try:
        return major((place.data / "PG_VERSION").read_text())
    except FileNotFoundError:
        return None


def enter(socket_dir: Path) -> psycopg.Connection[tuple[Any, ...]]:
    """A session of the superuser, beside our database: it need not be there yet."""
    return psycopg.connect(
        host=str(socket_dir),
        port=PORT,
        user=SUPERUSER,
        dbname="postgres",
        autocommit=True,
        connect_timeout=10,
    )


def make_database(socket_dir: Path) -> None:
    """Create our database unless it is there; under the start lock, so nobody else does so meanwhile."""
    try:
        with closing(enter(socket_dir)) as conn:
            there = conn.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
            if there is None:
                conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
    except psycopg.Error as error:
        raise NoServer(f"the embedded Postgres runs but does not answer: {error}") from None
