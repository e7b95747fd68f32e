"""Rate buckets: one row of tokens per scope, drawn from by every host, refilled by the database clock.

Taking is a reservation: the balance may go below zero, and a token granted then is due when the refill reaches it. So one
question is enough however long the queue, and who asked first goes first.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgworkers.flow.limit import Limit
from pgworkers.postgres.statements import Query, Statement

_TAKE = Statement.beside(__file__, "bucket_take")
_GIVE = Statement.beside(__file__, "bucket_give")
_DRAIN = Statement.beside(__file__, "bucket_drain")

#: A service that says "later" is believed within these bounds, in seconds.
DRAIN_LEAST, DRAIN_MOST = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class Taken:
    """How many tokens were granted, and what lay in the bucket before."""

    granted: int
    had: float

    def waits(self, rate: float) -> list[float]:
        """In how many seconds each granted token is due, from the moment of the answer."""
        return [max(0.0, (nth - self.had) / rate) for nth in range(1, self.granted + 1)]


def take(limit: Limit, want: int, within: float | None) -> Query[Taken]:
    """Reserve up to `want` tokens that are due within so many seconds (None: whenever). None granted: nothing was taken."""
    params = {
        "scope": limit.scope, "rate": limit.rate, "burst": limit.burst, "want": want, "within": within,
    }  # fmt: skip
    return Query(_TAKE, params, lambda rows: Taken(*rows[0]))


def give(scope: str, count: int) -> Query[None]:
    """Put unused tokens back."""
    return Query(_GIVE, {"scope": scope, "count": count}, lambda rows: None)


def drain(limit: Limit, seconds: float) -> Query[None]:
    """Nobody gets a token for so long."""
    params = {
        "scope": limit.scope, "rate": limit.rate, "burst": limit.burst,
        "seconds": min(max(seconds, DRAIN_LEAST), DRAIN_MOST),
    }  # fmt: skip
    return Query(_DRAIN, params, lambda rows: None)
