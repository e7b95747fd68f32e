"""How fast a scope may go, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    """`rate` tokens a second; up to `burst` may lie in the bucket."""

    scope: str
    rate: float
    burst: float
