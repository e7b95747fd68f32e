"""C13: no error of the driver leaks from the Python API, and a refusal says what was tried and which GRANT is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from support.command import CommandResult, ForkedCommand
from support.logins import DIRECT_ONLY, NEWEST_ONLY, LoginDatabase

from pgworkers import App, PermissionDenied, QuotaExceeded
from pgworkers.errors import DatabaseRefused
from pgworkers.job import enqueue_grants
from pgworkers.postgres import migrate
from pgworkers.postgres.statements import run

Session = psycopg.Connection[Any]


@pytest.fixture
def app_of(login_dsn: Callable[[str], str]) -> Iterator[Callable[[str], App]]:
    made: list[App] = []

    def make(login: str) -> App:
        app = App(dsn=login_dsn(login))
        app.queue("a")
        app.queue("b")
        app.task(name="t", queue="a")(lambda: None)
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


CALLS: dict[str, Callable[[App], Any]] = {
    "enqueue": lambda app: app.tasks["t"].enqueue(),
    "enqueue_many": lambda app: app.enqueue_many([app.tasks["t"].prepare()]),
    "batch": lambda app: app.batch([app.tasks["t"].prepare()]),
    "state": lambda app: app.job(1).state,
    "result": lambda app: app.job(1).result(timeout=5),
    "cancel": lambda app: app.job(1).cancel(),
    "batch counts": lambda app: app.get_batch(1).counts(),
    "batch wait": lambda app: app.get_batch(1).wait(),
    "batch cancel": lambda app: app.get_batch(1).cancel(),
    "add_scope": lambda app: app.add_scope("s", "tenant"),
    "rate": lambda app: app.rate("r", rate=1).acquire(),
    "aenqueue": lambda app: asyncio.run(app.tasks["t"].aenqueue()),
    "aresult": lambda app: asyncio.run(app.job(1).aresult(timeout=5)),
}


def test_a_login_without_rights_gets_a_pgworkers_error(app_of: Callable[[str], App]) -> None:
    app = app_of("stranger")
    for call in CALLS.values():
        with pytest.raises(
            PermissionDenied, match=r"permission denied .*GRANT .*docs/how-to/separate-logins.md"
        ):
            call(app)


def test_the_error_of_an_enqueuer_names_the_required_role(app_of: Callable[[str], App]) -> None:
    app = app_of("web")
    for call, role in (
        ("enqueue_many", "pgworkers_worker"),
        ("result", "pgworkers_payload"),
        ("cancel", "pgworkers_operator"),
    ):
        with pytest.raises(PermissionDenied, match=f"GRANT .*{role}"):
            CALLS[call](app)


def test_quota_and_grant_failures_are_pgworkers_errors(
    app_of: Callable[[str], App], operator: Session
) -> None:
    run(operator, "pgworkers", enqueue_grants.add_grant("web", queue="a", max_waiting=1))
    app = app_of("web")
    app.tasks["t"].enqueue()
    with pytest.raises(QuotaExceeded, match="nothing was enqueued"):
        app.tasks["t"].enqueue()
    with pytest.raises(PermissionDenied, match="web may not enqueue task t in queue b; nothing was enqueued"):
        app.tasks["t"].using(queue="b").enqueue()


def test_an_unforeseen_error_is_a_pgworkers_error_with_its_cause(
    app_of: Callable[[str], App], admin: Session
) -> None:
    admin.execute(
        "CREATE FUNCTION public.no() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'no' USING ERRCODE = 'XX000'; END $$;"
        "CREATE TRIGGER no BEFORE INSERT ON pgworkers.job FOR EACH ROW EXECUTE FUNCTION public.no()"
    )
    with pytest.raises(DatabaseRefused, match="the database refused: no; nothing was enqueued") as caught:
        app_of("worker").tasks["t"].enqueue()
    assert isinstance(caught.value.__cause__, psycopg.Error)


def test_what_the_callers_own_iterator_and_transaction_raise_stays_the_callers(
    app_of: Callable[[str], App], database: LoginDatabase, worker: Session, way: str
) -> None:
    app = app_of("worker")

    def jobs() -> Iterator[Any]:
        yield app.tasks["t"].prepare()
        raise psycopg.errors.UniqueViolation("mine")

    with pytest.raises(psycopg.errors.UniqueViolation, match="mine"):
        app.enqueue_many(jobs())

    def late() -> None:
        with database.connect("worker", way) as other, worker.transaction():
            worker.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            worker.execute("SELECT count(*) FROM pgworkers.job")
            app.tasks["t"].using(unique="k", conn=other).enqueue()
            app.tasks["t"].using(unique="k", conn=worker).enqueue()

    with pytest.raises(psycopg.errors.SerializationFailure):
        late()


def command(dsn: str, home: Path, *words: str) -> CommandResult:
    return ForkedCommand(home, PGWORKERS_DSN=dsn)(*words, code=None)


@NEWEST_ONLY
@DIRECT_ONLY
def test_a_refused_migration_says_what_was_tried_and_the_missing_grant(
    login_dsn: Callable[[str], str], database: LoginDatabase, tmp_path: Path, age: str, way: str
) -> None:
    said = command(login_dsn("stranger"), tmp_path, "migrate", "up", "--schema", "other")
    assert said.code == 1
    assert "the login stranger may not create the schema other in the database" in said.err
    assert f"GRANT CREATE ON DATABASE {database.name} TO stranger" in said.err
    said = command(login_dsn("stranger"), tmp_path, "jobs", "list")
    assert "the schema pgworkers is there, but the login stranger may not use it" in said.err
    more = migrate.Migration(9999, "9999_more", "-- serves: 9999\nCREATE TABLE pgworkers.more (a integer)")
    with (
        psycopg.connect(login_dsn("viewer"), autocommit=True) as conn,
        pytest.raises(PermissionDenied) as caught,
    ):
        migrate.up(conn, "pgworkers", (*migrate.known_migrations(), more))
    assert "may not create tables in the schema pgworkers" in str(caught.value)
    assert "GRANT pgworkers_owner TO viewer" in str(caught.value)


@NEWEST_ONLY
@DIRECT_ONLY
def test_doctor_distinguishes_missing_rights_from_missing_objects(
    login_dsn: Callable[[str], str], tmp_path: Path, age: str, way: str
) -> None:
    said = command(login_dsn("stranger"), tmp_path, "doctor")
    assert "the schema pgworkers is there, but the login stranger may not use it" in said.out
    assert "GRANT pgworkers_viewer TO stranger" in said.out
    assert "not there" not in said.out
    said = command(login_dsn("stranger"), tmp_path, "doctor", "--schema", "other")
    assert "may not use it" not in said.out
    assert "not there" in said.out


@NEWEST_ONLY
@DIRECT_ONLY
def test_the_roles_script_warns_of_each_login_that_it_locks_out(
    database: LoginDatabase, admin: Session, tmp_path: Path, age: str, way: str
) -> None:
    heard: list[tuple[str, str]] = []
    admin.add_notice_handler(lambda note: heard.append((note.message_primary or "", note.message_hint or "")))
    script = migrate.render_roles("pgworkers").encode()
    admin.execute(script)
    assert not [text for text, _ in heard if "may do nothing here" in text]
    admin.execute(sql.SQL("ALTER TABLE pgworkers.job OWNER TO stranger"))
    admin.execute(script)
    warned = [(text, hint) for text, hint in heard if "may do nothing here" in text]
    assert [text for text, _ in warned] == [
        "the login stranger owns the schema and has none of the roles: after this script it may do nothing here"
    ]
    assert "GRANT pgworkers_worker TO stranger" in warned[0][1]
    said = command(database.dsn("owner"), tmp_path, "migrate", "roles")
    assert "GRANT pgworkers_worker to the login of your hosts first" in said.err
