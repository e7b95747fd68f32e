"""Mine: what a host holds according to the tables. Its own memory may say less, when the answer to a claim was lost."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from pgworkers.job.claim import Fence
from pgworkers.postgres.statements import Query, Statement

_MINE = Statement.beside(__file__, "mine")


class Held(NamedTuple):
    """The jobs, and up to which time of the database all that was claimed is among them or has ended."""

    jobs: list[Fence]
    until: datetime


def mine(
    host: str, age: float, since: datetime | None = None, *, clock: datetime | None = None
) -> Query[Held]:
    """Every job this host claimed at least `age` seconds ago and has not ended; with `since`, of those claimed after it.

    `clock`: the database's time as the host reckons it; the age is counted by the earlier of the two.
    """
    return Query(_MINE, {"host": host, "age": age, "since": since, "clock": clock}, _read)


def _read(rows: list[tuple[Any, ...]]) -> Held:
    (until,) = (row[3] for row in rows if row[0] is None)
    return Held(sorted(Fence(*row[:3]) for row in rows if row[0] is not None), until)
