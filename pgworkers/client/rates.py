"""The rates of an app, by scope: declared once, used from handlers and from outside."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from pgworkers.bounds import NAME_BYTES
from pgworkers.declare.options import Duration, read_duration, read_name
from pgworkers.errors import PgworkersError, UsageError
from pgworkers.flow.limit import Limit
from pgworkers.flow.rate import Rate
from pgworkers.flow.stock import Stock

if TYPE_CHECKING:
    from pgworkers.client.session import Client

_log = logging.getLogger("pgworkers.rate")


def limit_of(scope: str, rate: float, per: Duration, burst: float | None) -> Limit:
    """`rate` tokens per `per`; a burst of that many unless said otherwise."""
    scope = read_name(scope, what="rate scope", limit=NAME_BYTES)
    span = read_duration(per, what=f"rate {scope}: per")
    assert span is not None
    for what, number in (("rate", rate), ("burst", burst)):
        if number is not None and not _positive(number):
            raise UsageError(f"rate {scope}: {what}={number!r} is not a number above 0")
    most = max(1.0, float(rate)) if burst is None else float(burst)
    if most < 1:
        raise UsageError(f"rate {scope}: burst={burst!r} is less than one token; nothing could ever pass")
    return Limit(scope, float(rate) / span, most)


def _positive(number: Any) -> bool:
    return (
        isinstance(number, (int, float))
        and not isinstance(number, bool)
        and math.isfinite(number)
        and number > 0
    )


class Rates:
    """What `app.rate` gives out. A scope has one stock of tokens per process."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.declared: dict[str, Rate] = {}

    def get(self, scope: str, rate: float | None, per: Duration, burst: float | None) -> Rate:
        known = self.declared.get(scope)
        if rate is None:
            if known is None:
                raise UsageError(
                    f"rate {scope!r} is not declared; say how fast it may go: rate({scope!r}, rate=50, per='1s')"
                )
            return known
        limit = limit_of(scope, rate, per, burst)
        if known is None or known.limit != limit:
            known = self.declared[scope] = Rate(limit, Stock(limit.rate), self._client)
        return known

    def give_back(self) -> None:
        """After a job: what it took ahead is for others. Not worth a job: a failure is only said."""
        for rate in list(self.declared.values()) if self.declared else ():
            if not len(rate.stock):
                continue
            try:
                rate.give_back()
            except PgworkersError as error:
                _log.warning("rate %s: unused tokens were not given back: %s", rate.limit.scope, error)

    def forget(self) -> None:
        """After a fork: the parent's tokens are the parent's."""
        for rate in self.declared.values():
            rate.stock.empty()
