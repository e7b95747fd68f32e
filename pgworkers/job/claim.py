"""Claim jobs, and keep claims fast and possible.

`claim` moves jobs from ready to running, in one statement over all queues of a host: claim.sql by priority, claim_ranges.sql
by priority in given ranges of each queue, claim_oldest.sql the oldest first. `park` moves jobs of tasks that a host
does not know out of the way of its claims, in portions. `end_oversized_jobs` and `end_unclaimable_jobs` end the ready jobs
whose data makes a claim fail, so that they stop no other job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from pgworkers.bounds import MAX_BIGINT
from pgworkers.job import sanitize
from pgworkers.job.model import ClaimedJob
from pgworkers.job.sanitize import MAX_ERROR_LINE_CHARACTERS
from pgworkers.postgres.arrays import Bigints, Integers, Texts, Timestamps
from pgworkers.postgres.statements import Query, Statement

_CLAIM = Statement.from_file(__file__, "claim")
_CLAIM_RANGES = Statement.from_file(__file__, "claim_ranges")
_CLAIM_OLDEST = Statement.from_file(__file__, "claim_oldest")

#: How many groups (of jobs behind a limit) and priorities of a queue one claim compares.
GROUPS_COMPARED_PER_QUEUE = 100
LOWEST_PRIORITY, HIGHEST_PRIORITY = -(1 << 31), (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class QueueCapacity:
    """How many jobs of a queue a host can take."""

    queue: str
    count: int


class ScanRange(NamedTuple):
    """Where in a queue to search: these priorities, from `first_id` on; with one priority also up to `last_id`."""

    low_priority: int
    high_priority: int
    first_id: int
    last_id: int = MAX_BIGINT


WHOLE_QUEUE = (ScanRange(LOWEST_PRIORITY, HIGHEST_PRIORITY, -(1 << 63)),)


def claim(
    host: str,
    capacities: list[QueueCapacity],
    tasks: list[str],
    oldest_first_seconds: float | None = None,
    *,
    scan_ranges: Mapping[str, Sequence[ScanRange]] | None = None,
    include_limited: bool = True,
) -> Query[list[ClaimedJob]]:
    """Take up to `count` jobs of each queue, of the tasks this host knows, by priority and then in enqueue order.

    `scan_ranges`: where to search in a queue, the highest priorities first; by default everywhere. Without
    `include_limited`, jobs behind a concurrency limit are left alone. With `oldest_first_seconds`, jobs that have been ready
    for that long come first, the oldest before all others, whatever their priority. Such a claim always takes jobs behind
    limits, too.
    """
    counts: dict[str, int] = {}
    for want in capacities:
        counts[want.queue] = counts.get(want.queue, 0) + max(0, want.count)
    params = {
        "host": host,
        "queues": Texts(counts),
        "counts": Integers(counts.values()),
        "tasks": Texts(tasks),
        "max_groups": GROUPS_COMPARED_PER_QUEUE,
    }
    if oldest_first_seconds is None and not scan_ranges:
        return Query(_CLAIM, params | {"include_limited": include_limited}, _read_claimed, is_binary=True)
    ranges = [
        (nth, place)
        for nth, queue in enumerate(counts, 1)
        for place in (scan_ranges or {}).get(queue, WHOLE_QUEUE)
    ]
    params |= {
        "queue_numbers": Integers([nth for nth, _ in ranges]),
        "low_priorities": Integers([place.low_priority for _, place in ranges]),
        "high_priorities": Integers([place.high_priority for _, place in ranges]),
        "first_ids": Bigints([place.first_id for _, place in ranges]),
        "last_ids": Bigints([place.last_id for _, place in ranges]),
    }
    if oldest_first_seconds is not None:
        return Query(
            _CLAIM_OLDEST, params | {"min_age_seconds": oldest_first_seconds}, _read_claimed, is_binary=True
        )
    return Query(_CLAIM_RANGES, params | {"include_limited": include_limited}, _read_claimed, is_binary=True)


_by_id, _by_priority = attrgetter("id"), attrgetter("priority")


def _read_claimed(rows: list[tuple[Any, ...]]) -> list[ClaimedJob]:
    claimed = [ClaimedJob._make(row) for row in rows]
    claimed.sort(key=_by_id)  # RETURNING keeps no order
    claimed.sort(key=_by_priority, reverse=True)
    return claimed


_CLAIM_PARK = Statement.from_file(__file__, "claim_park")

#: How many jobs of a queue one portion looks at.
PARK_PORTION_ROWS = 2000


class ParkedPortion(NamedTuple):
    """What one portion moved, by task, and the place (priority, id) of the last job it looked at; None: that was all.

    `newest_id`: the id of the newest job of all queues.
    """

    jobs_by_task: dict[str, int]
    last_place: tuple[int, int] | None
    newest_id: int = 0


def park(queue: str, tasks: Iterable[str], max_rows: int = PARK_PORTION_ROWS) -> Query[ParkedPortion]:
    """Park the jobs of unknown tasks among the first jobs of a queue.

    `tasks`: those that the host knows.
    """

    def read(rows: list[tuple[Any, ...]]) -> ParkedPortion:
        moved = {task: jobs for task, jobs, *_ in rows if task is not None}
        for task, seen, priority, job_id, newest in rows:
            if task is None:
                return ParkedPortion(moved, (priority, job_id) if seen >= max_rows else None, newest or 0)
        return ParkedPortion(moved, None)

    return Query(_CLAIM_PARK, {"queue": queue, "tasks": Texts(tasks), "max_rows": max_rows}, read)


_CLAIM_END_UNCLAIMABLE = Statement.from_file(__file__, "claim_end_unclaimable")
_CLAIM_END_OVERSIZED = Statement.from_file(__file__, "claim_end_oversized")

#: The most rows of each queue that are tried: this many with a concurrency limit, and as many without.
UNCLAIMABLE_SCAN_ROWS = 2000
#: SQLSTATE classes of errors that one row's data can cause: data, integrity, a limit of the server.
#: Not XX (internal): that is damage or a bug, and healthy rows fail with it, too.
_DATA_ERROR_CLASSES = ("22", "23", "54")


class UnclaimableJob(NamedTuple):
    """A job that no claim can take. It is dead now."""

    id: int
    lease: int
    queue: str
    task: str
    attempt: int
    max_attempts: int
    reason: str


def end_oversized_jobs(queues: Iterable[str], tasks: Iterable[str]) -> Query[list[UnclaimableJob]]:
    """End the jobs that are too large to print, among those that a claim would read.

    Returns them.
    """
    return Query(_CLAIM_END_OVERSIZED, _unclaimable_params(queues, tasks), _read_unclaimable)


def end_unclaimable_jobs(queues: Iterable[str], tasks: Iterable[str]) -> Query[list[UnclaimableJob]]:
    """End the jobs that cannot be claimed, among those that a claim would read. Returns them."""
    return Query(_CLAIM_END_UNCLAIMABLE, _unclaimable_params(queues, tasks), _read_unclaimable)


def _unclaimable_params(queues: Iterable[str], tasks: Iterable[str]) -> dict[str, Any]:
    return {"queues": Texts(queues), "tasks": Texts(tasks), "max_rows": UNCLAIMABLE_SCAN_ROWS}


def is_data_error(sqlstate: str | None) -> bool:
    """True if the data of a row can be the reason of an error."""
    return sqlstate is not None and sqlstate.startswith(_DATA_ERROR_CLASSES)


def _read_unclaimable(rows: list[tuple[Any, ...]]) -> list[UnclaimableJob]:
    return [
        UnclaimableJob._make(row)._replace(reason=sanitize.one_line(row[6], MAX_ERROR_LINE_CHARACTERS))
        for row in rows
    ]


def fence_params(rows: Sequence[Any]) -> dict[str, Any]:
    """The parameters by which a write names each row: its id, its lease and when it was claimed."""
    return {
        "ids": Bigints([row.id for row in rows]),
        "leases": Integers([row.lease for row in rows]),
        "claims": Timestamps([row.claimed_at_us for row in rows]),
    }
