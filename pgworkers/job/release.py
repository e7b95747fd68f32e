"""Release: claimed but not started jobs go back to their queue, as if they had never been claimed."""

from __future__ import annotations

from collections.abc import Sequence

from pgworkers.postgres.arrays import Bigints, Integers
from pgworkers.postgres.statements import Query, Statement

_RELEASE = Statement.beside(__file__, "release")


def release(host: str, leases: Sequence[tuple[int, int]]) -> Query[int]:
    """Give back these (id, lease) of `host`. Answers how many were still held."""
    pairs = sorted(set(leases))
    params = {
        "host": host,
        "ids": Bigints([pair[0] for pair in pairs]),
        "leases": Integers([pair[1] for pair in pairs]),
    }
    return Query(_RELEASE, params, lambda rows: int(rows[0][0]))
