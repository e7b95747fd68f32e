"""Row 87 and 88: a migration that dies at any of its statements leaves the old schema or the new one, never a third."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.command import Command
from support.later_version import later_migrations, later_version
from support.server import Server

from pgworkers.postgres import migrate
from pgworkers.postgres.migrate import Migration, known_migrations
from pgworkers.postgres.statements import with_schema

#: Runs the migrations and kills itself before the nth of all statements that they consist of. Statements are sent one by
#: one, as in a script for psql, inside the transaction that `migrate` opens.
KILLED = """
import os, signal, sys
import psycopg
from pgworkers.postgres import migrate

left = int(sys.argv[2])
execute = psycopg.Connection.execute

def counted(conn, query, params=None, **more):
    global left
    for one in split(query) if isinstance(query, bytes) and b"CREATE" in query else [query]:
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        result = execute(conn, one, params, **more)
    return result

def split(query):
    parts, body, quoted = [], [], False
    for line in query.decode().splitlines():
        code = line.split("--")[0]
        quoted ^= code.count("$$") % 2 == 1
        body.append(line)
        if code.rstrip().endswith(";") and not quoted:
            parts.append("\\n".join(body).encode())
            body = []
    if "".join(body).strip():
        parts.append("\\n".join(body).encode())
    return parts

psycopg.Connection.execute = counted
with psycopg.connect(sys.argv[1], autocommit=True) as conn:
    migrate.up(conn, "pgworkers")
print(int(sys.argv[2]) - left)
"""


#: Of a later version, so that a migration also dies on a schema that one before it has made.
LATER = later_migrations(
    colour="CREATE TABLE pgworkers.colour (name text);\nALTER TABLE pgworkers.job ADD COLUMN colour text;",
    shade="CREATE TABLE pgworkers.shade (name text);\nCREATE INDEX job_colour ON pgworkers.job (colour);",
)
ALL = [*known_migrations(), *LATER]


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH of the later version."""
    texts = {name: migration.text for name, migration in zip(("colour", "shade"), LATER, strict=True)}
    return later_version(tmp_path_factory.mktemp("killed") / "newer", **texts)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("killed") / "killed.py"
    found.write_text(KILLED)
    return found


@pytest.fixture(scope="module")
def statements(server: Server, script: Path, newer: str) -> int:
    """How many there are."""
    name = server.create()
    ended = _up(script, newer, server.dsn(name), 1_000_000)
    server.drop(name)
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout)


@pytest.fixture
def scratch(server: Server) -> Iterator[str]:
    name = server.create()
    yield server.dsn(name)
    server.drop(name)


def _up(script: Path, newer: str, dsn: str, before: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script, dsn, str(before)],
        env=os.environ | {"PYTHONPATH": newer}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def _shape(conn: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    """Every relation, column, function and constraint of the schema."""
    return conn.execute(
        "SELECT 'c', c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod) FROM pg_class c"
        "  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0"
        " WHERE c.relnamespace = to_regnamespace('pgworkers')"
        " UNION ALL SELECT 'f', p.proname, pg_get_function_identity_arguments(p.oid), '' FROM pg_proc p"
        " WHERE p.pronamespace = to_regnamespace('pgworkers')"
        " UNION ALL SELECT 'k', k.conname, '', pg_get_constraintdef(k.oid) FROM pg_constraint k"
        " WHERE k.connamespace = to_regnamespace('pgworkers') ORDER BY 1, 2, 3, 4"
    ).fetchall()


def _boundaries(dsn: str) -> list[list[tuple[Any, ...]]]:
    """The schema before the first migration, and after each."""
    shapes = []
    with psycopg.connect(dsn, autocommit=True) as conn:
        shapes.append(_shape(conn))
        for count in range(1, len(ALL) + 1):
            migrate.up(conn, "pgworkers", ALL[:count])
            shapes.append(_shape(conn))
    return shapes


@pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_row_87_kill_9_at_statements_of_a_migration(
    server: Server, scratch: str, script: Path, newer: str, statements: int, every: bool
) -> None:
    """A sample in the suite; `scripts/faults` takes every one."""
    whole = _boundaries(scratch)
    assert statements > 60, "the statements were not told apart"
    step = 1 if every else max(1, statements // 4)
    tried = 0
    for before in sorted(
        {*range(0, statements, step), statements - 1}
    ):  # the last one: on a schema that was there
        name = server.create()
        ended = _up(script, newer, server.dsn(name), before)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        with psycopg.connect(server.dsn(name), autocommit=True) as conn:
            assert _shape(conn) in whole, f"killed before statement {before}: neither old nor new"
            migrate.up(conn, "pgworkers", ALL)
            migrate.check_schema(conn, "pgworkers", ALL)
            assert _shape(conn) == whole[-1], (
                f"killed before statement {before}: not mended by the next migrate up"
            )
        server.drop(name)
        tried += 1
    assert tried >= 4


def test_row_88_new_code_on_an_old_schema_is_refused_with_5(scratch: str, newer: str, tmp_path: Path) -> None:
    """Every command but `migrate up` and `run`, which brings the schema up to date itself."""
    with psycopg.connect(scratch, autocommit=True) as conn:
        migrate.up(conn, "pgworkers", ALL[:-1])
    cli = Command(tmp_path, DATABASE_URL=scratch, PYTHONPATH=newer)
    for words in (["jobs", "list"], ["migrate", "status"]):
        said = cli(*words, code=5)
        assert LATER[-1].name in said.out + said.err
    cli("migrate", "up")


def test_row_88_old_code_on_a_new_schema_is_refused_with_5_and_touches_nothing(
    scratch: str, tmp_path: Path
) -> None:
    """A host of yesterday, deployed late: `run` says that it must be upgraded."""
    (tmp_path / "app.py").write_text("from pgworkers import App\napp = App()\napp.queue('default')\n")
    future = Migration(
        9001, "9001_future", "-- serves: 9001\nALTER TABLE pgworkers.job ADD COLUMN future integer;"
    )
    with psycopg.connect(scratch, autocommit=True) as conn:
        migrate.up(conn, "pgworkers", [*known_migrations(), future])
        before = _shape(conn)
        cli = Command(tmp_path, DATABASE_URL=scratch)
        for words in (["run"], ["jobs", "list"]):
            assert "newer than this pgworkers, which does not know 9001_future" in cli.fails(*words, code=5)
        assert _shape(conn) == before
        assert conn.execute("SELECT count(*) FROM pgworkers.host").fetchone() == (0,)


def test_the_text_of_a_migration_is_one_transaction() -> None:
    """What cannot be rolled back must not be in one."""
    for migration in known_migrations():
        text = with_schema(migration.text, "pgworkers").upper()
        for word in ("COMMIT;", "CONCURRENTLY", "ALTER TYPE", "CREATE DATABASE"):
            assert word not in text, f"{migration.name}: {word}"
