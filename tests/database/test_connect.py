"""Connections: the settings of every session, the choice of the database, and the error messages."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pgworkers.cli.error_report import explain_error, redact_connection_strings
from pgworkers.errors import DatabaseUnreachable, UsageError
from pgworkers.postgres.connect import aconnect, connect
from pgworkers.postgres.database_choice import choose_database
from pgworkers.postgres.dsn import show_dsn
from pgworkers.settings import Settings, load_settings

CANARY = "c4n4ry-p4ssw0rd"
EXPECTED = {
    "statement_timeout": "5s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "10s",
    "default_transaction_isolation": "read committed",
    "transaction_isolation": "read committed",
    "application_name": "pgworkers claim",
    "client_encoding": "UTF8",
    "search_path": "pg_catalog,pg_temp",
}


def test_every_wait_is_bounded_and_nothing_of_it_can_be_reset(dsn: str) -> None:
    with connect(Settings(), dsn, "claim") as conn:
        assert conn.autocommit
        for _ in range(2):
            for name, value in EXPECTED.items():
                row = conn.execute("SELECT current_setting(%s)", [name]).fetchone()
                assert row == (value,), name
            conn.execute("RESET ALL")


def test_read_committed_even_where_the_database_says_serializable(dsn: str) -> None:
    name = conninfo_to_dict(dsn)["dbname"]
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_isolation = serializable')
        admin.execute(f'ALTER DATABASE "{name}" SET statement_timeout = 0')
    with psycopg.connect(dsn, autocommit=True) as plain:
        assert plain.execute("SHOW transaction_isolation").fetchone() == ("serializable",)
    with connect(Settings(), dsn, "claim") as conn, conn.transaction():
        assert conn.execute("SHOW transaction_isolation").fetchone() == ("read committed",)
        assert conn.execute("SHOW statement_timeout").fetchone() == ("5s",)


def test_a_statement_that_takes_too_long_is_ended(dsn: str) -> None:
    settings = Settings(statement_timeout=0.05)
    with connect(settings, dsn, "claim") as conn, pytest.raises(psycopg.errors.QueryCanceled):
        conn.execute("SELECT pg_sleep(10)")


def test_a_full_disk_is_not_reported_as_an_unreachable_database(dsn: str) -> None:
    full = """DO $$ BEGIN RAISE EXCEPTION 'could not extend file "base/1"'
                       USING ERRCODE = 'disk_full', HINT = 'Check free disk space.'; END $$"""
    with connect(Settings(), dsn, "claim") as conn, pytest.raises(psycopg.errors.DiskFull) as caught:
        conn.execute(full)
    told = 'the database cannot do it now: could not extend file "base/1" (Check free disk space)'
    assert explain_error(caught.value) == (told, 4)


def test_options_of_the_dsn_are_kept_but_our_own_take_precedence(dsn: str) -> None:
    theirs = psycopg.conninfo.make_conninfo(dsn, options="-c work_mem=5MB -c statement_timeout=1h")
    with connect(Settings(), theirs, "claim") as conn:
        assert conn.execute("SHOW work_mem").fetchone() == ("5MB",)
        assert conn.execute("SHOW statement_timeout").fetchone() == ("5s",)


def test_a_server_that_is_read_only_is_not_taken(dsn: str) -> None:
    name = conninfo_to_dict(dsn)["dbname"]
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    with pytest.raises(DatabaseUnreachable, match="read-only"):
        connect(Settings(), dsn, "claim")


def test_the_same_on_an_event_loop(dsn: str) -> None:
    async def work() -> None:
        async with await aconnect(Settings(), dsn, "claim") as conn:
            assert conn.autocommit
            for name, value in EXPECTED.items():
                cursor = await conn.execute("SELECT current_setting(%s)", [name])
                assert await cursor.fetchone() == (value,), name
        with pytest.raises(DatabaseUnreachable):
            await aconnect(Settings(), f"postgresql://u:{CANARY}@127.0.0.1:1/x", "claim")

    asyncio.run(work())


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://u:{CANARY}@127.0.0.1:1/x",
        f"host=/nowhere user=u password={CANARY} dbname=x",
        f"postgresql://u:{CANARY}@127.0.0.1:1,127.0.0.2:1/x",
    ],
)
def test_an_unreachable_database_is_named_without_its_password(dsn: str) -> None:
    with pytest.raises(DatabaseUnreachable) as caught:
        connect(Settings(), dsn, "claim")
    text = str(caught.value)
    assert CANARY not in text
    assert "nothing was done" in text
    assert "u@" in text
    assert "\n" not in text
    assert caught.value.__cause__ is None
    assert caught.value.exit_code == 4
    assert CANARY not in caught.value.summary
    assert caught.value.summary in (
        "no Postgres at 127.0.0.1:1 (connection refused)",
        "no Postgres at postgresql://u@/nowhere/x (no such file or directory)",
        "no Postgres at postgresql://u@127.0.0.1,127.0.0.2:1,1/x (connection refused)",
    )


@pytest.mark.parametrize(
    "dsn", [f"postgresql://u:{CANARY}%@h/x", f"user=u {CANARY}", f"postgresql://u:{CANARY}@[h/x"]
)
def test_a_dsn_that_cannot_be_read_is_not_quoted(dsn: str) -> None:
    with pytest.raises(UsageError) as caught:
        connect(Settings(), dsn, "claim")
    assert CANARY not in str(caught.value)
    assert CANARY not in show_dsn(dsn)


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://u:sek@{CANARY}@127.0.0.1:1/x",
        f"postgresql://u:{CANARY}@ret@127.0.0.1:1/x",
        f"postgresql://u:@{CANARY}@127.0.0.1:1/x",
        f"postgresql://u:sek@{CANARY},@127.0.0.1:1/x",
        f"postgresql://u:sek@re/{CANARY}@127.0.0.1:1/x",
        f"postgresql://u:{CANARY}/ret@127.0.0.1:1/x",
        f"postgresql://u:1/{CANARY}@127.0.0.1:1/x",
        f"postgresql://u:1/se@{CANARY}@127.0.0.1:1/x",
        f"postgresql://u:1,2/{CANARY}@127.0.0.1:1/x",
        f"postgresql://u:1/{CANARY}?ret@127.0.0.1:1/x",
        f"postgresql://u:%zz{CANARY}@127.0.0.1:1/x",
        f"postgresql://u:se {CANARY}@127.0.0.1:1/x",
        f"postgresql://u@tenant:{CANARY}@127.0.0.1:1/x",
        f"postgresql://u:{CANARY}/x",
        f"postgresql+psycopg://u:{CANARY}@127.0.0.1:1/x",
        f"http://u:{CANARY}@127.0.0.1:1/x",
        f"u:{CANARY}@127.0.0.1:1/x",
        f"host=u:{CANARY}@127.0.0.1 dbname=x",
        f"host=postgresql://u:{CANARY} dbname=x",
        f"host=127.0.0.1 port=1 password=sek {CANARY} dbname=x",
        f"host=127.0.0.1 port=1 password=sek {CANARY}=ret dbname=x",
        f"host=127.0.0.1 port=1 password='sek {CANARY} dbname=x",
    ],
)
def test_a_dsn_with_a_password_in_the_wrong_place_is_refused_and_not_quoted(dsn: str) -> None:
    with pytest.raises(UsageError, match="%, @ and / in the password as %25, %40 and %2F") as caught:
        connect(Settings(), dsn, "claim")
    assert CANARY not in str(caught.value)
    assert redact_connection_strings(str(caught.value)) == str(caught.value), "the advice arrives whole"
    assert show_dsn(dsn) == "(a dsn that cannot be read)"


@pytest.mark.parametrize(
    "password",
    [f"{CANARY}", f"{CANARY}@ret", f"sek@{CANARY}", f"{CANARY}/ret", f"1/{CANARY}", f"1/@{CANARY}"],
)
@pytest.mark.parametrize("user", ["u", "", "u@tenant"])
def test_an_error_that_quotes_a_url_has_no_piece_of_its_password(user: str, password: str) -> None:
    told = redact_connection_strings(
        f"there is no command 'postgresql://{user}:{password}@127.0.0.1:1/x'; try --help"
    )
    assert CANARY not in told
    assert told.endswith("@127.0.0.1:1/x'; try --help")


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://u:a?{CANARY}@127.0.0.1:1/x",
        f"postgresql://u:a#{CANARY}@127.0.0.1:1/x",
        f"postgresql://u:a:{CANARY}@127.0.0.1:1/x",
        f"postgresql://u:a%40{CANARY}%2F%25@127.0.0.1:1/x",
        f"postgresql://127.0.0.1:1/x?user=u@tenant&password={CANARY}",
        f"postgresql://u@127.0.0.1:1/x?password={CANARY}&sslmode={CANARY}",
        f"postgresql://u@127.0.0.1:1/x?sslpassword={CANARY}&sslmode={CANARY}",
        f"host=127.0.0.1 port={CANARY} user=u password={CANARY}",
        f"host=@nowhere user=u password={CANARY}",
        f"service={CANARY} password={CANARY} user=u",
    ],
)
def test_what_is_read_as_it_was_meant_is_tried_and_its_password_not_named(dsn: str) -> None:
    with pytest.raises(DatabaseUnreachable) as caught:
        connect(Settings(), dsn, "claim")
    told = str(caught.value).replace(show_dsn(dsn), "")  # a port is not a secret, even if it cannot be parsed
    assert CANARY not in told


@pytest.mark.parametrize(
    ("dsn", "text"),
    [
        (
            f"postgresql://me:{CANARY}@db.example:6432/jobs?sslmode=require",
            "postgresql://me@db.example:6432/jobs",
        ),
        (f"host=/run/pg port=5433 user=me password={CANARY} dbname=jobs", "postgresql://me@/run/pg/jobs"),
        ("postgresql://db.example/jobs", "postgresql://db.example/jobs"),
    ],
)
def test_a_dsn_for_people(dsn: str, text: str) -> None:
    assert show_dsn(dsn) == text


@pytest.mark.parametrize(
    ("flags", "environ", "source", "dsn"),
    [
        ({"dsn": "a"}, {"PGWORKERS_DSN_FILE": "/nowhere"}, "--dsn", "a"),
        ({"dsn": "a"}, {"PGWORKERS_DSN": "b", "DATABASE_URL": "c", "PGHOST": "d"}, "--dsn", "a"),
        ({}, {"PGWORKERS_DSN": "b", "DATABASE_URL": "c", "PGHOST": "d"}, "PGWORKERS_DSN", "b"),
        ({}, {"DATABASE_URL": "c", "PGHOST": "d"}, "DATABASE_URL", "c"),
        ({}, {"PGHOST": "d"}, "PG* variables", ""),
        ({}, {"PGSERVICE": "d"}, "PG* variables", ""),
        ({}, {"PGUSER": "me", "PGPASSWORD": "x"}, "embedded server", ""),
        ({}, {}, "embedded server", ""),
    ],
)
def test_which_database_is_meant(
    flags: dict[str, str], environ: dict[str, str], source: str, dsn: str
) -> None:
    loaded = load_settings(flags=flags, environ=environ)
    chosen = choose_database(loaded.settings, loaded.sources, Path("/srv/app"), environ)
    assert (chosen.source, chosen.dsn, chosen.is_embedded) == (source, dsn, source == "embedded server")
    assert chosen.home == Path("/srv/app/.pgworkers")


@pytest.mark.parametrize(
    ("environ", "source", "dsn"),
    [
        ({"PGWORKERS_DSN": "b", "DATABASE_URL": "c"}, "PGWORKERS_DSN", "b"),
        ({"DATABASE_URL": "c", "PGHOST": "d"}, "DATABASE_URL", "c"),
        ({"PGHOST": "d"}, "the app's dsn", "app"),
        ({}, "the app's dsn", "app"),
    ],
)
def test_the_environment_wins_over_the_dsn_of_the_app(environ: dict[str, str], source: str, dsn: str) -> None:
    loaded = load_settings(app={"dsn": "app"}, environ=environ)
    chosen = choose_database(loaded.settings, loaded.sources, Path("/srv/app"), environ)
    assert (chosen.source, chosen.dsn) == (source, dsn)


def test_a_file_may_hold_the_address(tmp_path: Path) -> None:
    file = tmp_path / "dsn"
    file.write_text("postgresql://db/x\n")
    named = {"PGWORKERS_DSN_FILE": str(file)}
    assert load_settings(environ={**named, "DATABASE_URL": "c"}).settings.dsn == "postgresql://db/x"
    assert load_settings(app={"dsn_file": str(file)}, environ={}).settings.dsn == "postgresql://db/x"
    assert load_settings(app={"dsn_file": "/nowhere"}, environ={"DATABASE_URL": "c"}).settings.dsn == "c"
    assert load_settings(app={"dsn": "a"}, environ=named).settings.dsn == "postgresql://db/x"
    with pytest.raises(UsageError, match="both dsn and dsn_file"):
        load_settings(environ={**named, "PGWORKERS_DSN": "b"})
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load_settings(environ={"PGWORKERS_DSN_FILE": str(tmp_path / "none")})
    for text in ("", "one\ntwo\n", "x" * 10_000):
        file.write_text(text)
        with pytest.raises(UsageError, match="must have one line"):
            load_settings(environ=named)


def test_the_app_may_name_the_database_and_the_home_may_be_elsewhere() -> None:
    loaded = load_settings(app={"dsn": "x"}, environ={"PGWORKERS_EMBEDDED_DIRECTORY": "/var/lib/pgw"})
    chosen = choose_database(loaded.settings, loaded.sources, Path("/srv/app"), {})
    assert (chosen.source, chosen.dsn, chosen.home) == ("the app's dsn", "x", Path("/var/lib/pgw"))
