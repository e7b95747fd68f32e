"""The roles of docs/reference/roles.md against a real server: each role, each table and function, each verb, as it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from database.test_search_path import TRAP
from psycopg import sql
from psycopg.errors import InsufficientPrivilege
from support.database_host import DatabaseHost
from support.server import Server

from pgworkers.job import cancel, queues, requests, requeue
from pgworkers.job.copy import copy_jobs
from pgworkers.job.enqueue import enqueue
from pgworkers.job.model import NewJob
from pgworkers.limits import concurrency
from pgworkers.postgres import migrate
from pgworkers.postgres.statements import Query, run
from pgworkers.schedule import definitions

ROLES = ("owner", "worker", "operator", "payload", "viewer", "enqueue")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "roles.md"
#: The letters of the page.
VERBS = {
    "r": "SELECT * FROM {} WHERE false",
    "c": "SELECT {first} FROM {} WHERE false",
    "i": "INSERT INTO {0} SELECT * FROM {0} WHERE false",
    "u": "UPDATE {} SET {column} = {column} WHERE false",
    "d": "DELETE FROM {} WHERE false",
}
_ROW = re.compile(r"^\| `(\w+)(\(\))?` \| (.+) \|$", re.MULTILINE)
#: GENERATED ALWAYS: an INSERT of the whole row is refused for every role.
NUMBERED = {"batch", "enqueue_grant", "operation", "request"}


def documented_rights() -> dict[str, dict[str, str]]:
    """The rights in the documented table: name -> role -> letters; functions end with ()."""
    found = {}
    for name, function, cells in _ROW.findall(PAGE.read_text()):
        letters = [cell.strip().strip("`").replace("-", "") for cell in cells.split("|")]
        found[name + function] = dict(zip(ROLES, letters, strict=True))
    return found


@pytest.fixture(scope="module")
def shared(server: Server, template: str) -> Iterator[str]:
    """A database with the roles, and a login for each."""
    name = server.create(template=template)
    with psycopg.connect(server.dsn(name), autocommit=True) as conn:
        conn.execute(migrate.render_roles("pgworkers").encode())
        conn.execute(migrate.render_roles("pgworkers").encode())  # again does no harm
        yield server.dsn(name)
    server.drop(name)
    with psycopg.connect(server.admin, autocommit=True) as conn:
        for role in ROLES:
            conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(f"pgworkers_{role}")))


@pytest.fixture
def admin(shared: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(shared, autocommit=True) as conn:
        yield conn


@pytest.fixture
def acting(shared: str, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[Any]]:
    """A session as the role of the test's parameter."""
    with psycopg.connect(shared, autocommit=True) as conn:
        become(conn, request.getfixturevalue("role"))
        yield conn


def become(conn: psycopg.Connection[Any], role: str) -> None:
    """The rights of the role and no others, also for what looks at the session's own user."""
    conn.execute(sql.SQL("SET SESSION AUTHORIZATION {}").format(sql.Identifier(f"pgworkers_{role}")))


def allowed(conn: psycopg.Connection[Any], statement: sql.Composed) -> bool:
    try:
        conn.execute(statement)
    except InsufficientPrivilege:
        return False
    except psycopg.errors.InvalidParameterValue:
        pass  # it ran, and did not like its arguments
    return True


def relations(conn: psycopg.Connection[Any]) -> list[str]:
    """Tables and views, without daily partitions: those have names of their own days."""
    rows = conn.execute(
        "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'pgworkers'::regnamespace"
        " AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition ORDER BY 1"
    ).fetchall()
    return [row[0] for row in rows]


def functions(conn: psycopg.Connection[Any]) -> dict[str, str]:
    """Name -> a call that has NULL for every argument."""
    rows = conn.execute(
        "SELECT p.proname, format('SELECT %I.%I(%s) WHERE false', 'pgworkers', p.proname,"
        " (SELECT string_agg('NULL::' || format_type(t.oid, NULL), ', ' ORDER BY t.nth)"
        "    FROM unnest(p.proargtypes) WITH ORDINALITY AS t (oid, nth)))"
        " FROM pg_proc p WHERE p.pronamespace = 'pgworkers'::regnamespace"
        " AND p.prorettype <> 'trigger'::regtype ORDER BY 1"
    ).fetchall()
    return dict(rows)


def test_the_page_names_everything_that_there_is(admin: psycopg.Connection[Any]) -> None:
    wanted = set(relations(admin)) | {f"{name}()" for name in functions(admin)}
    names = [
        row[0]
        for row in admin.execute("SELECT proname FROM pg_proc WHERE pronamespace = 'pgworkers'::regnamespace")
    ]
    assert len(names) == len(set(names)), (
        "two functions of one name: one line of the page cannot speak for both"
    )
    assert set(documented_rights()) == wanted, (
        "decide in pgworkers/schema/roles.sql who may use it, then run scripts/gen-roles"
    )


@pytest.mark.parametrize("role", ROLES)
def test_each_verb_on_each_table_is_allowed_or_refused_as_the_page_says(
    admin: psycopg.Connection[Any], acting: psycopg.Connection[Any], role: str
) -> None:
    page, wrong = documented_rights(), []
    views = {row[0] for row in admin.execute("SELECT viewname FROM pg_views WHERE schemaname = 'pgworkers'")}
    for name in relations(admin):
        column = admin.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND attidentity <> 'a'"
            " ORDER BY attnum DESC LIMIT 1",
            [f"pgworkers.{name}"],
        ).fetchone()
        assert column is not None
        table = sql.Identifier("pgworkers", name)
        first = admin.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum = 1",
            [f"pgworkers.{name}"],
        ).fetchone()
        assert first is not None
        for letter, text in VERBS.items():
            if name in views and letter not in "rc":
                continue  # a view for people: no role can write to it
            if letter == "c" and "r" in page[name][role]:
                continue  # all columns, and so each
            statement = sql.SQL(text).format(
                table, column=sql.Identifier(column[0]), first=sql.Identifier(first[0])
            )
            if letter == "i" and name in NUMBERED:
                statement = sql.SQL(
                    "INSERT INTO {0} OVERRIDING SYSTEM VALUE SELECT * FROM {0} WHERE false"
                ).format(table)
            if allowed(acting, statement) != (letter in page[name][role]):
                wrong.append((name, letter))
        if role != "owner" and name not in views and allowed(acting, sql.SQL("TRUNCATE {}").format(table)):
            wrong.append((name, "truncate"))
    assert wrong == []


@pytest.mark.parametrize("role", ROLES)
def test_each_function_is_allowed_or_refused_as_the_page_says(
    admin: psycopg.Connection[Any], acting: psycopg.Connection[Any], role: str
) -> None:
    page = documented_rights()
    found = {
        f"{name}()": allowed(acting, sql.SQL(call).format())  # type: ignore[arg-type]
        for name, call in functions(admin).items()
    }
    assert found == {name: page[name][role] == "x" for name in found}


@pytest.mark.parametrize("role", ROLES[1:])
def test_only_the_owner_creates_objects(acting: psycopg.Connection[Any], role: str) -> None:
    for statement in (
        "CREATE TABLE pgworkers.mine (a integer)",
        "CREATE FUNCTION pgworkers.enqueue(text) RETURNS void LANGUAGE sql AS ''",
        "DROP TABLE pgworkers.job",
        "ALTER TABLE pgworkers.job DISABLE TRIGGER ALL",
        "CREATE TRIGGER mine BEFORE INSERT ON pgworkers.job FOR EACH ROW EXECUTE FUNCTION pgworkers.notify_queue_changed()",
    ):
        with pytest.raises(InsufficientPrivilege):
            acting.execute(statement.encode())


def test_an_enqueuer_with_a_trap_in_its_path_reaches_nothing_with_the_owners_rights(
    shared: str, admin: psycopg.Connection[Any]
) -> None:
    """enqueue_plain() acts for the owner and has no search_path of its own (docs/adr/32): the attack is this role's."""
    admin.execute(TRAP.encode())
    try:
        admin.execute(
            "GRANT USAGE ON SCHEMA evil TO PUBLIC; GRANT ALL ON ALL TABLES IN SCHEMA evil TO PUBLIC"
        )
        with psycopg.connect(shared, autocommit=True) as conn:
            become(conn, "enqueue")
            conn.execute("SET search_path = evil, pg_temp, pg_catalog")
            assert str(conn.execute("SELECT now()").fetchone()).count("1970"), "the trap does not work"
            conn.execute("DELETE FROM evil.reached")
            conn.execute("SELECT pgworkers.enqueue('t', '{\"a\": 1}', 'a', unique_key => 'trapped')")
            conn.execute(
                "SELECT pgworkers.enqueue_plain('t', '{\"a\": 1}', 'a', 0::integer, 1::integer, 1::integer, false)"
            )
            assert conn.execute("SELECT what FROM evil.reached").fetchall() == []
        assert admin.execute("SELECT count(*) FROM evil.job").fetchone() == (0,)
    finally:
        admin.execute("DROP SCHEMA evil CASCADE")


# -- the verbs of the command line, of hosts, of enqueuers ----------------------------------------------------------------


WISHES: dict[str, Query[Any]] = {
    "enqueue": enqueue(NewJob(task="t", args_json="{}", queue="q")),
    "cancel": cancel.cancel(1),
    "cancel many": cancel.cancel_many([1]),
    "discard": cancel.discard(1),
    "discard many": cancel.discard_many([1]),
    "retry": requeue.requeue([1]),
    "pause": queues.pause_queue("q"),
    "scale": queues.scale_queue("q", workers=2),
    "limit": concurrency.set_limit("key", "k", 2),
    "schedule pause": definitions.pause_schedule("s"),
    "schedule remove": definitions.remove_schedule("s"),
    "suspend": requests.request_for_job(requests.RequestKind.SUSPEND, 1),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("wish", WISHES)
def test_the_verbs_of_operators(acting: psycopg.Connection[Any], role: str, wish: str) -> None:
    may = role in ("owner", "worker", "operator") or (role == "enqueue" and wish == "enqueue")
    if may:
        run(acting, "pgworkers", WISHES[wish])
    else:
        with pytest.raises(InsufficientPrivilege):
            run(acting, "pgworkers", WISHES[wish])


@pytest.mark.parametrize("role", ROLES)
def test_bulk_enqueuing_needs_more_than_the_role_enqueue(acting: psycopg.Connection[Any], role: str) -> None:
    jobs = [NewJob(task="t", args_json="{}", queue="q")]
    if role in ("owner", "worker", "operator"):
        assert copy_jobs(acting, "pgworkers", jobs) == 1
    else:
        with pytest.raises(InsufficientPrivilege):
            copy_jobs(acting, "pgworkers", jobs)


@pytest.mark.parametrize("role", ["enqueue"])
def test_an_enqueuer_sees_no_jobs_of_others(
    admin: psycopg.Connection[Any], acting: psycopg.Connection[Any], role: str
) -> None:
    theirs = run(
        admin, "pgworkers", enqueue(NewJob(task="t", args_json='{"secret": 1}', queue="q", unique_key="mine"))
    )
    with pytest.raises(psycopg.errors.NoDataFound):
        run(acting, "pgworkers", enqueue(NewJob(task="t", args_json="{}", queue="q", after=(theirs.id,))))
    made = run(acting, "pgworkers", enqueue(NewJob(task="t", args_json="{}", queue="q")))
    run(acting, "pgworkers", enqueue(NewJob(task="t", args_json="{}", queue="q", after=(made.id,))))
    with pytest.raises(InsufficientPrivilege):
        acting.execute("SELECT args FROM pgworkers.job")
    with pytest.raises(InsufficientPrivilege):
        acting.execute("SELECT pgworkers.cancel(%s)", [theirs.id])


@pytest.mark.parametrize("role", ["worker"])
def test_a_host_works_with_the_role_worker(acting: psycopg.Connection[Any], role: str) -> None:
    """Register, claim, finish, and the duties that make and drop partitions."""
    host = DatabaseHost(acting, "pgworkers")
    host.register()
    assert host.finish_job(host.enqueue_and_claim()) == "written"
    assert acting.execute("SELECT pgworkers.make_partitions(9)").fetchone() is not None
    name = acting.execute(
        "SELECT max(relname) FROM pg_class WHERE relname ~ '^history_[0-9]{8}$' AND relnamespace = 'pgworkers'::regnamespace"
    ).fetchone()
    assert name is not None
    assert acting.execute("SELECT pgworkers.drop_partition(%s)", [name[0]]).fetchone() == (True,)
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        acting.execute("SELECT pgworkers.drop_partition('job')")


def test_another_schema_has_roles_of_its_own() -> None:
    text = migrate.render_roles("jobs").replace(
        "LIKE 'pgworkers%'", ""
    )  # how sessions of any schema are named
    assert "pgworkers" not in re.sub(r"^--.*$", "", text, flags=re.MULTILINE)
    assert "GRANT EXECUTE ON FUNCTION jobs.enqueue TO jobs_enqueue" in text.replace('"', "")
