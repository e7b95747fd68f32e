"""Database hosts on the test's database, and more sessions to race against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.database_host import DatabaseHost
from support.server import Server

from pgworkers.postgres import connect
from pgworkers.settings import Settings

#: Every table of the schema but the one that says which migrations were applied, and the rows that are only locked.
EMPTY = """
DO $$ BEGIN
    EXECUTE (SELECT format('TRUNCATE %s RESTART IDENTITY', string_agg(c.oid::regclass::text, ', '))
               FROM pg_class c
              WHERE c.relnamespace = 'pgworkers'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
                AND c.relname NOT IN ('migration', 'mutex'));
END $$
"""


@pytest.fixture(scope="session")
def shared(server: Server, template: str) -> Iterator[str]:
    """One clone for all tests that only change rows: emptying is faster than cloning."""
    name = server.create(template=template)
    yield name
    server.drop(name)


@pytest.fixture
def emptied(server: Server, shared: str) -> Iterator[str]:
    """The address of a migrated database without a row. A connection left open fails the test."""
    with psycopg.connect(server.dsn(shared), autocommit=True) as conn:
        conn.execute(EMPTY)
    yield server.dsn(shared)
    left = server.connections(shared)
    assert not left, f"the test left connections open: {left}"


@pytest.fixture
def session(emptied: str) -> Iterator[Callable[[], psycopg.Connection[Any]]]:
    """More connections, as the master makes them, but patient: a race on a busy machine waits. Closed at the end."""
    opened: list[psycopg.Connection[Any]] = []

    def make() -> psycopg.Connection[Any]:
        opened.append(connect.connect(Settings(statement_timeout=60.0), emptied, "test"))
        return opened[-1]

    yield make
    for conn in opened:
        conn.close()


@pytest.fixture
def host(session: Callable[[], psycopg.Connection[Any]], schema: str) -> DatabaseHost:
    """A registered host."""
    made = DatabaseHost(session(), schema)
    made.register()
    return made


@pytest.fixture
def other(session: Callable[[], psycopg.Connection[Any]], schema: str) -> DatabaseHost:
    """A second registered host on its own connection."""
    made = DatabaseHost(session(), schema)
    made.register()
    return made
