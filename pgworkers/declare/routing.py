"""Which queue a task goes to when it names none: rules over its name, the first that fits wins."""

from __future__ import annotations

from dataclasses import dataclass

from pgworkers.bounds import NAME_BYTES
from pgworkers.declare.options import read_name
from pgworkers.errors import UsageError


@dataclass(frozen=True, slots=True)
class Route:
    prefix: str
    exact: bool
    queue: str

    def fits(self, task: str) -> bool:
        return task == self.prefix if self.exact else task.startswith(self.prefix)


def read_route(pattern: str, queue: str) -> Route:
    """`img.*` is every name that begins with `img.`; `*` is every name; without a star it is one name."""
    read_name(pattern, what="route", limit=NAME_BYTES)
    prefix, star, rest = pattern.partition("*")
    if rest:
        raise UsageError(f"route {pattern!r}: the star comes last, as in img.*; nothing else is a pattern")
    return Route(prefix, not star, queue)
