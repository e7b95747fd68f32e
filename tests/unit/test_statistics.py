"""What the statistics gather from facts, without a database."""

from __future__ import annotations

import math

import pytest

from pgworkers import events
from pgworkers.observe.statistics import (
    HISTOGRAM_BUCKET_COUNT,
    MAX_UNWRITTEN_MINUTES,
    Statistics,
    bucket_index,
)


def started(waited: float, task: str = "t") -> events.AttemptStarted:
    return events.AttemptStarted(1, 1, "q", task, 1, waited)


def ended(duration: float, verdict: str = "succeeded", cpu: float = 0.0) -> events.AttemptEnded:
    return events.AttemptEnded(
        1, 1, "q", "t", "{}", 1, 1, verdict, "succeeded", duration, cpu, 0, None, None
    )  # fmt: skip


def test_buckets_are_a_quarter_of_an_octave_and_never_out_of_bounds() -> None:
    assert [bucket_index(value) for value in (0, 0.0009, 0.001, 0.0012, 0.002, 0.004, 1.0)] == [
        0,
        0,
        1,
        2,
        5,
        9,
        40,
    ]
    for value in (-1.0, math.nan, math.inf, 1e300):
        assert 0 <= bucket_index(value) < HISTOGRAM_BUCKET_COUNT
    places = [bucket_index(0.001 * 1.1**n) for n in range(250)]
    assert places == sorted(places)


def test_nothing_happened_nothing_is_written() -> None:
    statistics = Statistics()
    assert statistics.write_query() is None
    statistics(events.NotificationReceived("x"))
    assert statistics.write_query() is None


def test_facts_are_counted_by_queue_task_and_verdict() -> None:
    statistics = Statistics(now=lambda: 600.0)
    for fact in (
        started(0.0),
        started(2.0),
        ended(1.0, cpu=0.5),
        ended(1.0, "error", cpu=0.25),
        ended(math.nan),
    ):
        statistics(fact)
    query = statistics.write_query()
    assert query is not None
    params = query.params
    rows = dict(
        zip(
            params["verdicts"],
            zip(params["counts"], params["seconds"], params["cpus"], strict=True),
            strict=True,
        )
    )
    assert rows == {"started": (2, 2.0, 0.0), "succeeded": (2, 1.0, 0.5), "error": (1, 1.0, 0.25)}


def test_what_was_not_written_is_in_the_next_batch_and_what_was_is_not() -> None:
    statistics = Statistics(now=lambda: 600.0)
    statistics(started(1.0))
    first = statistics.write_query()
    statistics(started(1.0))
    second = statistics.write_query()
    assert first is not None
    assert second is not None
    assert (first.params["counts"], second.params["counts"]) == ([1], [2])
    statistics.acknowledge()
    assert statistics.write_query() is None


def test_minutes_are_kept_apart_by_their_age_and_an_outage_is_bounded() -> None:
    clock = [0.0]
    statistics = Statistics(now=lambda: clock[0])
    for minute in range(MAX_UNWRITTEN_MINUTES * 2):
        clock[0] = minute * 60.0
        statistics(started(1.0))
    query = statistics.write_query()
    assert query is not None
    assert len(query.params["ages"]) == MAX_UNWRITTEN_MINUTES
    assert sum(query.params["counts"]) == MAX_UNWRITTEN_MINUTES * 2
    assert query.params["ages"][1] - query.params["ages"][0] == pytest.approx(
        60.0 if query.params["ages"][0] else 30.0
    )
