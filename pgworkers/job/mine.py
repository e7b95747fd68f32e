"""Mine: what a host holds according to the tables. Its own memory may say less, when the answer to a claim was lost."""

from __future__ import annotations

from pgworkers.postgres.statements import Query, Statement

_MINE = Statement.beside(__file__, "mine")


def mine(host: str, age: float) -> Query[list[tuple[int, int]]]:
    """(id, lease) of every job this host claimed at least `age` seconds ago and has not ended."""
    return Query(_MINE, {"host": host, "age": age}, lambda rows: [(row[0], row[1]) for row in rows])
