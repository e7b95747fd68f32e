"""Claim: the move from ready to running, in one statement over all queues of a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pgworkers.postgres.statements import Query, Statement

_CLAIM = Statement.beside(__file__, "claim")
_AGED = Statement.beside(__file__, "claim_aged")

#: How many lanes (of jobs behind a limit) and priorities of a queue one claim compares.
LOOK = 100


@dataclass(frozen=True, slots=True)
class Wants:
    """How many jobs of a queue a host has room for."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job this host now holds the lease of. JSON stays text: the master passes it through unread."""

    id: int
    lease: int
    queue: str
    task: str
    args: str
    attempt: int  # already counted: the first is 1
    crashes: int  # before this attempt
    max_attempts: int
    max_crashes: int
    timeout: float | None  # seconds for this attempt; None: what the task says
    memory: int | None
    remaining: float | None  # seconds until the deadline of the whole job; negative when it is past
    checkpoint: str | None
    meta: str | None
    errors: list[str]
    waited: float  # seconds it was ready
    cancelled: bool


def claim(host: str, wants: list[Wants], tasks: list[str], aged: float | None = None) -> Query[list[Claimed]]:
    """Take up to `count` jobs of each queue, of the tasks this host knows, by priority and then in enqueue order.

    With `aged`, those that have been ready for so many seconds come first, the oldest of them before all.
    """
    counts: dict[str, int] = {}
    for want in wants:
        counts[want.queue] = counts.get(want.queue, 0) + max(0, want.count)
    params = {
        "host": host,
        "queues": list(counts),
        "counts": list(counts.values()),
        "tasks": tasks,
        "look": LOOK,
    }
    if aged is not None:
        return Query(_AGED, params | {"aged": aged}, _read)
    return Query(_CLAIM, params, _read)


def _read(rows: list[tuple[Any, ...]]) -> list[Claimed]:
    rows.sort(key=lambda row: (-row[0], row[1]))  # RETURNING keeps no order
    return [Claimed(*row[1:]) for row in rows]
