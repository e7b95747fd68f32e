"""Servers with the roles of `pgworkers migrate roles` and a login for each role, direct and through PgBouncer.

One server per Postgres version and pytest process, started when a test first asks for it. The roles belong to the
whole server, so these servers are not the one that the other tests share.
"""

from __future__ import annotations

import functools
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support import leftover_processes
from support.pooler import BOUNCER, Pooler
from support.server import Server, migrated, run_server

from pgworkers.embedded import binaries
from pgworkers.postgres import migrate

SCHEMA = "pgworkers"
#: Login -> the role that it is a member of. `stranger` has what every login has: CONNECT.
LOGINS: dict[str, str | None] = {
    "stranger": None,
    "web": "pgworkers_enqueue",
    "viewer": "pgworkers_viewer",
    "auditor": "pgworkers_payload",
    "operator": "pgworkers_operator",
    "worker": "pgworkers_worker",
    "owner": "pgworkers_owner",
}
DIRECT_ONLY = pytest.mark.parametrize("way", ["direct"], indirect=True)
POOLED_ONLY = pytest.mark.parametrize("way", ["pooled"], indirect=True)
OLDEST_ONLY = pytest.mark.parametrize("age", ["oldest"], indirect=True)
NEWEST_ONLY = pytest.mark.parametrize("age", ["newest"], indirect=True)
#: Sessions of the pooler per login and database: more than one, so that two transactions can run at once.
POOL_SIZE = 4


@functools.cache
def installed() -> dict[str, Path]:
    """The oldest and the newest Postgres programs of this machine."""
    found: dict[int, Path] = {}
    for directory in binaries.candidate_directories(None):
        if (directory / "initdb").is_file():
            said = subprocess.run([directory / "postgres", "--version"], capture_output=True, check=True)
            found.setdefault(binaries.major_version(said.stdout.decode().split()[2]), directory)
    assert found, "no Postgres programs were found; scripts/setup dev installs them"
    return {"oldest": found[min(found)], "newest": found[max(found)]}


class LoginServer:
    """A running server with the roles and the logins, a migrated template, and a PgBouncer in front."""

    def __init__(self, home: Path, run: str, bindir: Path, cleanup: ExitStack) -> None:
        self.server: Server = cleanup.enter_context(run_server(home, run, bindir, None))
        self.template = self.server.create()
        migrated(self.server.dsn(self.template), SCHEMA)
        with psycopg.connect(self.server.dsn(self.template), autocommit=True) as conn:
            conn.execute(migrate.render_roles(SCHEMA).encode())
            for login, role in LOGINS.items():
                conn.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(login)))
                if role is not None:
                    conn.execute(
                        sql.SQL("GRANT {} TO {}").format(sql.Identifier(role), sql.Identifier(login))
                    )
        self._home, self._cleanup = home, cleanup
        self._pooler: Pooler | None = None

    def pooled(self) -> str:
        """The address of the PgBouncer, which is started when it is first asked for."""
        if self._pooler is None:
            assert BOUNCER is not None
            self._pooler = Pooler(
                self.server.admin, self._home.with_name(f"{self._home.name}-bouncer"), POOL_SIZE, [*LOGINS]
            )
            self._pooler.start()
            self._cleanup.callback(self._pooler.stop)
            leftover_processes.SPARED.add(self._pooler.pid)
        return self._pooler.address

    def disconnect_pooler(self, database: str) -> None:
        """End the sessions that the pooler keeps for a database that is about to be dropped."""
        if self._pooler is not None:
            self._pooler.disconnect(database)

    def reconnect_pooler(self, database: str) -> None:
        """Have the pooler open new sessions for a database."""
        if self._pooler is not None:
            self._pooler.reconnect(database)


class LoginDatabase:
    """A migrated database of one test, and how each login reaches it."""

    def __init__(self, host: LoginServer, name: str) -> None:
        self.name, self._host = name, host
        self.admin = host.server.dsn(name)

    def dsn(self, login: str, way: str = "direct") -> str:
        """The address of this database for a login; `way` is "direct" or "pooled"."""
        assert login in LOGINS
        address = self._host.pooled() if way == "pooled" else self._host.server.admin
        return make_conninfo(address, dbname=self.name, user=login)

    def connect(self, login: str, way: str = "direct", **options: Any) -> psycopg.Connection[Any]:
        """An autocommit session as a login; the caller closes it."""
        conn: psycopg.Connection[Any] = psycopg.connect(
            self.dsn(login, way), autocommit=True, application_name="test", **options
        )
        conn.prepare_threshold = None  # through the pooler the next statement may meet another session
        return conn

    def reconnect_pooler(self) -> None:
        """Have the pooler open new sessions, which begin with the settings that the logins have now."""
        self._host.reconnect_pooler(self.name)


class LoginServers:
    """The servers of this pytest process, by "oldest" and "newest"."""

    def __init__(self, root: Path, run: str) -> None:
        self._root, self._run = root, run
        self._started: dict[str, LoginServer] = {}
        self._cleanup = ExitStack()

    def __getitem__(self, age: str) -> LoginServer:
        if age not in self._started:
            home = self._root / leftover_processes.LOGIN_SERVER.format(age)
            self._started[age] = LoginServer(home, f"{age}_{self._run}", installed()[age], self._cleanup)
        return self._started[age]

    def close(self) -> None:
        self._cleanup.close()
