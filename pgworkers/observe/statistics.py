"""Statistics: what happened per minute, queue and task, gathered in memory and written by the host in one batch.

It listens to facts and only counts, so it delays nothing. Times go into buckets of fixed bounds, a quarter octave wide:
histograms of several hosts add up exactly, and a percentile read from them is right within ten percent. The process knows no
wall clock: it says how long ago something was, and the database says which minute that is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from operator import attrgetter

from pgworkers import events
from pgworkers.clock import monotonic
from pgworkers.facts import ByKind, Hearing
from pgworkers.postgres.statements import Query, Statement

_WRITE = Statement.beside(__file__, "statistics_write")
_PRUNE = Statement.beside(__file__, "statistics_prune")

MINUTE = 60.0
KEEP = 30 * 86400.0  #: seconds that minutes are kept
#: Minutes kept in memory while the database is away; older ones are added to the oldest.
POCKETS = 120
BUCKETS = 120
LEAST = 0.001  #: seconds; all that took less are in the first bucket
STARTED = "started"
_of_task, _of_end = attrgetter("queue", "task"), attrgetter("queue", "task", "verdict")
_BOUNDS = [LEAST * 2 ** (at / 4) for at in range(BUCKETS - 1)]


def bucket(value: float) -> int:
    """The place of a time in a histogram: 0 is below 1 ms, then a quarter of an octave each."""
    return bisect_right(_BOUNDS, value) if value >= LEAST else 0  # also NaN


@dataclass(slots=True)
class Tally:
    """One queue, task and verdict in one minute."""

    count: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    histogram: list[int] = field(default_factory=list)

    def put(self, values: list[float], cpus: Iterable[float] = ()) -> None:
        """Times, and CPU times. What is no time counts as 0."""
        if not (min(values) >= 0.0 and sum(values) < inf):  # one NaN makes a NaN of the sum
            values = [value if 0.0 < value < inf else 0.0 for value in values]
        histogram = self.histogram
        least, most = bucket(min(values)), bucket(max(values))
        if most >= len(histogram):
            histogram += [0] * (most + 1 - len(histogram))
        if least == most:  # as jobs that are told together mostly are
            histogram[most] += len(values)
        else:
            for value in values:
                histogram[bucket(value)] += 1
        self.count += len(values)
        self.seconds += sum(values)
        self.cpu += sum([cpu for cpu in cpus if 0.0 < cpu < inf])

    def add(self, other: Tally) -> None:
        longer = max(len(self.histogram), len(other.histogram))
        mine, theirs = (h + [0] * (longer - len(h)) for h in (self.histogram, other.histogram))
        self.histogram = [a + b for a, b in zip(mine, theirs, strict=True)]
        self.count += other.count
        self.seconds += other.seconds
        self.cpu += other.cpu


Key = tuple[str, str, str]  # queue, task, verdict
Pockets = dict[int, dict[Key, Tally]]  # by minute of the monotonic clock


class Statistics(ByKind):
    """A listener to facts. Once a minute and at the end: `take`, run the query, then `written`."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._pockets: Pockets = {}
        self._pocket: dict[Key, Tally] = {}  # the one of this minute,
        self._until = 0.0  # which ends then
        self._sent: Pockets = {}

    def hears(self, kind: type) -> Hearing | None:
        if kind is events.JobStarted:
            return self._started
        return self._ended if kind is events.JobEnded else None

    def _started(self, facts: Iterator[events.JobStarted]) -> None:
        pocket = self._this_minute()
        for (queue, task), alike in groupby(facts, _of_task):
            _tally(pocket, (queue, task, STARTED)).put([fact.waited for fact in alike])

    def _ended(self, facts: Iterator[events.JobEnded]) -> None:
        pocket = self._this_minute()
        for key, group in groupby(facts, _of_end):
            alike = list(group)
            _tally(pocket, key).put([fact.duration for fact in alike], [fact.cpu for fact in alike])

    def take(self) -> Query[int] | None:
        """Write all that was not written yet; None: nothing happened. The answer is the number of rows.

        Without `written` it is part of the next `take`: a write that got no answer is repeated, and counts twice in the rare
        case that only the answer was lost.
        """
        for minute, pocket in self._pockets.items():
            _merge(self._sent.setdefault(minute, {}), pocket)
        self._pockets, self._until = {}, 0.0
        _bound(self._sent)
        if not self._sent:
            return None
        now = self._now()
        rows = sorted(
            (now - (minute + 0.5) * MINUTE, key, tally)
            for minute, pocket in self._sent.items()
            for key, tally in pocket.items()
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

    def written(self) -> None:
        """The query that `take` gave last was answered."""
        self._sent = {}

    def _this_minute(self) -> dict[Key, Tally]:
        now = self._now()
        if not now < self._until:
            minute = int(now // MINUTE)
            self._pocket, self._until = self._pockets.setdefault(minute, {}), (minute + 1) * MINUTE
        return self._pocket


def _tally(pocket: dict[Key, Tally], key: Key) -> Tally:
    tally = pocket.get(key)
    if tally is None:
        tally = pocket[key] = Tally()
    return tally


def prune(older: float, limit: int) -> Query[int]:
    """Delete at most so many rows of minutes more than `older` seconds ago. Answers how many."""
    return Query(_PRUNE, {"older": older, "limit": limit}, len)


def _merge(into: dict[Key, Tally], pocket: dict[Key, Tally]) -> None:
    for key, tally in pocket.items():
        into.setdefault(key, Tally()).add(tally)


def _bound(pockets: Pockets) -> None:
    while len(pockets) > POCKETS:
        oldest, second = sorted(pockets)[:2]
        _merge(pockets[second], pockets.pop(oldest))
