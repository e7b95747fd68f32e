"""The row "low": what the doctor says of root, of core dumps and of a way to the database that is not encrypted."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.cluster import Cluster, Master, wait_for
from support.command import ForkedCommand
from support.logins import NEWEST_ONLY, LoginDatabase, installed
from support.server import OwnServer

from pgworkers.doctor import server
from pgworkers.doctor.server import ConnectionSecurity

#: A loopback address that no other server of the tests listens on, and that initdb's pg_hba.conf does not mention.
ADDRESS = "127.3.9.11"
OPENSSL = ["openssl", "req", "-new", "-x509", "-days", "2", "-nodes", "-subj", "/CN=db.test"]
OPENSSL += ["-addext", "subjectAltName=DNS:db.test"]


def findings(cluster: Cluster, dsn: str) -> dict[str, dict[str, Any]]:
    cli = ForkedCommand(cluster.directory, PGWORKERS_DSN=dsn, APP_QUEUES="default:2")
    rows = cli("doctor", "-o", "json", code=None).json()
    return {row["check"]: row for row in rows}


@NEWEST_ONLY
def test_root_is_named_with_its_fix(
    age: str, running_host: Master, cluster: Cluster, database: LoginDatabase
) -> None:
    wait_for(lambda: "running: host" in running_host.log())
    found = findings(cluster, database.dsn("worker"))["account"]
    if os.geteuid() == 0:
        assert (found["level"], f"pid {running_host.pid}" in found["what"]) == ("warn", True)
        assert "export systemd --user" in found["fix"][0]
    else:
        assert found["level"] == "ok"


@NEWEST_ONLY
def test_a_core_limit_is_judged_as_the_kernel_has_it(
    age: str, running_host: Master, cluster: Cluster, database: LoginDatabase
) -> None:
    """Whatever the host set for itself at its start, a limit that is changed later is seen."""
    wait_for(lambda: "running: host" in running_host.log())
    hard = resource.prlimit(running_host.pid, resource.RLIMIT_CORE)[1]
    resource.prlimit(running_host.pid, resource.RLIMIT_CORE, (0, hard))
    assert findings(cluster, database.dsn("worker"))["core dumps"]["level"] == "ok"
    try:
        resource.prlimit(running_host.pid, resource.RLIMIT_CORE, (1 << 20, max(hard, 1 << 20)))
    except PermissionError:
        pytest.skip("NOT TESTED: the hard limit of core dumps is 0 and only root may raise it")
    found = findings(cluster, database.dsn("worker"))["core dumps"]
    assert (found["level"], found["fix"][0].split()[0]) == ("warn", "LimitCORE=0")


@pytest.fixture
def tls_dsn(tmp_path: Path) -> Iterator[str]:
    """A server with a certificate of its own authority, by TCP. The embedded programs are built without TLS."""
    own = OwnServer(tmp_path / "own", installed()["oldest"], listen_addresses=ADDRESS)
    try:
        data = own.embedded.status().data
        subprocess.run(
            [*OPENSSL, "-keyout", "server.key", "-out", "server.crt"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
        for name in ("server.key", "server.crt"):
            shutil.copy(tmp_path / name, data / name)
            os.chown(data / name, data.stat().st_uid, data.stat().st_gid)
            (data / name).chmod(0o600)
        with (data / "pg_hba.conf").open("a") as rules:
            rules.write(f"\nhost all all {ADDRESS}/8 trust\n")
        with psycopg.connect(own.dsn, autocommit=True) as conn:
            try:
                conn.execute("ALTER SYSTEM SET ssl = on")
            except psycopg.Error as why:
                pytest.skip(f"NOT TESTED: {why}")
        own.stop()
        own.start()
        yield make_conninfo(own.dsn, host="db.test", hostaddr=ADDRESS)
    finally:
        own.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="NOT TESTED: openssl is not installed")
def test_the_way_to_the_server_is_read_from_the_session(tls_dsn: str, tmp_path: Path) -> None:
    root = str(tmp_path / "server.crt")
    for options, link in (
        ({"sslmode": "disable"}, ConnectionSecurity(ADDRESS, False, "disable")),
        ({"sslmode": "require"}, ConnectionSecurity(ADDRESS, True, "require")),
        ({"sslmode": "verify-full", "sslrootcert": root}, ConnectionSecurity(ADDRESS, True, "verify-full")),
    ):
        with psycopg.connect(make_conninfo(tls_dsn, **options)) as conn:
            found = server.connection_security(conn)
        assert found == link
        far = ConnectionSecurity("10.0.0.5", found.is_encrypted, found.sslmode)
        assert server.check_encryption([far])[0].level == ("ok" if link.sslmode == "verify-full" else "warn")
        assert server.check_encryption([found])[0].level == "ok", "a loopback address needs none"
    with pytest.raises(psycopg.OperationalError):  # the broken twin: another name is not verified
        psycopg.connect(make_conninfo(tls_dsn, host="other.test", sslmode="verify-full", sslrootcert=root))


def test_a_socket_needs_no_tls(dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        assert server.connection_security(conn).is_local
        assert not server.connection_security(conn).is_encrypted
