"""A PgBouncer in transaction mode in front of a server of the tests."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.tree import wait_for

BOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
MISSING = "NOT TESTED: pgbouncer is not installed (apt-get install pgbouncer)"


@contextmanager
def pooling(dsn: str, home: Path, size: int = 2) -> Iterator[str]:
    """The same address through a pooler of its own; each database has `size` sessions at the server."""
    parts = conninfo_to_dict(dsn)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home.mkdir()
    config = home / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = host={parts['host']} user={parts['user']}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"pool_mode = transaction\ndefault_pool_size = {size}\nserver_idle_timeout = 5\nmax_client_conn = 500\n"
    )
    account = _account(home)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([str(BOUNCER), str(config)], stdout=log, stderr=log, user=account)
    address = make_conninfo(host="127.0.0.1", port=port, user=parts["user"], dbname=parts["dbname"])
    try:
        wait_for(lambda: _answers(address), what=f"pgbouncer: {(home / 'log').read_text()}")
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(10)


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
