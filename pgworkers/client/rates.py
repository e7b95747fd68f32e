"""The rate limits of an app, by scope: declared once, used by handlers and by other code."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from pgworkers.bounds import MAX_NAME_BYTES
from pgworkers.errors import PgworkersError, UsageError
from pgworkers.limits.rate import Rate, RateLimit, TokenStock
from pgworkers.options.values import Duration, read_duration, read_name

if TYPE_CHECKING:
    from pgworkers.client.client import Client

_log = logging.getLogger("pgworkers.rate")


def read_rate_limit(scope: str, rate: float, per: Duration, burst: float | None) -> RateLimit:
    """Read the numbers of a rate limit: `rate` tokens per `per`.

    The default burst is `rate` tokens, at least one.
    """
    scope = read_name(scope, what="rate scope", limit=MAX_NAME_BYTES)
    span = read_duration(per, what=f"rate {scope}: per")
    assert span is not None
    for what, number in (("rate", rate), ("burst", burst)):
        if number is not None and not _is_positive_number(number):
            raise UsageError(f"rate {scope}: {what}={number!r} is not a number above 0")
    capacity = max(1.0, float(rate)) if burst is None else float(burst)
    if capacity < 1:
        raise UsageError(f"rate {scope}: burst={burst!r} is less than one token; nothing could ever pass")
    return RateLimit(scope, float(rate) / span, capacity)


def _is_positive_number(number: Any) -> bool:
    return (
        isinstance(number, (int, float))
        and not isinstance(number, bool)
        and math.isfinite(number)
        and number > 0
    )


class RateRegistry:
    """The rate limits that `app.rate` returns. A scope has one stock of tokens per process."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.by_scope: dict[str, Rate] = {}

    def get(self, scope: str, rate: float | None, per: Duration, burst: float | None) -> Rate:
        known = self.by_scope.get(scope)
        if rate is None:
            if known is None:
                raise UsageError(
                    f"rate {scope!r} is not declared; declare its numbers: rate({scope!r}, rate=50, per='1s')"
                )
            return known
        limit = read_rate_limit(scope, rate, per, burst)
        if known is None or known.limit != limit:
            known = self.by_scope[scope] = Rate(limit, TokenStock(limit.tokens_per_second), self._client)
        return known

    def return_unused_tokens(self) -> None:
        """Return the tokens that a job reserved and did not use.

        An error is only logged: it must not fail the job.
        """
        for rate in list(self.by_scope.values()) if self.by_scope else ():
            if not len(rate.stock):
                continue
            try:
                rate.give_back()
            except PgworkersError as error:
                _log.warning("rate %s: unused tokens were not returned: %s", rate.limit.scope, error)

    def discard_tokens(self) -> None:
        """Forget the tokens of another process or database."""
        for rate in self.by_scope.values():
            rate.stock.clear()
