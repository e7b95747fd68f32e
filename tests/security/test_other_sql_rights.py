"""Side doors: what Postgres lets any login do, tried as each login against the queue's objects and a living host."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import InsufficientPrivilege
from support.attacked_host import not_refused, serves
from support.cluster import Cluster, Master, wait_for
from support.logins import LOGINS, LoginDatabase

LOCK_MODES = (
    "ACCESS SHARE",
    "ROW SHARE",
    "ROW EXCLUSIVE",
    "SHARE UPDATE EXCLUSIVE",
    "SHARE",
    "SHARE ROW EXCLUSIVE",
    "EXCLUSIVE",
    "ACCESS EXCLUSIVE",
)
ROW_LOCKS = ("FOR KEY SHARE", "FOR SHARE", "FOR NO KEY UPDATE", "FOR UPDATE")
#: Logins that may change nothing by themselves.
POWERLESS = ("stranger", "web", "viewer")


def relations(admin: psycopg.Connection[Any]) -> list[str]:
    rows = admin.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'pgworkers'::regnamespace AND relkind IN ('r', 'p')"
        " AND NOT relispartition ORDER BY 1"
    ).fetchall()
    return [row[0] for row in rows]


def allowed(conn: psycopg.Connection[Any], statement: sql.Composed | bytes) -> bool:
    """Does the statement get past its privileges? Whatever it did is rolled back."""
    try:
        with conn.transaction(force_rollback=True):
            conn.execute("SET LOCAL lock_timeout = '5s'")
            conn.execute(statement)
    except InsufficientPrivilege:
        return False
    except psycopg.errors.Error:
        return True
    return True


def test_a_read_only_role_can_lock_nothing_that_a_host_needs(
    database: LoginDatabase, admin: psycopg.Connection[Any], way: str
) -> None:
    """LOCK TABLE and row locks. ACCESS SHARE is what reading takes; it stops only DDL."""
    tables = relations(admin)
    for login in POWERLESS:
        with database.connect(login, way) as conn:
            for name in tables:
                table = sql.Identifier("pgworkers", name)
                modes = [
                    mode
                    for mode in LOCK_MODES
                    if allowed(conn, sql.SQL("LOCK TABLE {} IN {} MODE NOWAIT").format(table, sql.SQL(mode)))
                ]
                assert set(modes) <= {"ACCESS SHARE"}, (login, name, modes)
                rows = [
                    lock
                    for lock in ROW_LOCKS
                    if allowed(conn, sql.SQL("SELECT FROM {} {}").format(table, sql.SQL(lock)))
                ]
                assert rows == [], (login, name, rows)


def test_no_login_becomes_another(database: LoginDatabase, way: str) -> None:
    roles = {f"pgworkers_{role}" for role in ("owner", "worker", "operator", "viewer", "enqueue")}
    for login in LOGINS.keys() - {"owner"}:
        others = (roles - {LOGINS[login]}) | (set(LOGINS) - {login}) | {"postgres"}
        with database.connect(login, way) as conn:
            for words, errors in (
                ("SET ROLE {}", (InsufficientPrivilege,)),
                ("SET SESSION AUTHORIZATION {}", (InsufficientPrivilege,)),
                ("GRANT {} TO stranger", (InsufficientPrivilege,)),
                ("DROP ROLE {}", (InsufficientPrivilege, psycopg.errors.ObjectInUse)),
                ("ALTER ROLE {} SET search_path = public", (InsufficientPrivilege,)),
            ):
                statements = [words.format(other) for other in sorted(others)]
                assert not_refused(conn, statements, *errors) == [], login


def test_no_login_ends_a_session_of_a_host_or_reads_its_statements(
    running_host: Master, cluster: Cluster, database: LoginDatabase, web: psycopg.Connection[Any], way: str
) -> None:
    wait_for(cluster.leader)
    hosts = cluster.db.execute("SELECT pid FROM pg_stat_activity WHERE usename = 'worker'").fetchall()
    assert len(hosts) >= 3
    for login in ("stranger", "web", "viewer", "operator"):
        with database.connect(login, way) as conn:
            statements = [
                f"SELECT {function}({pid})"
                for (pid,) in hosts
                for function in ("pg_terminate_backend", "pg_cancel_backend")
            ]
            assert not_refused(conn, statements, InsufficientPrivilege) == [], login
            seen = conn.execute(
                "SELECT DISTINCT query FROM pg_stat_activity WHERE usename = 'worker' AND query <> ''"
            ).fetchall()
            assert seen in ([], [("<insufficient privilege>",)])
    serves(cluster, web)


def test_the_schema_is_closed_to_a_login_with_only_connect(
    stranger: psycopg.Connection[Any], admin: psycopg.Connection[Any]
) -> None:
    """By name and by number: no right of PUBLIC on anything of ours."""
    open_objects = admin.execute(
        "SELECT 'function ' || p.proname FROM pg_proc p WHERE p.pronamespace = 'pgworkers'::regnamespace"
        " AND has_function_privilege('stranger', p.oid, 'EXECUTE')"
        " UNION ALL SELECT 'table ' || c.relname FROM pg_class c WHERE c.relnamespace = 'pgworkers'::regnamespace"
        " AND c.relkind IN ('r', 'p', 'v') AND has_table_privilege('stranger', c.oid, 'SELECT, INSERT, UPDATE, DELETE,"
        " TRUNCATE, REFERENCES, TRIGGER')"
        " UNION ALL SELECT 'sequence ' || c.relname FROM pg_class c WHERE c.relnamespace = 'pgworkers'::regnamespace"
        " AND CASE c.relkind WHEN 'S' THEN has_sequence_privilege('stranger', c.oid, 'USAGE, SELECT, UPDATE') END"
    ).fetchall()
    # A trigger function cannot be called, and needs no right to fire.
    callable_ = [row[0] for row in open_objects]
    assert callable_ == [], callable_
    for statement in (
        "SELECT * FROM pgworkers.job",
        "SELECT pgworkers.enqueue('work')",
        "CREATE TABLE pgworkers.mine ()",
        "CREATE TEMP TABLE mine (state pgworkers.job_state)",
        "COMMENT ON SCHEMA pgworkers IS 'x'",
        "CREATE SCHEMA mine",
        "CREATE EVENT TRIGGER mine ON ddl_command_end EXECUTE FUNCTION pg_catalog.lower()",
        "ALTER DATABASE {} SET search_path = public",
        "ALTER SYSTEM SET max_connections = 1",
        "COPY (SELECT 1) TO PROGRAM 'true'",
        "CREATE PUBLICATION mine FOR ALL TABLES",
        "SELECT pg_catalog.pg_read_file('postgresql.conf')",
        "SELECT pg_catalog.pg_reload_conf()",
    ):
        database = sql.Identifier(stranger.info.dbname).as_string(None)
        with pytest.raises(psycopg.Error) as refused:
            stranger.execute(statement.format(database).encode())
        assert isinstance(
            refused.value,
            InsufficientPrivilege | psycopg.errors.FeatureNotSupported | psycopg.errors.UndefinedFunction,
        ), statement


#: What a login may set for itself, and every later session of it has.
OWN_SETTINGS = (
    ("search_path", "pg_temp, public"),
    ("DateStyle", "German"),
    ("IntervalStyle", "sql_standard"),
    ("TimeZone", "Antarctica/Troll"),
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_read_only", "off"),
    ("bytea_output", "escape"),
    ("extra_float_digits", "-15"),
    ("lock_timeout", "1ms"),
    ("jit_above_cost", "0"),
    ("row_security", "off"),
    ("enable_indexscan", "off"),
    ("client_min_messages", "error"),
)


def test_settings_of_its_own_login_hurt_only_the_login(
    running_host: Master, cluster: Cluster, database: LoginDatabase, admin: psycopg.Connection[Any], way: str
) -> None:
    try:
        with database.connect("web") as conn:
            for name, value in OWN_SETTINGS:
                conn.execute(
                    sql.SQL("ALTER ROLE web SET {} = {}").format(sql.Identifier(name), sql.Literal(value))
                )
        database.reconnect_pooler()  # only a new session has the settings
        with database.connect("web", way) as conn:
            for _ in range(5):
                serves(cluster, conn)
    finally:
        admin.execute("ALTER ROLE web RESET ALL")
        database.reconnect_pooler()
    with database.connect("web", way) as conn:
        serves(cluster, conn)
    assert "Traceback" not in running_host.log()


def test_temporary_objects_and_large_objects_of_web_reach_nothing(
    running_host: Master, cluster: Cluster, web: psycopg.Connection[Any]
) -> None:
    """In one transaction, so that a pooler keeps the session."""
    with web.transaction(force_rollback=True):
        web.execute("CREATE TEMP TABLE job (LIKE pg_catalog.pg_class)")
        web.execute("CREATE TEMP TABLE task (name text, queue text)")
        web.execute("CREATE TEMP TABLE queue (name text)")
        web.execute(
            "CREATE FUNCTION pg_temp.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT 'infinity'::timestamptz $$"
        )
        web.execute(
            "CREATE FUNCTION pg_temp.pg_notify(text, text) RETURNS void LANGUAGE sql AS $$ SELECT 1/0 $$"
        )
        web.execute("SET LOCAL search_path = pg_temp, pg_catalog")
        assert web.execute("SELECT pg_catalog.lo_from_bytea(0, 'x')").fetchone()
        row = web.execute("SELECT (pgworkers.enqueue('work', '{}', unique_key => 'k')).id").fetchone()
        assert row is not None
        assert web.execute("SELECT count(*) FROM pg_temp.job").fetchone() == (0,)
    serves(cluster, web)


def test_a_transaction_of_web_that_stays_open_delays_no_other_job(
    running_host: Master, cluster: Cluster, database: LoginDatabase, web: psycopg.Connection[Any], way: str
) -> None:
    """Uncommitted jobs, a held unique key and a sleep inside the transaction."""
    with database.connect("web", way) as other, other.transaction(force_rollback=True):
        other.execute("SELECT pgworkers.enqueue('work', '{}', unique_key => 'held')")
        other.execute("SELECT pgworkers.enqueue('narrow', '{}', concurrency_key => 'held')")
        other.execute(
            "SELECT pgworkers.enqueue('tenant', '{}', concurrency_key => 'held') FROM generate_series(1, 50)"
        )
        for _ in range(3):
            serves(cluster, web)
        row = web.execute(
            "SELECT (pgworkers.enqueue('tenant', '{}', concurrency_key => 'held')).id"
        ).fetchone()
        assert row is not None
        cluster.until(row[0], "succeeded")
        row = web.execute("SELECT (pgworkers.enqueue('narrow')).id").fetchone()
        assert row is not None
        cluster.until(row[0], "succeeded")
        # A later job with the same key waits for that transaction, for as long as its own timeout
        # (docs/explanation/security.md).
        with web.transaction(force_rollback=True):
            web.execute("SET LOCAL lock_timeout = '300ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                web.execute("SELECT pgworkers.enqueue('work', '{}', unique_key => 'held')")
    serves(cluster, web)
