"""PgBouncer in transaction mode between us and Postgres."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.command import Command
from support.tree import Forest, wait_for

from pgworkers import App

BOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
pytestmark = pytest.mark.skipif(
    BOUNCER is None, reason="NOT TESTED: pgbouncer is not installed (apt-get install pgbouncer)"
)


@pytest.fixture
def pooled(dsn: str, tmp_path: Path) -> Iterator[str]:
    """The test's database through a pooler of its own."""
    parts = conninfo_to_dict(dsn)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = tmp_path / "bouncer"
    home.mkdir()
    config = home / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = host={parts['host']} user={parts['user']}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        "pool_mode = transaction\ndefault_pool_size = 2\nserver_idle_timeout = 5\n"
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
    name = next(
        name for name in ("postgres", "nobody") if name in {entry.pw_name for entry in pwd.getpwall()}
    )
    os.chown(home, pwd.getpwnam(name).pw_uid, -1)
    return name


def _answers(address: str) -> bool:
    try:
        psycopg.connect(address, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_master_behind_a_pooler_is_refused_and_told_what_to_do(forest: Forest, pooled: str) -> None:
    master = forest.start(wait=False, dsn=pooled)
    assert master.wait(30) == 2, master.log()
    assert "PGWORKERS_DIRECT_DSN" in master.log()


def test_with_a_direct_address_the_master_works_and_enqueuers_use_the_pooler(
    forest: Forest, pooled: str
) -> None:
    forest.start(dsn=pooled, PGWORKERS_DIRECT_DSN=forest.dsn)
    app = App(dsn=pooled)
    app.queue("default")

    @app.task
    def breathe(seconds: float = 0.01) -> str:
        return "not here"

    try:
        jobs = [breathe.enqueue() for _ in range(20)]
        assert {job.result(timeout=30) for job in jobs} == {"breathed"}
        assert app.enqueue_many(breathe.prepare() for _ in range(200)) == 200
        forest.until_all_ended()
    finally:
        app.close()
    assert forest.counts() == {"succeeded": 220}


def test_the_doctor_sees_a_pooler_and_the_way_past_it(pooled: str, dsn: str, tmp_path: Path) -> None:
    cli = Command(tmp_path, PGWORKERS_DSN=pooled)
    through = {row["check"]: row for row in cli("doctor", "-o", "json", code=None).json()}
    assert through["pooler"]["level"] == "fail"
    assert "PGWORKERS_DIRECT_DSN" in through["pooler"]["fix"][0]
    past = {row["check"]: row for row in cli("doctor", "-o", "json", PGWORKERS_DIRECT_DSN=dsn).json()}
    assert (past["pooler"]["level"], past["notify"]["level"]) == ("ok", "ok")
