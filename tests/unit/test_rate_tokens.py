"""How many tokens are taken at once, and what becomes of those in hand."""

from __future__ import annotations

import pytest

from pgworkers import UsageError
from pgworkers.client.rates import read_rate_limit
from pgworkers.limits.rate import FAST_CALLER_SECONDS, MAX_TOKENS_AHEAD, RateLimit, TokenStock
from pgworkers.limits.rate_bucket import TakenTokens


def test_a_slow_caller_takes_one_at_a_time() -> None:
    stock = TokenStock(rate=1000)
    assert [stock.tokens_to_ask(now * FAST_CALLER_SECONDS * 2) for now in range(5)] == [1, 1, 1, 1, 1]


def test_a_fast_caller_takes_more_each_time_up_to_a_bound() -> None:
    stock = TokenStock(rate=1e6)
    assert [stock.tokens_to_ask(now / 1000) for now in range(9)] == [
        1,
        2,
        4,
        8,
        16,
        32,
        MAX_TOKENS_AHEAD,
        MAX_TOKENS_AHEAD,
        MAX_TOKENS_AHEAD,
    ]


def test_never_more_is_taken_ahead_than_the_bucket_refills_in_the_horizon() -> None:
    stock = TokenStock(rate=50)
    assert max(stock.tokens_to_ask(now / 1000) for now in range(20)) == 5
    slow = TokenStock(rate=0.5)
    assert max(slow.tokens_to_ask(now / 1000) for now in range(20)) == 1


def test_tokens_are_used_in_the_order_they_are_due_and_not_before() -> None:
    stock = TokenStock(rate=50)
    stock.put_back([3.0, 1.0])
    stock.put_back([2.0])
    assert stock.take_due(latest=0.5) is None
    assert [stock.take_due(latest=9.0) for _ in range(4)] == [1.0, 2.0, 3.0, None]


def test_emptying_returns_the_number_of_tokens() -> None:
    stock = TokenStock(rate=50)
    stock.put_back([1.0, 2.0])
    assert (stock.clear(), len(stock), stock.take_due()) == (2, 0, None)


def test_when_each_token_of_an_answer_is_due() -> None:
    assert TakenTokens(3, 10.0).wait_seconds(50) == [0, 0, 0]
    assert TakenTokens(3, 1.0).wait_seconds(50) == [0, 0.02, 0.04]
    assert TakenTokens(1, -49.0).wait_seconds(50) == [1.0]


def test_a_rate_is_read_with_its_span() -> None:
    assert read_rate_limit("github", 50, "1s", None) == RateLimit("github", 50.0, 50.0)
    assert read_rate_limit("mail", 30, "1m", 5) == RateLimit("mail", 0.5, 5.0)
    assert read_rate_limit("slow", 0.5, 1, None) == RateLimit("slow", 0.5, 1.0)


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
        read_rate_limit(scope, rate, per, burst)
    assert said in str(caught.value)
