"""A PgBouncer in transaction mode in front of a server of the tests."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.cluster import wait_for

BOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
MISSING = "NOT TESTED: pgbouncer is not installed (apt-get install pgbouncer)"


class Pooler:
    """One PgBouncer; each database has `size` sessions at the server, of the server's superuser, or of each of `logins`.

    `extra`: more lines of its configuration.
    """

    def __init__(
        self, dsn: str, home: Path, size: int = 2, logins: Sequence[str] = (), extra: Sequence[str] = ()
    ) -> None:
        parts = conninfo_to_dict(dsn)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        home.mkdir()
        self._home, self._config = home, home / "pgbouncer.ini"
        forced, auth = f" user={parts['user']}", "auth_type = any"
        if logins:  # each client has its own user at the server, too
            (home / "users").write_text("".join(f'"{name}" ""\n' for name in [*logins, parts["user"]]))
            forced, auth = "", f"auth_type = trust\nauth_file = {home / 'users'}"
        self._config.write_text(
            f"[databases]\n* = host={parts['host']}{forced}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n{auth}\n"
            f"admin_users = {parts['user']}\npool_mode = transaction\ndefault_pool_size = {size}\n"
            "server_idle_timeout = 5\nmax_client_conn = 500\n" + "".join(f"{line}\n" for line in extra)
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.address = make_conninfo(host="127.0.0.1", port=port, user=parts["user"], dbname=parts["dbname"])

    def start(self) -> None:
        account = _account(self._home)
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(BOUNCER), str(self._config)], stdout=log, stderr=log, user=account
            )
        wait_for(
            lambda: _answers(self.address),
            what=f"pgbouncer: {(self._home / 'log').read_text(errors='replace')}",
        )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def disconnect(self, database: str) -> None:
        """Forget a database and end the sessions that the pooler keeps for it."""
        with psycopg.connect(self.address, dbname="pgbouncer", autocommit=True) as console:
            console.execute(sql.SQL("KILL {}").format(sql.Identifier(database)))

    def reconnect(self, database: str) -> None:
        """Replace the sessions that the pooler keeps for a database, each as soon as it is free."""
        with psycopg.connect(self.address, dbname="pgbouncer", autocommit=True) as console:
            console.execute(sql.SQL("RECONNECT {}").format(sql.Identifier(database)))

    def stop(self, number: int = signal.SIGINT) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:  # politely asked, it waits for clients that may never go
                self._process.kill()
                self._process.wait(10)
                raise

    def command(self, words: LiteralString) -> None:
        """On the console of the pooler."""
        with psycopg.connect(self.address, dbname="pgbouncer", autocommit=True) as console:
            console.execute(words)


@contextmanager
def pooling(dsn: str, home: Path, size: int = 2, extra: Sequence[str] = ()) -> Iterator[str]:
    """The same address through a pooler of its own."""
    pooler = Pooler(dsn, home, size, extra=extra)
    try:
        pooler.start()
        yield pooler.address
    finally:
        pooler.stop()


def require_bouncer() -> None:
    """Skip a test that needs PgBouncer where there is none."""
    if BOUNCER is None:
        pytest.skip(MISSING)


def bouncer_version() -> tuple[int, int]:
    """Version of the installed PgBouncer; (0, 0): none is installed."""
    if BOUNCER is None:
        return 0, 0
    said = subprocess.run([BOUNCER, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"PgBouncer (\d+)\.(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])


def _account(home: Path) -> str | None:
    """PgBouncer refuses to run as root; the server's own account can reach its socket."""
    if os.getuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    name = next(name for name in ("postgres", "nobody") if name in known)
    os.chown(home, pwd.getpwnam(name).pw_uid, -1)
    return name


def _answers(address: str) -> bool:
    try:
        psycopg.connect(address, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
