"""S-12, S-13: `migrate roles` hands over everything of ours and nothing of others, and no schema of others can be named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.command import ForkedCommand
from support.logins import LoginServers

from pgworkers.errors import UsageError
from pgworkers.postgres import migrate
from pgworkers.settings import load_settings

SCHEMA = "own_jobs"
ROLES = [f"{SCHEMA}_{role}" for role in ("owner", "worker", "operator", "viewer", "payload", "enqueue")]
OWNERS = """
SELECT c.relname, c.relowner::regrole::text FROM pg_class c WHERE c.relnamespace = 'own_jobs'::regnamespace
UNION ALL
SELECT t.typname, t.typowner::regrole::text FROM pg_type t WHERE t.typnamespace = 'own_jobs'::regnamespace
UNION ALL
SELECT p.proname, p.proowner::regrole::text FROM pg_proc p WHERE p.pronamespace = 'own_jobs'::regnamespace
UNION ALL
SELECT 'schema', n.nspowner::regrole::text FROM pg_namespace n WHERE n.nspname = 'own_jobs'
"""


@pytest.fixture
def bare(login_servers: LoginServers, age: str, way: str) -> Iterator[psycopg.Connection[Any]]:
    """A superuser's session in a database with our schema under another name; the roles are gone afterwards."""
    host = login_servers[age]
    name = host.server.create()
    address = host.pooled() if way == "pooled" else host.server.admin
    try:
        with psycopg.connect(address, dbname=name, autocommit=True, prepare_threshold=None) as conn:
            migrate.up(conn, SCHEMA)
            yield conn
    finally:
        host.disconnect_pooler(name)
        host.server.drop(name)
        with psycopg.connect(host.server.admin, autocommit=True) as admin:
            for role in ROLES:
                admin.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(role)))


def test_s12_all_our_objects_belong_to_the_owner(bare: psycopg.Connection[Any]) -> None:
    bare.execute(migrate.render_roles(SCHEMA).encode())
    left = [row for row in bare.execute(OWNERS).fetchall() if row[1] != f"{SCHEMA}_owner"]
    assert left == []


@pytest.fixture
def plain(login_servers: LoginServers, age: str) -> Iterator[psycopg.Connection[Any]]:
    """A login that is not a superuser, may create roles and owns its database and our schema in it."""
    server = login_servers[age].server
    name = server.create()
    with psycopg.connect(server.admin, autocommit=True) as admin:
        admin.execute("CREATE ROLE own_plain LOGIN CREATEROLE PASSWORD 'own_plain'")
        admin.execute(sql.SQL("ALTER DATABASE {} OWNER TO own_plain").format(sql.Identifier(name)))
        dsn = make_conninfo(server.dsn(name), user="own_plain", password="own_plain")
        try:
            with psycopg.connect(dsn, autocommit=True) as conn:
                migrate.up(conn, SCHEMA)
                yield conn
        finally:
            server.drop(name)
            for role in (*ROLES, "own_plain"):
                admin.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(role)))


def test_s12_a_login_that_may_create_roles_and_owns_the_schema_can_run_the_script(
    plain: psycopg.Connection[Any],
) -> None:
    warned: list[str] = []
    plain.add_notice_handler(lambda note: warned.append(note.message_primary or ""))
    for _ in range(2):
        plain.execute(migrate.render_roles(SCHEMA).encode())
    left = [row for row in plain.execute(OWNERS).fetchall() if row[1] != f"{SCHEMA}_owner"]
    assert left == []
    assert warned == [], "it is a member of the owner, so it is not locked out"
    assert plain.execute("SELECT count(*) FROM own_jobs.job").fetchone() == (0,)


#: The statement, and what takes the object away again.
OF_OTHERS = (
    ("CREATE TABLE own_jobs.customers (id integer)", "DROP TABLE own_jobs.customers"),
    ("CREATE VIEW own_jobs.mine AS SELECT 1 AS one", "DROP VIEW own_jobs.mine"),
    ("CREATE MATERIALIZED VIEW own_jobs.mine AS SELECT 1 AS one", "DROP MATERIALIZED VIEW own_jobs.mine"),
    ("CREATE SEQUENCE own_jobs.numbers", "DROP SEQUENCE own_jobs.numbers"),
    ("CREATE TYPE own_jobs.colour AS ENUM ('red')", "DROP TYPE own_jobs.colour"),
    ("CREATE DOMAIN own_jobs.colour AS text", "DROP DOMAIN own_jobs.colour"),
    (
        "CREATE FUNCTION own_jobs.mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "DROP FUNCTION own_jobs.mine",
    ),
)


def test_s13_nothing_of_others_is_touched(bare: psycopg.Connection[Any]) -> None:
    script = migrate.render_roles(SCHEMA).encode()
    for create, drop in OF_OTHERS:
        bare.execute(create)
        before = bare.execute(OWNERS).fetchall()
        with pytest.raises(psycopg.errors.RaiseException, match="also holds objects of others"):
            bare.execute(script)
        bare.execute("ROLLBACK")
        assert bare.execute(OWNERS).fetchall() == before, create
        bare.execute(drop)


def test_roles_of_an_older_version_are_not_put_on_a_newer_schema(bare: psycopg.Connection[Any]) -> None:
    """It would take all rights on the newer tables away."""
    bare.execute(f"INSERT INTO {SCHEMA}.migration VALUES (9999, '9999_future', 'x', 1)")
    with pytest.raises(psycopg.errors.RaiseException, match=f"the schema {SCHEMA} is newer than this script"):
        bare.execute(migrate.render_roles(SCHEMA).encode())
    bare.execute("ROLLBACK")
    bare.execute(f"DELETE FROM {SCHEMA}.migration WHERE version = 9999")


@pytest.mark.parametrize("name", ["public", "information_schema", "pg_catalog", "pg_temp", "pg_jobs"])
def test_s13_schemas_of_others_are_refused_wherever_one_can_be_named(name: str, tmp_path: Path) -> None:
    """Before any database is asked."""
    for given in ({"flags": {"schema": name}}, {"app": {"schema": name}}):
        with pytest.raises(UsageError, match="belongs to others"):
            load_settings(**given, environ={})
    with pytest.raises(UsageError, match="belongs to others"):
        load_settings(environ={"PGWORKERS_SCHEMA": name})
    for render in (migrate.render_roles, migrate.render_sql):
        with pytest.raises(UsageError, match="belongs to others"):
            render(name)
    cli = ForkedCommand(tmp_path, DATABASE_URL="host=/nowhere")
    for words in (("migrate", "up"), ("migrate", "roles"), ("migrate", "sql"), ("jobs", "list")):
        said = cli(*words, "--schema", name, code=2)
        assert "belongs to others" in said.err


def test_s13_a_migration_makes_nothing_in_a_schema_of_others(owner: psycopg.Connection[Any]) -> None:
    before = owner.execute("SELECT count(*) FROM pg_catalog.pg_class").fetchone()
    for name in ("public", "pg_jobs"):
        with pytest.raises(UsageError, match="belongs to others"):
            migrate.up(owner, name)
    assert owner.execute("SELECT count(*) FROM pg_catalog.pg_class").fetchone() == before
