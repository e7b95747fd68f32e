"""`ctx.metrics`: added up in the worker, kept by the master, bounded by both."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as draw
from prometheus_client.parser import text_string_to_metric_families

from pgworkers import Ctx, events
from pgworkers.errors import UsageError
from pgworkers.observe.handler_metrics import (
    HISTOGRAM_BUCKETS,
    MAX_HANDLER_METRICS,
    MAX_SERIES_PER_METRIC,
    HandlerMetrics,
    SeriesUpdate,
)
from pgworkers.observe.metrics import Metrics


def carry(said: HandlerMetrics, metrics: Metrics, task: str = "render") -> None:
    body = said.take_updates()
    assert body is not None
    metrics(events.HandlerMetricsReceived(task, body))


def read(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = metrics.scrape("")[0].decode()
    return {
        (sample.name.removeprefix("pgworkers_user_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("pgworkers_user_")
    }


def test_counters_add_up_gauges_keep_the_last_value_and_numbers_fall_into_buckets() -> None:
    metrics = Metrics()
    ctx = Ctx.for_test()
    assert ctx.take_metrics() is None
    for _ in range(2):
        ctx.metrics.counter("pages", 3, format="pdf")
        ctx.metrics.counter("pages", format="pdf")
        ctx.metrics.gauge("waiting", 7)
        ctx.metrics.gauge("waiting", 2)
        ctx.metrics.observe("seconds", 0.03)
        ctx.metrics.observe("seconds", 10**9)
        carry(ctx.metrics, metrics)
    assert ctx.take_metrics() is None, "it is told once"
    found = read(metrics)
    assert found["pages_total", (("format", "pdf"), ("task", "render"))] == 8
    assert found["waiting", (("task", "render"),)] == 2
    assert found["seconds_bucket", (("le", "0.05"), ("task", "render"))] == 2
    assert found["seconds_count", (("task", "render"),)] == 4
    assert found["seconds_sum", (("task", "render"),)] == 2 * 10**9 + 0.06


@pytest.mark.parametrize(
    ("name", "value", "labels"),
    [
        ("Pages", 1, {}),
        ("a b", 1, {}),
        ("x" * 65, 1, {}),
        ("pages_total", 1, {}),
        ("pages", "many", {}),
        ("pages", float("nan"), {}),
        ("pages", True, {}),
        ("pages", 1, {"task": "other"}),
        ("pages", 1, dict.fromkeys("abcdef", 1)),
    ],
)
def test_what_cannot_be_counted_raises_in_the_handler(name: str, value: Any, labels: dict[str, Any]) -> None:
    for say in (HandlerMetrics().counter, HandlerMetrics().gauge, HandlerMetrics().observe):
        with pytest.raises(UsageError):
            say(name, value, **labels)


@settings(max_examples=60, deadline=None)
@given(name=draw.text(max_size=70), label=draw.text(max_size=70), value=draw.text(max_size=300))
def test_any_text_as_a_name_or_a_label_is_refused_or_scraped_as_it_is(
    name: str, label: str, value: str
) -> None:
    metrics = Metrics()
    for called, labels in ((name, {}), ("pages", {label: "x"}), ("pages", {"format": value})):
        said = HandlerMetrics()
        try:
            said.counter(called, 1, **labels)
        except UsageError:
            continue
        carry(said, metrics)
    for (found, _labels), number in read(metrics).items():  # the page can be parsed, and nothing is forged
        assert found in {f"{name}_total", "pages_total", f"{name}_created", "pages_created"}
        assert number >= 1


def test_a_counter_never_falls() -> None:
    with pytest.raises(UsageError):
        HandlerMetrics().counter("pages", -1)


def test_too_many_names_and_labels_are_counted_and_not_kept() -> None:
    metrics, said = Metrics(), HandlerMetrics()
    for i in range(MAX_HANDLER_METRICS + 10):
        said.counter(f"name{i}")
    carry(said, metrics)
    for i in range(MAX_SERIES_PER_METRIC + 50):
        said.counter("name1", who=str(i))  # other labels than before
        said.counter("name2")
    carry(said, metrics)
    wide = Metrics()
    for i in range(MAX_SERIES_PER_METRIC + 50):
        said.counter("wide", who=f"{i}" + "ä" * 500)
    carry(said, wide)
    assert len({name for name, _ in read(metrics)}) == MAX_HANDLER_METRICS
    assert metrics.families["series_capped_total"].series_for("user").value == 10 + MAX_SERIES_PER_METRIC + 50
    found = read(wide)
    assert len(found) == MAX_SERIES_PER_METRIC + 1
    assert found["wide_total", (("task", "other"), ("who", "other"))] == 50
    assert max(len(value) for _, labels in found for _, value in labels) <= 64


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[1]",
        b"[" * 5000,
        msgspec.json.encode([SeriesUpdate("rumour", "a", [], 1.0)]),
        msgspec.json.encode([SeriesUpdate("counter", "a\nb 1", [], 1.0)]),
        msgspec.json.encode([SeriesUpdate("histogram", "a", [], 1.0, [1])]),
        msgspec.json.encode([SeriesUpdate("histogram", "a", [], 1.0, [-1] * (len(HISTOGRAM_BUCKETS) + 1))]),
        msgspec.json.encode([SeriesUpdate("counter", "a", [("le", "1")], 1.0)]),
    ],
)
def test_a_frame_that_a_handler_forged_is_counted_and_dropped(body: bytes) -> None:
    metrics = Metrics()
    metrics(events.HandlerMetricsReceived("render", body))
    assert not read(metrics)
    assert metrics.families["series_capped_total"].series_for("user").value == 1
