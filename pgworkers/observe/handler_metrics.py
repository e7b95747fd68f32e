"""Metrics of handlers: `ctx.metrics` in the worker, and their series in the master.

The worker adds values up and sends them with the heartbeat and with the report of the job. The master trusts nothing that
a handler sends: numbers of series, names, labels and lengths are limited on both sides.
"""

from __future__ import annotations

import math
import re
import threading
from bisect import bisect_left
from collections.abc import Callable

import msgspec

from pgworkers.errors import UsageError
from pgworkers.observe.metrics_catalog import Metric, MetricKind
from pgworkers.observe.metrics_series import OTHER_LABEL_VALUE, Family

MAX_HANDLER_METRICS = 50  #: metrics of the whole app
MAX_SERIES_PER_METRIC = 100  #: combinations of labels for each
MAX_LABELS_PER_METRIC = 5
MAX_LABEL_CHARACTERS = 64
MAX_PENDING_SERIES = 500  #: series that one job may have changed between two beats
#: A third of a decade each, from a millisecond to a million: seconds, bytes of small things, counts.
HISTOGRAM_BUCKETS = (*(round(step * 10.0**power, 6) for power in range(-3, 6) for step in (1, 2, 5)), 1e6)
_METRIC_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_RESERVED_LABELS = frozenset({"task", "job", "instance", "le", "queue"})
_RESERVED_SUFFIXES = ("_total", "_count", "_sum", "_bucket", "_created")
_KINDS = ("counter", "histogram", "gauge")

SeriesKey = tuple[str, str, tuple[tuple[str, str], ...]]  # kind, name, labels


class SeriesUpdate(msgspec.Struct, array_like=True):
    """What a job reported for one series since its last report."""

    kind: str
    name: str
    labels: list[tuple[str, str]]
    value: float
    counts: list[int] = []


class HandlerMetrics:
    """`ctx.metrics`."""

    __slots__ = ("_lock", "_pending")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[SeriesKey, SeriesUpdate] = {}

    def counter(self, name: str, n: float = 1, /, **labels: object) -> None:
        """Add to `pgworkers_user_<name>_total`."""
        if isinstance(n, (int, float)) and n < 0:
            raise UsageError(f"metrics.counter({name!r}): {n!r} is less than 0; a counter only grows")
        with self._lock:
            self._pending_series("counter", name, n, labels).value += n

    def gauge(self, name: str, value: float, /, **labels: object) -> None:
        """Set `pgworkers_user_<name>`."""
        with self._lock:
            self._pending_series("gauge", name, value, labels).value = value

    def observe(self, name: str, value: float, /, **labels: object) -> None:
        """Put a number into the histogram `pgworkers_user_<name>`."""
        with self._lock:
            series = self._pending_series("histogram", name, value, labels)
            series.counts[bisect_left(HISTOGRAM_BUCKETS, value)] += 1
            series.value += value

    def take_updates(self) -> bytes | None:
        """For the worker: the updates since the last call."""
        if not self._pending:
            return None
        with self._lock:
            pending, self._pending = self._pending, {}
        return msgspec.json.encode(list(pending.values()))

    def _pending_series(self, kind: str, name: str, value: float, labels: dict[str, object]) -> SeriesUpdate:
        wrong = _reason_to_refuse(name, value, labels)
        if wrong:
            raise UsageError(f"metrics: {wrong}; nothing was counted")
        pairs = tuple(sorted((label, str(update)[:MAX_LABEL_CHARACTERS]) for label, update in labels.items()))
        if len(self._pending) >= MAX_PENDING_SERIES and (kind, name, pairs) not in self._pending:
            pairs = tuple((label, OTHER_LABEL_VALUE) for label, _ in pairs)
        key = (kind, name, pairs)
        found = self._pending.get(key)
        if found is None:
            counts = [0] * (len(HISTOGRAM_BUCKETS) + 1) if kind == "histogram" else []
            found = self._pending[key] = SeriesUpdate(kind, name, list(pairs), 0.0, counts)
        return found


def _reason_to_refuse(name: str, value: float, labels: dict[str, object]) -> str:
    if not isinstance(name, str) or not _METRIC_NAME.fullmatch(name):
        return f"{name!r} is not a name; use a-z, 0-9 and _, at most {MAX_LABEL_CHARACTERS} characters"
    if name.endswith(_RESERVED_SUFFIXES):
        return f"{name}: the end of the name is added by itself"
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return f"{name}: {value!r} is not a finite number"
    if len(labels) > MAX_LABELS_PER_METRIC:
        return f"{name}: {len(labels)} labels, {MAX_LABELS_PER_METRIC} are the most"
    for label in labels:
        if not _METRIC_NAME.fullmatch(label) or label in _RESERVED_LABELS:
            return f"{name}: {label!r} cannot be a label"
    return ""


class HandlerMetricFamilies:
    """The master's side: the families of the metrics that handlers report."""

    def __init__(self, capped: Callable[[], None]) -> None:
        self.families: dict[str, Family] = {}
        self._on_capped = capped
        self._decode = msgspec.json.Decoder(list[SeriesUpdate]).decode

    def add(self, task: str, body: bytes) -> None:
        """Apply a frame of a worker. It is not trusted: handlers can write to any descriptor."""
        try:
            update = self._decode(body)
        except (msgspec.DecodeError, RecursionError):
            self._on_capped()
            return
        for one in update[: MAX_PENDING_SERIES + MAX_HANDLER_METRICS]:
            if not self._apply(task, one):
                self._on_capped()

    def _apply(self, task: str, update: SeriesUpdate) -> bool:
        labels = dict(update.labels)
        if update.kind not in _KINDS or _reason_to_refuse(update.name, update.value, dict(labels)):
            return False
        family = self.families.get(update.name)
        if family is None:
            if len(self.families) >= MAX_HANDLER_METRICS:
                return False
            name = f"user_{update.name}" + ("_total" if update.kind == "counter" else "")
            buckets = HISTOGRAM_BUCKETS if update.kind == "histogram" else ()
            metric = Metric(
                name,
                MetricKind(update.kind),
                "Reported by handlers of the app.",
                ("task", *sorted(labels)),
                buckets,
            )
            family = self.families[update.name] = Family(
                metric, self._on_capped, MAX_SERIES_PER_METRIC, should_cap_every_label=True
            )
        names = family.metric.labels[1:]
        if family.metric.kind != update.kind or set(names) != set(labels):
            return False
        values = (task, *(labels[name][:MAX_LABEL_CHARACTERS] for name in names))
        if update.kind == "histogram":
            if len(update.counts) != len(HISTOGRAM_BUCKETS) + 1 or min(update.counts) < 0:
                return False
            family.histogram_for(*values).merge(update.counts, update.value)
        elif update.kind == "counter":
            family.series_for(*values).value += max(0.0, update.value)
        else:
            family.series_for(*values).value = float(update.value)
        return True
