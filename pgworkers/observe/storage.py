"""How large our tables are, and who keeps vacuum from cleaning them: read by the leader for everybody's gauges."""

from __future__ import annotations

from typing import Any

from pgworkers.postgres.statements import Query, Statement
from pgworkers.sightings import StorageSeen, TableSize

_STORAGE = Statement.beside(__file__, "storage")


def storage() -> Query[StorageSeen]:
    """The tables of the schema, and the oldest transaction of the database."""
    return Query(_STORAGE, {}, _read)


def _read(rows: list[tuple[Any, ...]]) -> StorageSeen:
    tables = [TableSize(name, dead, size) for name, dead, size, _, _ in rows]
    return StorageSeen(tables, *(rows[0][3:] if rows else (0.0, "")))
