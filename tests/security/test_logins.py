"""The fixtures themselves: each login is who it should be, and a host runs as `worker`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.errors import InsufficientPrivilege
from support.cluster import Cluster, Master
from support.logins import DIRECT_ONLY, LOGINS, LoginDatabase

#: What each login may do first: read the migrations, read jobs, change a queue.
MAY = {
    "stranger": (False, False, False),
    "web": (True, False, False),
    "viewer": (True, True, False),
    "auditor": (True, True, False),
    "operator": (True, True, True),
    "worker": (True, True, True),
    "owner": (True, True, True),
}


def _allowed(conn: psycopg.Connection[Any], statement: str) -> bool:
    try:
        conn.execute(statement.encode())
    except InsufficientPrivilege:
        return False
    return True


def test_each_login_has_the_rights_of_its_role_and_no_others(login_dsn: Callable[[str], str]) -> None:
    for login in LOGINS:
        with psycopg.connect(login_dsn(login), autocommit=True, prepare_threshold=None) as conn:
            row = conn.execute(
                "SELECT session_user, current_user, rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user"
            ).fetchone()
            assert row == (login, login, False)
            assert MAY[login] == (
                _allowed(conn, "SELECT FROM pgworkers.migration LIMIT 1"),
                _allowed(conn, "SELECT FROM pgworkers.job LIMIT 1"),
                _allowed(conn, "UPDATE pgworkers.queue SET paused = paused WHERE false"),
            )


def test_a_host_that_runs_as_worker_executes_what_web_enqueues(
    running_host: Master, cluster: Cluster, web: psycopg.Connection[Any]
) -> None:
    row = web.execute("SELECT (pgworkers.enqueue('work', '{\"value\": 7}')).id").fetchone()
    assert row is not None
    assert cluster.until(row[0], "succeeded")["result"] == 7


@DIRECT_ONLY
def test_the_host_has_only_sessions_of_worker(
    running_host: Master, cluster: Cluster, database: LoginDatabase, way: str
) -> None:
    found = cluster.db.execute(
        "SELECT DISTINCT usename FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
        " AND application_name NOT LIKE 'test%%'",
        [database.name],
    ).fetchall()
    assert found == [("worker",)], running_host.log()
