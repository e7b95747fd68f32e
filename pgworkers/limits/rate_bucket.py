"""Rate buckets: one row of tokens per scope, shared by all hosts and refilled by the database's clock.

Taking tokens reserves them: the balance may go below zero, and such a token is due when the refill reaches it. So one query
is enough however many callers wait, and they are served in the order in which they asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgworkers.limits.rate import RateLimit
from pgworkers.postgres.statements import Query, Statement

_RATE_TAKE = Statement.from_file(__file__, "rate_take")
_RATE_RETURN = Statement.from_file(__file__, "rate_return")
_RATE_DRAIN = Statement.from_file(__file__, "rate_drain")

#: A service that says "later" is believed within these bounds, in seconds.
MIN_DRAIN_SECONDS, MAX_DRAIN_SECONDS = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class TakenTokens:
    """How many tokens were granted, and what lay in the bucket before."""

    granted: int
    tokens_before: float

    def wait_seconds(self, rate: float) -> list[float]:
        """In how many seconds each granted token is due, from the moment of the answer."""
        return [max(0.0, (nth - self.tokens_before) / rate) for nth in range(1, self.granted + 1)]


def take_tokens(limit: RateLimit, want: int, within: float | None) -> Query[TakenTokens]:
    """Reserve up to `want` tokens that are due within `within` seconds (None: any time). None granted: none was taken."""
    params = {
        "scope": limit.scope, "rate": limit.tokens_per_second, "burst": limit.burst, "want": want, "within": within,
    }  # fmt: skip
    return Query(_RATE_TAKE, params, lambda rows: TakenTokens(*rows[0]))


def return_tokens(scope: str, count: int) -> Query[None]:
    """Put unused tokens back."""
    return Query(_RATE_RETURN, {"scope": scope, "count": count}, lambda rows: None)


def drain_bucket(limit: RateLimit, seconds: float) -> Query[None]:
    """Let no token be due for `seconds`."""
    params = {
        "scope": limit.scope, "rate": limit.tokens_per_second, "burst": limit.burst,
        "seconds": min(max(seconds, MIN_DRAIN_SECONDS), MAX_DRAIN_SECONDS),
    }  # fmt: skip
    return Query(_RATE_DRAIN, params, lambda rows: None)
