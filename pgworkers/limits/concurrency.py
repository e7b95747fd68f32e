"""Concurrency limits that operators set, and the duty that deletes old marks of limits and groups.

Limits are checked by the claim: job/claim.sql calls `pgworkers.choose_claimed_jobs()` and `pgworkers.admit_limited_jobs()`
(schema/0001_initial.sql, part 4.3).
"""

from __future__ import annotations

from dataclasses import dataclass

from pgworkers.postgres.statements import Query, Statement

_CONCURRENCY_SET = Statement.from_file(__file__, "concurrency_set")
_CONCURRENCY_REMOVE = Statement.from_file(__file__, "concurrency_remove")
_CONCURRENCY_LIST = Statement.from_file(__file__, "concurrency_list")


@dataclass(frozen=True, slots=True)
class ConcurrencyLimit:
    """How many jobs run at once: of a task, of a key, of each key of a task. `running`: how many are running now.

    `set_by`: `app` or `operator`.
    """

    kind: str
    name: str
    slots: int
    running: int
    set_by: str


def set_limit(kind: str, name: str, slots: int | None) -> Query[bool]:
    """At most `slots` jobs of a task or key at once, over all hosts, whatever the app says; None: as the app says."""
    if slots is None:
        return Query(_CONCURRENCY_REMOVE, {"kind": kind, "name": name}, bool)
    return Query(_CONCURRENCY_SET, {"kind": kind, "name": name, "slots": slots}, bool)


def list_limits() -> Query[list[ConcurrencyLimit]]:
    """Every concurrency limit, by app or operator, and how many jobs run under it."""
    return Query(_CONCURRENCY_LIST, {}, lambda rows: [ConcurrencyLimit(*row) for row in rows])


_CONCURRENCY_PRUNE_LIMIT_SCAN_STARTS = Statement.from_file(__file__, "concurrency_prune_limit_scan_starts")
_CONCURRENCY_PRUNE_GROUP_SCAN_STARTS = Statement.from_file(__file__, "concurrency_prune_group_scan_starts")

#: Age at which a mark is deleted.
SCAN_START_MAX_AGE_SECONDS = 86400.0


def prune_limit_scan_starts(older: float, limit: int) -> Query[int]:
    """Delete marks of limits made more than `older` seconds ago, at most `limit` of them. Returns how many."""
    return Query(_CONCURRENCY_PRUNE_LIMIT_SCAN_STARTS, {"older": older, "limit": limit}, len)


def prune_group_scan_starts(older: float, limit: int) -> Query[int]:
    """Delete marks of groups that were due more than `older` seconds ago, at most `limit` of them. Returns how many."""
    return Query(_CONCURRENCY_PRUNE_GROUP_SCAN_STARTS, {"older": older, "limit": limit}, len)
