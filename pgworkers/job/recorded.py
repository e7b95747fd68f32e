"""Recorded: which ends that were not written are on record already, because the answer to an earlier send was lost."""

from __future__ import annotations

from collections.abc import Sequence

from pgworkers.job.claim import Fence
from pgworkers.job.finish import End
from pgworkers.job.postmortem import Postmortem, fences
from pgworkers.job.retry import Again
from pgworkers.postgres.arrays import Texts
from pgworkers.postgres.statements import Query, Statement

_ENDS = Statement.beside(__file__, "recorded_ends")
_ATTEMPTS = Statement.beside(__file__, "recorded_attempts")


def recorded_ends(host: str, ends: Sequence[End]) -> Query[set[Fence]]:
    """Those of these ends that `host` has written before."""
    return _recorded(_ENDS, host, ends)


def recorded_attempts(host: str, agains: Sequence[Again]) -> Query[set[Fence]]:
    """Those of these attempts that `host` has written before."""
    return _recorded(_ATTEMPTS, host, agains)


def _recorded(statement: Statement, host: str, ended: Sequence[Postmortem]) -> Query[set[Fence]]:
    params = fences(ended) | {"host": host, "verdicts": Texts([str(end.verdict) for end in ended])}
    return Query(statement, params, lambda rows: {ended[row[0] - 1].fence for row in rows})
