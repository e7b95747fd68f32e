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
from pgworkers.job.model import ClaimedJob
from pgworkers.postgres import migrate
from pgworkers.postgres.statements import Statement, read_sql, with_schema

ROOT = Path(pgworkers.__file__).parent
ALL_FILES = sorted(path for path in ROOT.rglob("*.sql") if path.parent.name != "schema")
FRAGMENTS = [path for path in ALL_FILES if path.name.endswith(".fragment.sql")]
FILES = [path for path in ALL_FILES if path not in FRAGMENTS]
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


#: Sent for every batch of jobs, or several times a second. Not `retry`: it is rarer, and only hosts behind a pooler send it
#: through psycopg; the others keep the text that `Statement.numbered` made once.
HOT = {"enqueue", "claim", "finish", "release", "progress", "host_renew", "promote", "fire_due"}


def understood(conn: psycopg.Connection[Any], rendered: bytes) -> None:
    """Fails unless the server can plan the statement with these names and types."""
    names = set(re.findall(rb"%\((\w+)\)s", rendered))
    conn.execute(b"EXPLAIN " + rendered, {name.decode(): None for name in names})


def test_no_statement_file_is_unused_and_none_is_missing() -> None:
    assert {path for path, _ in statements()} == set(FILES)


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.stem)
def test_each_fragment_is_included_by_several_statements(path: Path) -> None:
    users = [one for one in FILES if f"/* include: {path.name} */" in one.read_text()]
    assert len(users) >= 2, "what one statement needs stands in that statement"
    assert {one.parent for one in users} == {path.parent}
    assert "include:" not in path.read_text(), "a fragment includes no other"


def test_an_include_that_names_no_file_fails(tmp_path: Path) -> None:
    statement = tmp_path / "x.sql"
    statement.write_text("SELECT /* include: none.fragment.sql */")
    with pytest.raises(FileNotFoundError):
        read_sql(statement)


@pytest.mark.parametrize("path", [*FILES, *FRAGMENTS], ids=lambda path: path.stem)
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
    assert len(Statement(path.stem, read_sql(path)).render("pgworkers")) < 4096


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
    text = read_sql(ROOT / "job" / "claim.sql").replace("claimed_at", "claimed_on")
    with pytest.raises(psycopg.errors.UndefinedColumn):
        understood(db, Statement("broken", text).render("pgworkers"))


#: Of the columns of history: what only the partitions need, and what a job that never ran does not have.
SET_BY_HISTORY = {"finished_at", "kept"}
OF_AN_ATTEMPT = {"host", "started_at", "duration", "cpu_seconds", "peak_rss", "result"}


def test_each_end_writes_all_columns_of_history(db: psycopg.Connection[Any]) -> None:
    """The two lists of columns: a new column must be in both."""
    columns = {
        row[0]
        for row in db.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'pgworkers.history'::regclass AND attnum > 0"
        )
    }
    schema = (ROOT / "schema" / "0001_initial.sql").read_text()
    function = schema.partition("CREATE FUNCTION pgworkers.archive_waiting_jobs(")[2].partition("END $$;")[0]
    assert inserted((ROOT / "job" / "history_insert.fragment.sql").read_text()) == columns - SET_BY_HISTORY
    assert inserted(function) == columns - SET_BY_HISTORY - OF_AN_ATTEMPT
    elsewhere = [path.name for path in FILES if "INSERT INTO pgworkers.history" in path.read_text()]
    assert elsewhere == []
    assert schema.count("INSERT INTO pgworkers.history (") == 1


def inserted(text: str) -> set[str]:
    found = re.search(r"INSERT INTO pgworkers\.history \(([^)]*)\)\s+SELECT", text)
    assert found is not None
    return set(re.split(r",\s+", found[1]))


@pytest.mark.parametrize("name", ["claim", "claim_ranges", "claim_oldest"])
def test_a_claim_returns_the_fields_of_a_claimed_job(db: psycopg.Connection[Any], name: str) -> None:
    rendered = Statement(name, read_sql(ROOT / "job" / f"{name}.sql")).render("pgworkers")
    names = set(re.findall(rb"%\((\w+)\)s", rendered))
    described = db.execute(rendered, {name.decode(): None for name in names}).description
    assert described is not None
    assert tuple(column.name for column in described) == ClaimedJob._fields


def test_a_trial_claim_evaluates_what_a_claim_returns() -> None:
    """`end_unclaimable_jobs()` finds rows that make a claim fail: each expression over data must be in its trial, too."""
    returned = (ROOT / "job" / "claim_returning.fragment.sql").read_text()
    schema = (ROOT / "schema" / "0001_initial.sql").read_text()
    trial = schema.partition("CREATE FUNCTION pgworkers.end_unclaimable_jobs(")[2].partition("END $$;")[0]
    expressions = [
        "j.args::text",
        "date_part('epoch', j.timeout)",
        "date_part('epoch', j.deadline_at - now())",
        "j.checkpoint::text",
        "j.meta::text",
        "j.errors",
        "date_part('epoch', now() - j.run_at)",
        "extract(epoch FROM j.deadline_at)::double precision",
    ]
    for expression in expressions:
        assert expression in returned
        assert expression in trial


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
