"""Statistics per minute, queue and task, collected in memory and written by the host in one batch.

Times go into buckets of fixed bounds, a quarter octave wide. Histograms of several hosts add up exactly, and a percentile
read from them is right within ten percent. The process does not use its wall clock: it sends how long ago something was,
and the database computes the minute.

The leader also reads the sizes of our tables and the oldest transaction that holds back vacuum, for its gauges.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from operator import attrgetter
from typing import Any

from pgworkers import events
from pgworkers.clock import monotonic
from pgworkers.events import BatchHandler, ByKind, StorageMeasured, TableSize
from pgworkers.postgres.statements import Query, Statement

_WRITE = Statement.from_file(__file__, "statistics_write")
_PRUNE = Statement.from_file(__file__, "statistics_prune")

SECONDS_PER_MINUTE = 60.0
STATISTICS_RETENTION_SECONDS = 30 * 86400.0  #: seconds that minutes are kept
#: Minutes kept in memory while the database is away; older ones are added to the oldest.
MAX_UNWRITTEN_MINUTES = 120
HISTOGRAM_BUCKET_COUNT = 120
SMALLEST_BOUND_SECONDS = 0.001  #: seconds; all that took less are in the first bucket
STARTED_VERDICT = "started"
_by_task, _by_verdict = attrgetter("queue", "task"), attrgetter("queue", "task", "verdict")
_BUCKET_BOUNDS = [SMALLEST_BOUND_SECONDS * 2 ** (at / 4) for at in range(HISTOGRAM_BUCKET_COUNT - 1)]


def bucket_index(value: float) -> int:
    """The place of a time in a histogram: 0 is below 1 ms, then a quarter of an octave each."""
    return bisect_right(_BUCKET_BOUNDS, value) if value >= SMALLEST_BOUND_SECONDS else 0  # also NaN


@dataclass(slots=True)
class MinuteTotals:
    """One queue, task and verdict in one minute."""

    count: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    histogram: list[int] = field(default_factory=list)

    def observe(self, values: list[float], cpus: Iterable[float] = ()) -> None:
        """Add times and CPU times. Values that are not a time count as 0."""
        for value in values:
            seconds = value if 0.0 < value < inf else 0.0  # also NaN
            bucket = bucket_index(seconds)
            if bucket >= len(self.histogram):
                self.histogram += [0] * (bucket + 1 - len(self.histogram))
            self.histogram[bucket] += 1
            self.seconds += seconds
        self.count += len(values)
        self.cpu += sum([cpu for cpu in cpus if 0.0 < cpu < inf])

    def merge(self, other: MinuteTotals) -> None:
        longer = max(len(self.histogram), len(other.histogram))
        mine, theirs = (h + [0] * (longer - len(h)) for h in (self.histogram, other.histogram))
        self.histogram = [a + b for a, b in zip(mine, theirs, strict=True)]
        self.count += other.count
        self.seconds += other.seconds
        self.cpu += other.cpu


TotalsKey = tuple[str, str, str]  # queue, task, verdict
TotalsByMinute = dict[int, dict[TotalsKey, MinuteTotals]]  # by minute of the monotonic clock


class Statistics(ByKind):
    """Collects totals from events. Once a minute and at the end: `write_query`, run it, `acknowledge`."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._collected: TotalsByMinute = {}
        self._current_minute: dict[TotalsKey, MinuteTotals] = {}  # the one of this minute,
        self._current_minute_ends = 0.0  # which ends then
        self._unacknowledged: TotalsByMinute = {}

    def handler_for(self, kind: type) -> BatchHandler | None:
        if kind is events.AttemptStarted:
            return self._on_started
        return self._on_ended if kind is events.AttemptEnded else None

    def _on_started(self, batch: Iterator[events.AttemptStarted]) -> None:
        totals = self._this_minute()
        for (queue, task), alike in groupby(batch, _by_task):
            _totals_for(totals, (queue, task, STARTED_VERDICT)).observe(
                [event.waited_seconds for event in alike]
            )

    def _on_ended(self, batch: Iterator[events.AttemptEnded]) -> None:
        totals = self._this_minute()
        for key, group in groupby(batch, _by_verdict):
            alike = list(group)
            _totals_for(totals, key).observe(
                [event.duration for event in alike], [event.cpu for event in alike]
            )

    def write_query(self) -> Query[int] | None:
        """A query that writes all totals that are not written yet, or None. It returns the number of rows.

        Until `acknowledge()` is called, the next query has the same totals again. A write that got no answer is
        repeated, and counts twice in the rare case that only the answer was lost.
        """
        for minute, totals in self._collected.items():
            _merge(self._unacknowledged.setdefault(minute, {}), totals)
        self._collected, self._current_minute_ends = {}, 0.0
        _drop_oldest_minutes(self._unacknowledged)
        if not self._unacknowledged:
            return None
        now = self._now()
        rows = sorted(
            (now - (minute + 0.5) * SECONDS_PER_MINUTE, key, tally)
            for minute, totals in self._unacknowledged.items()
            for key, tally in totals.items()
        )
        params = {
            "ages": [max(0.0, age) for age, _, _ in rows],
            "queues": [key[0] for _, key, _ in rows],
            "tasks": [key[1] for _, key, _ in rows],
            "verdicts": [key[2] for _, key, _ in rows],
            "counts": [tally.count for _, _, tally in rows],
            "seconds": [tally.seconds for _, _, tally in rows],
            "cpus": [tally.cpu for _, _, tally in rows],
            "histograms": ["{" + ",".join(map(str, tally.histogram)) + "}" for _, _, tally in rows],
        }
        return Query(_WRITE, params, len)

    def acknowledge(self) -> None:
        """The last query of `write_query` succeeded."""
        self._unacknowledged = {}

    def _this_minute(self) -> dict[TotalsKey, MinuteTotals]:
        now = self._now()
        if not now < self._current_minute_ends:
            minute = int(now // SECONDS_PER_MINUTE)
            self._current_minute, self._current_minute_ends = (
                self._collected.setdefault(minute, {}),
                (minute + 1) * SECONDS_PER_MINUTE,
            )
        return self._current_minute


def _totals_for(totals: dict[TotalsKey, MinuteTotals], key: TotalsKey) -> MinuteTotals:
    tally = totals.get(key)
    if tally is None:
        tally = totals[key] = MinuteTotals()
    return tally


def prune(older_than: float, limit: int) -> Query[int]:
    """Delete at most `limit` rows of minutes more than `older_than` seconds ago. Returns how many were deleted."""
    return Query(_PRUNE, {"older": older_than, "limit": limit}, len)


def _merge(into: dict[TotalsKey, MinuteTotals], totals: dict[TotalsKey, MinuteTotals]) -> None:
    for key, tally in totals.items():
        into.setdefault(key, MinuteTotals()).merge(tally)


def _drop_oldest_minutes(totals_by_minute: TotalsByMinute) -> None:
    while len(totals_by_minute) > MAX_UNWRITTEN_MINUTES:
        oldest, second = sorted(totals_by_minute)[:2]
        _merge(totals_by_minute[second], totals_by_minute.pop(oldest))


_TABLE_SIZES = Statement.from_file(__file__, "statistics_table_sizes")


def table_sizes() -> Query[StorageMeasured]:
    """The tables of the schema, and the oldest transaction of the database."""
    return Query(_TABLE_SIZES, {}, _read_table_sizes)


def _read_table_sizes(rows: list[tuple[Any, ...]]) -> StorageMeasured:
    tables = [TableSize(name, dead, size) for name, dead, size, _, _ in rows]
    _, _, _, oldest_seconds, oldest_holder = rows[0] if rows else ("", 0, 0, 0.0, "")
    return StorageMeasured(tables, oldest_seconds, oldest_holder)
