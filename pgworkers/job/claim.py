"""Claim: the move from ready to running, in one statement over all queues of a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from pgworkers.postgres.arrays import Bigints, Integers, Texts
from pgworkers.postgres.statements import Query, Statement

_CLAIM = Statement.beside(__file__, "claim")
_PLACED = Statement.beside(__file__, "claim_placed")
_AGED = Statement.beside(__file__, "claim_aged")

#: How many lanes (of jobs behind a limit) and priorities of a queue one claim compares.
LOOK = 100
LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Wants:
    """How many jobs of a queue a host has room for."""

    queue: str
    count: int


class Range(NamedTuple):
    """Where in a queue to look: these priorities, from this id on; of one priority also up to that one."""

    low: int
    high: int
    first: int
    last: int = (1 << 63) - 1


EVERYWHERE = (Range(LOWEST, HIGHEST, -(1 << 63)),)


class Fence(NamedTuple):
    """What every write of an execution names: the job, its lease, and when the server gave the claim.

    After an asynchronous failover ids and leases may be given again, to other jobs. The moment is not.
    """

    id: int
    lease: int
    claimed_at: int  # microseconds since 1970, by the server's clock


class Claimed(NamedTuple):
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
    priority: int = 0
    limited: bool = False  # behind a concurrency limit: another may wait for its place
    losses: int = 0  # deaths of its supervisor or host in a row, before this attempt
    deadline_epoch: float | None = (
        None  # the deadline of the whole job by the database's clock, as a renewal reads it
    )
    claimed_at: int = 0  # microseconds since 1970, by the clock of the server that gave the claim

    @property
    def fence(self) -> Fence:
        return Fence(self.id, self.lease, self.claimed_at)


def claim(
    host: str,
    wants: list[Wants],
    tasks: list[str],
    aged: float | None = None,
    *,
    places: Mapping[str, Sequence[Range]] | None = None,
    gates: bool = True,
) -> Query[list[Claimed]]:
    """Take up to `count` jobs of each queue, of the tasks this host knows, by priority and then in enqueue order.

    `places` are where to look in a queue, the highest priorities first; else everywhere. Without `gates`, jobs behind a
    concurrency limit are left alone. With `aged`, those that have been ready for so many seconds come first, the oldest of
    them before all, wherever they are.
    """
    counts: dict[str, int] = {}
    for want in wants:
        counts[want.queue] = counts.get(want.queue, 0) + max(0, want.count)
    params = {
        "host": host,
        "queues": Texts(counts),
        "counts": Integers(counts.values()),
        "tasks": Texts(tasks),
        "look": LOOK,
    }
    if aged is None and not places:
        return Query(_CLAIM, params | {"gates": gates}, _read, binary=True, again=True)
    ranges = [
        (nth, place) for nth, queue in enumerate(counts, 1) for place in (places or {}).get(queue, EVERYWHERE)
    ]
    params |= {
        "whose": Integers([nth for nth, _ in ranges]),
        "lows": Integers([place.low for _, place in ranges]),
        "highs": Integers([place.high for _, place in ranges]),
        "firsts": Bigints([place.first for _, place in ranges]),
        "lasts": Bigints([place.last for _, place in ranges]),
    }
    if aged is not None:
        return Query(_AGED, params | {"aged": aged}, _read, binary=True)
    return Query(_PLACED, params | {"gates": gates}, _read, binary=True)


_by_id, _by_priority = attrgetter("id"), attrgetter("priority")


def _read(rows: list[tuple[Any, ...]]) -> list[Claimed]:
    claimed = [Claimed._make(row) for row in rows]
    claimed.sort(key=_by_id)  # RETURNING keeps no order
    claimed.sort(key=_by_priority, reverse=True)
    return claimed
