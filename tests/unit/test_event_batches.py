"""What is done with many at once is what would have been done with each of them."""

from __future__ import annotations

import struct

import pytest

from pgworkers.observe.metrics_series import Histogram
from pgworkers.observe.statistics import MinuteTotals
from pgworkers.postgres import arrays
from pgworkers.postgres.arrays import Bigints, Doubles, Integers

BOUNDS = (0.001, 0.01, 0.1, 1.0)
TIMES = [
    pytest.param([0.02, 0.03, 0.09], id="alike"),
    pytest.param([0.0005, 2.0, 0.02, 0.03, 0.0007, 50.0], id="spread"),
    pytest.param([0.01, 0.010001], id="two sides of a bound"),
    pytest.param([0.0, -1.0, 0.5], id="below zero"),
    pytest.param([3.0], id="one"),
]


@pytest.mark.parametrize("values", TIMES)
def test_times_observed_together_fall_where_each_would(values: list[float]) -> None:
    each, together = Histogram(BOUNDS, []), Histogram(BOUNDS, [])
    for job, value in enumerate(values):
        each.observe(max(value, 0.0), (job, max(value, 0.0), 7.0))
    together.observe_many(values, list(range(len(values))), 7.0)
    assert together.counts == each.counts
    assert together.total == pytest.approx(each.total)
    assert together.exemplars == each.exemplars, "the last of each bucket stands for it"


@pytest.mark.parametrize("values", TIMES)
def test_times_counted_together_fall_where_each_would(values: list[float]) -> None:
    each, together = MinuteTotals(), MinuteTotals()
    for value in values:
        each.observe([value], [value])
    together.observe(values, values)
    assert (together.count, together.histogram) == (each.count, each.histogram)
    assert (together.seconds, together.cpu) == pytest.approx((each.seconds, each.cpu))


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 500])
@pytest.mark.parametrize(
    ("kind", "dumper", "code", "least", "most"),
    [
        (Bigints, arrays._BigintsDumper, "q", -(1 << 63), (1 << 63) - 1),
        (Integers, arrays._IntegersDumper, "i", -(1 << 31), (1 << 31) - 1),
        (Doubles, arrays._DoublesDumper, "d", -1e300, 0.1),
    ],
)
def test_an_array_has_the_same_bytes_however_many_there_are(
    count: int, kind: type, dumper: type[arrays._FixedSizeDumper], code: str, least: float, most: float
) -> None:
    values = [(least, most, 0, 1)[nth % 4] for nth in range(count)]
    oid, size, _ = dumper.element
    expected = struct.pack("!iiI", 1 if count else 0, 0, oid) + (
        struct.pack("!ii", count, 1) if count else b""
    )
    for value in values:
        expected += struct.pack(f"!i{code}", size, value)
    assert dumper(kind).dump(kind(values)) == expected
