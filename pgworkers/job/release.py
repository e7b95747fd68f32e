"""Release: claimed but not started jobs go back to their queue, as if they had never been claimed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pgworkers.job.claim import Fence
from pgworkers.job.postmortem import fences
from pgworkers.postgres.statements import Query, Statement

_RELEASE = Statement.beside(__file__, "release")


class Released(NamedTuple):
    """How many jobs were still held and are given back; those whose rows another session had must be sent again."""

    jobs: int
    locked: list[Fence]


def release(host: str, held: Sequence[Fence]) -> Query[Released]:
    """Give back these jobs of `host`."""
    jobs = sorted(set(held))

    def read(rows: list[tuple[Any, ...]]) -> Released:
        (count,) = [row[0] for row in rows if row[2] is None]
        return Released(int(count), [jobs[row[2] - 1] for row in rows if row[2] is not None])

    return Query(_RELEASE, fences(jobs) | {"host": host}, read)
