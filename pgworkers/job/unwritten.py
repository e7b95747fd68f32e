"""Unwritten: what became of ends that a finish or a retry did not write."""

from __future__ import annotations

from collections.abc import Sequence

from pgworkers.job.claim import Fence
from pgworkers.job.finish import End
from pgworkers.job.postmortem import Postmortem, fences
from pgworkers.job.retry import Again
from pgworkers.postgres.arrays import Texts
from pgworkers.postgres.statements import Query, Statement

_ENDS = Statement.beside(__file__, "unwritten_ends")
_ATTEMPTS = Statement.beside(__file__, "unwritten_attempts")


def unwritten_ends(host: str, ends: Sequence[End]) -> Query[dict[Fence, str]]:
    """Answers for each: "already" (an earlier send was committed), "locked" (send it again later) or "lost"."""
    return _asked(_ENDS, host, ends)


def unwritten_attempts(host: str, agains: Sequence[Again]) -> Query[dict[Fence, str]]:
    """Answers as `unwritten_ends` does."""
    return _asked(_ATTEMPTS, host, agains)


def _asked(statement: Statement, host: str, ended: Sequence[Postmortem]) -> Query[dict[Fence, str]]:
    params = fences(ended) | {"host": host, "verdicts": Texts([str(end.verdict) for end in ended])}

    def read(rows: list[tuple[int, bool, bool]]) -> dict[Fence, str]:
        return {
            ended[nth - 1].fence: "already" if already else "locked" if locked else "lost"
            for nth, already, locked in rows
        }

    return Query(statement, params, read)
