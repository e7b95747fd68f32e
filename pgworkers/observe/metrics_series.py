"""The numbers of metrics in memory: a family per metric, with its series. An event adds to them; a scrape reads them.

A family whose labels are names has a maximum number of series. Further names are counted under `other`, and
`series_capped_total` counts how often.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import isnan
from typing import NamedTuple

from pgworkers.observe.metrics_catalog import UNBOUNDED_LABELS, Metric

OTHER_LABEL_VALUE = "other"
#: Values of open labels (or pairs of them, as queue and task) that a family holds.
MAX_SERIES_PER_FAMILY = 500


class Exemplar(NamedTuple):
    """A job that is an example of a value."""

    job: int
    value: float
    at: float  # Unix time


class Series:
    """One counter or gauge."""

    __slots__ = ("exemplar", "line_prefix", "value")

    def __init__(self, head: str) -> None:
        self.line_prefix = head  # the line up to the value
        self.value = 0.0
        self.exemplar: Exemplar | None = None


class Histogram:
    """One histogram. Counts are kept per bucket and summed up when they are read."""

    __slots__ = ("bounds", "counts", "exemplars", "line_prefixes", "total")

    def __init__(self, bounds: tuple[float, ...], heads: list[str]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.line_prefixes = heads  # of the buckets, the count and the sum
        self.exemplars: dict[int, Exemplar] = {}

    def observe(self, value: float, exemplar: Exemplar | None = None) -> None:
        at = bisect_left(self.bounds, value)
        self.counts[at] += 1
        self.total += value
        if exemplar is not None:
            self.exemplars[at] = exemplar

    def observe_many(self, values: list[float], jobs: Sequence[int] = (), now: float = 0.0) -> None:
        """Observe the times of several jobs. The last job in a bucket becomes its exemplar. Negative times count as 0."""
        last_of_bucket: dict[int, int] = {}
        for nth, value in enumerate(values):
            seconds = value if value > 0.0 else 0.0  # also NaN
            bucket = bisect_left(self.bounds, seconds)
            self.counts[bucket] += 1
            self.total += seconds
            last_of_bucket[bucket] = nth
        if jobs:
            for bucket, nth in last_of_bucket.items():
                self.exemplars[bucket] = Exemplar(jobs[nth], max(0.0, values[nth]), now)

    def merge(self, counts: list[int], total: float) -> None:
        """Add the counts of another histogram with the same bounds."""
        self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]
        self.total += total

    def cumulative(self) -> list[int]:
        return list(accumulate(self.counts))


class Family:
    """All series of one metric."""

    def __init__(
        self,
        metric: Metric,
        on_capped: Callable[[], None],
        max_series: int = MAX_SERIES_PER_FAMILY,
        *,
        should_cap_every_label: bool = False,
    ) -> None:
        self.metric = metric
        self.series: dict[tuple[str, ...], Series] = {}
        self.histograms: dict[tuple[str, ...], Histogram] = {}
        self._on_capped = on_capped
        self._max_series = max_series
        self._unbounded_positions = [
            at
            for at, label in enumerate(metric.labels)
            if should_cap_every_label or label in UNBOUNDED_LABELS
        ]
        self._known_values: set[tuple[str, ...]] = set()

    def series_for(self, *values: str) -> Series:
        """The counter or gauge with these labels; made at 0 when it is new."""
        cell = self.series.get(values)
        if cell is None:
            values = self.capped_labels(values)
            cell = self.series.get(values)
            if cell is None:
                cell = self.series[values] = Series(self._line_prefix(self.metric.full_name, values))
        return cell

    def histogram_for(self, *values: str) -> Histogram:
        found = self.histograms.get(values)
        if found is None:
            values = self.capped_labels(values)
            found = self.histograms.get(values)
            if found is None:
                name = self.metric.full_name
                bounds = [*map(show_number, self.metric.buckets), "+Inf"]
                heads = [self._line_prefix(f"{name}_bucket", values, f'le="{bound}"') for bound in bounds]
                heads += [
                    self._line_prefix(f"{name}_count", values),
                    self._line_prefix(f"{name}_sum", values),
                ]
                found = self.histograms[values] = Histogram(self.metric.buckets, heads)
        return found

    def clear(self) -> None:
        self.series.clear()
        self.histograms.clear()
        self._known_values.clear()

    def has_series(self, *values: str) -> bool:
        """True if there is a series with exactly these labels."""
        return values in self.series or values in self.histograms

    def capped_labels(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """The same labels, or with `other` for the names, if there are too many."""
        names = tuple(values[at] for at in self._unbounded_positions)
        if not names or names in self._known_values:
            return values
        if len(self._known_values) < self._max_series:
            self._known_values.add(names)
            return values
        self._on_capped()
        return tuple(
            OTHER_LABEL_VALUE if at in self._unbounded_positions else value for at, value in enumerate(values)
        )

    def _line_prefix(self, name: str, values: tuple[str, ...], more: str = "") -> str:
        pairs = [
            f'{label}="{escape_label(value)}"'
            for label, value in zip(self.metric.labels, values, strict=True)
        ]
        if more:
            pairs.append(more)
        return f"{name}{{{','.join(pairs)}}} " if pairs else f"{name} "


def escape_label(value: str) -> str:
    """A label's value, as both formats want it. A lone surrogate has no UTF-8: it becomes a question mark."""
    text = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def show_number(value: float) -> str:
    """A number as both formats read it."""
    if isnan(value):
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
