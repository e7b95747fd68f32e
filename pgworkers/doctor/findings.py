"""The result of a check: a level, what was found, why it matters, and the fix as commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pgworkers.job.queries import MAX_COUNTED_JOBS

_PLAIN_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]*")


class Level(StrEnum):
    OK = "ok"
    SKIP = "skip"  #: could not be looked at; `what` says why
    WARN = "warn"  #: works, and will not for long, or not as well as it could
    FAIL = "fail"  #: something does not work


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `facts` are its numbers, for programs."""

    check: str
    level: Level
    what: str
    why: str = ""
    fix: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds of the checks. Durations are in seconds."""

    warn_after_seconds: float = 60.0  # how old a transaction, a wait or a pause may be
    slow_round_trip_seconds: float = 0.05  # a round trip to the database
    clock_skew_seconds: float = 2.0  # between the clocks
    dead_rows: int = 5_000  # dead rows of a table
    dead_ratio: float = 5.0  # times what autovacuum waits for
    bloat_bytes: int = 8 << 20  # bytes of an index
    bloat_ratio: float = 5.0  # times what its entries need
    unused_index_writes: int = 10_000  # rows written before an unused index is reported
    held_back_transactions: int = 1_000_000  # that a slot or a standby may hold back


def ok(check: str, what: str, **facts: Any) -> Finding:
    return Finding(check, Level.OK, what, facts=facts)


def skip(check: str, why: str, *fix: str) -> Finding:
    return Finding(check, Level.SKIP, why, fix=fix)


def warn(check: str, what: str, why: str, *fix: str, **facts: Any) -> Finding:
    return Finding(check, Level.WARN, what, why, fix, facts)


def fail(check: str, what: str, why: str, *fix: str, **facts: Any) -> Finding:
    return Finding(check, Level.FAIL, what, why, fix, facts)


def psql_command(statement: str) -> str:
    """A psql command that runs a statement."""
    return f"psql -c {shlex.quote(statement)}"


def quote_identifier(name: str) -> str:
    """A name as SQL takes it, quoted unless it is plain."""
    return name if _PLAIN_IDENTIFIER.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def worst_level(findings: Iterable[Finding]) -> Level:
    order = [Level.OK, Level.SKIP, Level.WARN, Level.FAIL]
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)


def show_job_count(jobs: int) -> str:
    """`7`, `at least 10,000`."""
    return f"{jobs:,}" if jobs < MAX_COUNTED_JOBS else f"at least {jobs:,}"


def jobs_wait_sentence(jobs: int) -> str:
    """`1 job waits`, `at least 10,000 jobs wait`."""
    return "1 job waits" if jobs == 1 else f"{show_job_count(jobs)} jobs wait"
