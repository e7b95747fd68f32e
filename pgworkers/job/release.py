"""Release: claimed but not started jobs go back to their queue, as if they had never been claimed."""

from __future__ import annotations

from collections.abc import Sequence

from pgworkers.job.claim import Fence
from pgworkers.job.postmortem import fences
from pgworkers.postgres.statements import Query, Statement

_RELEASE = Statement.beside(__file__, "release")


def release(host: str, held: Sequence[Fence]) -> Query[int]:
    """Give back these jobs of `host`. Answers how many were still held."""
    params = fences(sorted(set(held))) | {"host": host}
    return Query(_RELEASE, params, lambda rows: int(rows[0][0]))
