"""A login that may connect to the database and has no other right."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo


@contextmanager
def stranger_session(dsn: str, application: str = "psql of a stranger") -> Iterator[psycopg.Connection[Any]]:
    """A session of such a login, which is dropped at the end."""
    name = f"stranger_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        try:
            stranger = make_conninfo(dsn, user=name, application_name=application)
            with psycopg.connect(stranger, autocommit=True) as conn:
                yield conn
        finally:
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))
