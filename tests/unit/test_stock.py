"""How many tokens are taken at once, and what becomes of those in hand."""

from __future__ import annotations

import pytest

from pgworkers import UsageError
from pgworkers.client.rates import limit_of
from pgworkers.flow.bucket import Taken
from pgworkers.flow.limit import Limit
from pgworkers.flow.stock import HORIZON, MOST, Stock


def test_a_slow_caller_takes_one_at_a_time() -> None:
    stock = Stock(rate=1000)
    assert [stock.want(now * HORIZON * 2) for now in range(5)] == [1, 1, 1, 1, 1]


def test_a_fast_caller_takes_more_each_time_up_to_a_bound() -> None:
    stock = Stock(rate=1e6)
    assert [stock.want(now / 1000) for now in range(9)] == [1, 2, 4, 8, 16, 32, MOST, MOST, MOST]


def test_never_more_is_taken_ahead_than_the_bucket_refills_in_the_horizon() -> None:
    stock = Stock(rate=50)
    assert max(stock.want(now / 1000) for now in range(20)) == 5
    slow = Stock(rate=0.5)
    assert max(slow.want(now / 1000) for now in range(20)) == 1


def test_tokens_are_used_in_the_order_they_are_due_and_not_before() -> None:
    stock = Stock(rate=50)
    stock.put([3.0, 1.0])
    stock.put([2.0])
    assert stock.use(latest=0.5) is None
    assert [stock.use(latest=9.0) for _ in range(4)] == [1.0, 2.0, 3.0, None]


def test_emptying_tells_how_many_were_held() -> None:
    stock = Stock(rate=50)
    stock.put([1.0, 2.0])
    assert (stock.empty(), len(stock), stock.use()) == (2, 0, None)


def test_when_each_token_of_an_answer_is_due() -> None:
    assert Taken(3, 10.0).waits(50) == [0, 0, 0]
    assert Taken(3, 1.0).waits(50) == [0, 0.02, 0.04]
    assert Taken(1, -49.0).waits(50) == [1.0]


def test_a_rate_is_read_with_its_span() -> None:
    assert limit_of("github", 50, "1s", None) == Limit("github", 50.0, 50.0)
    assert limit_of("mail", 30, "1m", 5) == Limit("mail", 0.5, 5.0)
    assert limit_of("slow", 0.5, 1, None) == Limit("slow", 0.5, 1.0)


@pytest.mark.parametrize(
    ("scope", "rate", "per", "burst", "said"),
    [
        ("", 1, "1s", None, "rate scope: '' is empty"),
        ("x", 0, "1s", None, "rate=0 is not a number above 0"),
        ("x", True, "1s", None, "rate=True is not"),
        ("x", float("nan"), "1s", None, "rate=nan is not"),
        ("x", 1, "0s", None, "must be longer than 0"),
        ("x", 1, "1s", 0.5, "nothing could ever pass"),
    ],
)
def test_rates_that_cannot_work_are_refused(
    scope: str, rate: float, per: str, burst: float | None, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        limit_of(scope, rate, per, burst)
    assert said in str(caught.value)
