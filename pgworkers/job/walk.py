"""A walk reads a table in portions, so that each statement is short. A `Step` says where the next portion begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Step(Generic[P]):
    """One portion. `count`: how many rows it changed. `next`: the place to go on from, None at the end of the table."""

    next: P | None
    count: int
    is_blocked: bool = False  #: another session holds a row of this portion, so nothing was changed
