"""Slots: the share of each host in the workers of a queue that are counted over all hosts.

A grant says how many a host may run, what is taken how many may be running there. `grant` keeps the sum of the larger of the
two within the total, under the lock of the queue's row; `take` is how a host learns its grant and acknowledges it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgworkers.postgres.statements import Query, Statement

_TAKE = Statement.beside(__file__, "slots_take")
_GRANT = Statement.beside(__file__, "slots_grant")
_FACTS = Statement.beside(__file__, "slots_facts")


@dataclass(frozen=True, slots=True)
class Shared:
    """A queue with a total, and the live hosts that serve it, in the order of their ids."""

    queue: str
    total: int
    hosts: tuple[str, ...]


def take(host: str, held: Mapping[str, int], *, leaving: bool = False) -> Query[dict[str, int]]:
    """What this host may run of each queue; `held` is how many it may be running now. Absent: it has no grant."""
    params = {"host": host, "queues": list(held), "held": list(held.values()), "leaving": leaving}
    return Query(_TAKE, params, dict)


def grant(queue: str, total: int, wanted: Mapping[str, int], *, clock: datetime | None = None) -> Query[int]:
    """Let each host have what is `wanted` for it, as far as the total allows. Answers how many grants changed.

    `clock`: the database's time as the host reckons it; who has not acknowledged is judged by the earlier of the two.
    """
    params = {
        "queue": queue,
        "total": total,
        "hosts": list(wanted),
        "wanted": list(wanted.values()),
        "clock": clock,
    }
    return Query(_GRANT, params, lambda rows: int(rows[0][0]))


def facts(*, clock: datetime | None = None) -> Query[list[Shared]]:
    """Every queue that is shared out, as far as a live host serves it; who lives is judged as in `grant`."""
    return Query(_FACTS, {"clock": clock}, _read)


def _read(rows: list[tuple[Any, ...]]) -> list[Shared]:
    found: dict[tuple[str, int], list[str]] = {}
    for queue, total, host in rows:
        found.setdefault((queue, total), []).append(host)
    return [Shared(queue, total, tuple(hosts)) for (queue, total), hosts in found.items()]


def split(total: int, hosts: Sequence[str]) -> dict[str, int]:
    """A total over hosts: even, the remainder to the first in the order of their ids: whoever computes it gets the same."""
    if not hosts:
        return {}
    ordered = sorted(hosts)
    each, more = divmod(total, len(ordered))
    return {host: each + (nth < more) for nth, host in enumerate(ordered)}
