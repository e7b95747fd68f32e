"""Cluster slots: the share of each host in the workers of a queue that is limited over all hosts.

A grant says how many workers a host may run. The acknowledged number says how many may be running there. `grant_slots` keeps
the sum of the larger of the two within the total, under the lock of the queue's row. `acknowledge_slots` is how a host reads
its grant and acknowledges it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgworkers.postgres.statements import Query, Statement

_CLUSTER_SLOTS_ACKNOWLEDGE = Statement.from_file(__file__, "cluster_slots_acknowledge")
_CLUSTER_SLOTS_GRANT = Statement.from_file(__file__, "cluster_slots_grant")
_CLUSTER_SLOTS_QUEUES = Statement.from_file(__file__, "cluster_slots_queues")


@dataclass(frozen=True, slots=True)
class SharedQueue:
    """A queue with a total, and the live hosts that serve it, in the order of their ids."""

    queue: str
    total_workers: int
    hosts: tuple[str, ...]


def acknowledge_slots(host: str, held: Mapping[str, int], *, leaving: bool = False) -> Query[dict[str, int]]:
    """What this host may run of each queue; `held` is how many it may be running now. Absent: it has no grant."""
    params = {"host": host, "queues": list(held), "held": list(held.values()), "leaving": leaving}
    return Query(_CLUSTER_SLOTS_ACKNOWLEDGE, params, dict)


def grant_slots(
    queue: str, total: int, wanted: Mapping[str, int], *, host_clock: datetime | None = None
) -> Query[int | None]:
    """Let each host have what is `wanted` for it, as far as the total allows. Answers how many grants changed.

    None: another session has locked the row of the queue or of a grant; nothing was changed. `host_clock`: the database's
    time as the host estimates it; the earlier of the two decides which hosts are late.
    """
    params = {
        "queue": queue,
        "total": total,
        "hosts": list(wanted),
        "wanted": list(wanted.values()),
        "clock": host_clock,
    }
    return Query(_CLUSTER_SLOTS_GRANT, params, lambda rows: rows[0][0])


def shared_queues(*, host_clock: datetime | None = None) -> Query[list[SharedQueue]]:
    """Every queue that is shared out, as far as a live host serves it; who lives is judged as in `grant_slots`."""
    return Query(_CLUSTER_SLOTS_QUEUES, {"clock": host_clock}, _read_shared_queues)


def _read_shared_queues(rows: list[tuple[Any, ...]]) -> list[SharedQueue]:
    found: dict[tuple[str, int], list[str]] = {}
    for queue, total, host in rows:
        found.setdefault((queue, total), []).append(host)
    return [SharedQueue(queue, total, tuple(hosts)) for (queue, total), hosts in found.items()]


def split_evenly(total: int, hosts: Sequence[str]) -> dict[str, int]:
    """Split a total evenly over hosts; the remainder goes to the first ids, so each host computes the same."""
    if not hosts:
        return {}
    ordered = sorted(hosts)
    each, more = divmod(total, len(ordered))
    return {host: each + (nth < more) for nth, host in enumerate(ordered)}
