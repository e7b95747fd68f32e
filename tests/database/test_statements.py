"""Every statement is a file, is used, says what it is, and is understood by the server under any schema name."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import pgworkers
from pgworkers.postgres import migrate
from pgworkers.postgres.statements import Statement, with_schema

ROOT = Path(pgworkers.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.sql") if path.parent.name != "schema")
#: COPY and CREATE have no plan: they are run.
NO_PLAN = re.compile(r"\s*(COPY|CREATE)\b")


def statements() -> Iterator[tuple[Path, Statement]]:
    """The statements that modules load, by importing every room that has any."""
    for room in sorted({path.parent for path in FILES}):
        package = ".".join(room.relative_to(ROOT.parent).parts)
        for module in pkgutil.iter_modules([str(room)]):
            for value in vars(importlib.import_module(f"{package}.{module.name}")).values():
                if isinstance(value, Statement):
                    yield room / f"{value.name}.sql", value


#: Sent for every batch of jobs, or several times a second.
HOT = {"enqueue", "claim", "finish", "retry", "release", "progress", "host_renew", "promote", "fire_due"}


def understood(conn: psycopg.Connection[Any], rendered: bytes) -> None:
    """Fails unless the server can plan the statement with these names and types."""
    names = set(re.findall(rb"%\((\w+)\)s", rendered))
    conn.execute(b"EXPLAIN " + rendered, {name.decode(): None for name in names})


def test_no_statement_file_is_unused_and_none_is_missing() -> None:
    assert {path for path, _ in statements()} == set(FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_is_one_statement_with_a_header(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("-- "), "the first line says what the statement is for"
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    assert ";" not in code
    assert "%s" not in code, "parameters are named"
    uncast = re.findall(r"%\(\w+\)s(?!::)", code)
    assert not uncast, "without a cast the type would depend on the value"


@pytest.mark.parametrize("path", [path for path in FILES if path.stem in HOT], ids=lambda path: path.stem)
def test_each_statement_of_a_jobs_way_is_short_enough_for_psycopg_to_keep_it_parsed(path: Path) -> None:
    assert len(Statement(path.stem, path.read_text()).render("pgworkers")) < 4096


@pytest.mark.parametrize("schema", ["pgworkers", "order"])
def test_the_server_understands_every_statement(empty_dsn: str, schema: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        migrate.up(conn, schema)
        conn.execute("SET search_path = pg_catalog")
        for path, statement in statements():
            rendered = statement.render(schema)
            assert b"pgworkers." not in rendered or schema == "pgworkers", path.name
            if NO_PLAN.match(rendered.decode()):
                with conn.cursor() as cursor, conn.transaction(force_rollback=True):
                    if b"STDIN" in rendered:
                        with cursor.copy(rendered):
                            pass
                    else:
                        cursor.execute(rendered)
            else:
                understood(conn, rendered)


def test_a_misspelt_column_would_be_found(db: psycopg.Connection[Any]) -> None:
    text = (ROOT / "job" / "claim.sql").read_text().replace("claimed_at", "claimed_on")
    with pytest.raises(psycopg.errors.UndefinedColumn):
        understood(db, Statement("broken", text).render("pgworkers"))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("FROM pgworkers.job", 'FROM "order".job'),
        ("CREATE SCHEMA pgworkers", 'CREATE SCHEMA "order"'),
        ("pg_notify('pgworkers', x)", "pg_notify('order', x)"),
        ("pg_notify('pgworkers_done', x)", "pg_notify('order_done', x)"),
        ("format('pgworkers.%I', x)", "format('\"order\".%I', x)"),
        ("'pgworkers migrate'", "'pgworkers migrate'"),
        ("my_pgworkers.job", "my_pgworkers.job"),
    ],
)
def test_the_schema_is_put_in_where_it_is_meant_and_nowhere_else(written: str, meant: str) -> None:
    assert with_schema(written, "order") == meant


def test_a_rendered_statement_carries_no_comment_and_is_made_once() -> None:
    statement = Statement(
        "x", "-- why\nSELECT 1 -- kept: it is not a line of its own\n  FROM pgworkers.job;\n"
    )
    assert statement.render("b") == b'SELECT 1 -- kept: it is not a line of its own\nFROM "b".job'
    assert statement.render("b") is statement.render("b")
