"""Rate buckets on a real row: refill, reservation, drain, sessions that ask at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.database_host import Desk

from pgworkers import App, Ctx, JobStopped, RateTimeout, UsageError
from pgworkers.limits import rate_bucket
from pgworkers.limits.rate import RateLimit

SLOW = RateLimit("slow", tokens_per_second=1 / 3600, burst=5.0)  # no refill worth a token while a test lasts


def tokens(desk: Desk, scope: str) -> float:
    row = desk.conn.execute("SELECT tokens FROM pgworkers.rate_bucket WHERE scope = %s", [scope]).fetchone()
    assert row is not None
    return float(row[0])


def age(desk: Desk, scope: str, seconds: float) -> None:
    """As if so much time had passed since the last question."""
    desk.conn.execute(
        "UPDATE pgworkers.rate_bucket SET updated_at = updated_at - make_interval(secs => %s) WHERE scope = %s",
        [seconds, scope],
    )


@pytest.fixture
def app(emptied: str) -> Iterator[App]:
    made = App(dsn=emptied)
    made.queue("q")
    yield made
    made.close()


def test_a_new_bucket_is_full_and_then_empty(desk: Desk) -> None:
    assert desk.execute(rate_bucket.take_tokens(SLOW, 3, 0.0)).granted == 3
    assert desk.execute(rate_bucket.take_tokens(SLOW, 3, 0.0)).granted == 2
    assert desk.execute(rate_bucket.take_tokens(SLOW, 3, 0.0)).granted == 0


def test_a_first_question_larger_than_the_burst_gets_the_burst(desk: Desk) -> None:
    assert desk.execute(rate_bucket.take_tokens(SLOW, 64, 0.0)).granted == 5


def test_it_refills_by_the_clock_of_the_database_and_never_above_the_burst(desk: Desk) -> None:
    limit = RateLimit(
        "x", tokens_per_second=2 / 3600, burst=5.0
    )  # slow: the time that the test itself takes is no token
    desk.execute(rate_bucket.take_tokens(limit, 5, 0.0))
    age(desk, "x", 1.5 * 3600)
    assert desk.execute(rate_bucket.take_tokens(limit, 9, 0.0)).granted == 3
    age(desk, "x", 1e9)
    assert desk.execute(rate_bucket.take_tokens(limit, 9, 0.0)).tokens_before == 5.0


def test_a_clock_that_was_set_back_takes_nothing_away(desk: Desk) -> None:
    desk.execute(rate_bucket.take_tokens(SLOW, 1, 0.0))
    age(desk, "slow", -1000.0)
    assert desk.execute(rate_bucket.take_tokens(SLOW, 1, 0.0)).tokens_before == pytest.approx(4.0)


def test_who_asks_first_is_served_first_and_later_ones_later(desk: Desk, other: Desk) -> None:
    limit = RateLimit("x", tokens_per_second=1 / 3600, burst=1.0)
    waits = [
        who.execute(rate_bucket.take_tokens(limit, 1, None)).wait_seconds(limit.tokens_per_second)[0]
        for who in (desk, other, desk, other)
    ]
    assert [round(wait / 3600, 1) for wait in waits] == [0, 1, 2, 3]


def test_nothing_is_taken_that_is_due_too_late(desk: Desk) -> None:
    desk.execute(rate_bucket.take_tokens(SLOW, 7, None))
    assert desk.execute(rate_bucket.take_tokens(SLOW, 1, 1800.0)).granted == 0
    assert tokens(desk, "slow") == pytest.approx(-2.0, abs=0.1), "only the refill"


def test_unused_tokens_go_back_and_never_above_the_burst(desk: Desk) -> None:
    desk.execute(rate_bucket.take_tokens(SLOW, 4, 0.0))
    desk.execute(rate_bucket.return_tokens("slow", 2))
    assert tokens(desk, "slow") == pytest.approx(3.0)
    desk.execute(rate_bucket.return_tokens("slow", 99))
    assert tokens(desk, "slow") == 5.0


@pytest.mark.parametrize(("said", "meant"), [(0.01, 1.0), (10.0, 10.0), (9999.0, 60.0)])
def test_drain_keeps_everybody_waiting_for_as_long_as_the_service_said(
    desk: Desk, other: Desk, said: float, meant: float
) -> None:
    limit = RateLimit("x", tokens_per_second=50.0, burst=50.0)
    other.execute(rate_bucket.take_tokens(limit, 1, 0.0))
    desk.execute(rate_bucket.drain_bucket(limit, said))
    assert tokens(desk, "x") == pytest.approx(1 - meant * 50), "the next token is due after that time"
    age(desk, "x", -3600.0)  # no time passes from here on: a second is soon over on a busy machine
    assert other.execute(rate_bucket.take_tokens(limit, 1, 0.0)).granted == 0


def test_drain_of_a_bucket_nobody_used_yet(desk: Desk) -> None:
    limit = RateLimit("new", tokens_per_second=50.0, burst=50.0)
    desk.execute(rate_bucket.drain_bucket(limit, 30))
    assert desk.execute(rate_bucket.take_tokens(limit, 1, 0.0)).granted == 0


def test_sessions_that_ask_at_once_never_get_more_than_there_is(
    session: Callable[[], psycopg.Connection[Any]], schema: str
) -> None:
    desks = [Desk(session(), schema) for _ in range(4)]
    limit = RateLimit("x", tokens_per_second=200.0, burst=20.0)
    began = desks[0].conn.execute("SELECT clock_timestamp()").fetchone()
    granted = [0] * len(desks)

    def ask(n: int) -> None:
        for _ in range(150):
            granted[n] += desks[n].execute(rate_bucket.take_tokens(limit, 3, 0.0)).granted

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(len(desks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    row = (
        desks[0]
        .conn.execute(
            "SELECT extract(epoch FROM clock_timestamp() - %s::timestamptz)::float8, tokens FROM pgworkers.rate_bucket",
            began,
        )
        .fetchone()
    )
    assert row is not None
    elapsed, left = row
    assert sum(granted) <= limit.burst + limit.tokens_per_second * elapsed
    assert sum(granted) + left >= limit.burst, "and nothing that was there is lost"


def test_acquire_from_outside_and_what_was_taken_ahead_goes_back(app: App, desk: Desk) -> None:
    with app.rate("x", rate=1000, per="1s", burst=1000) as rate:
        for _ in range(100_000):
            rate.acquire(timeout=60)
            if len(rate.stock) > 0:
                break  # a fast loop takes ahead; on a busy machine one is not always fast
        assert len(rate.stock) > 0, "a fast loop takes ahead"
        held, left = len(rate.stock), tokens(desk, "x")
    assert len(rate.stock) == 0
    assert tokens(desk, "x") == pytest.approx(left + held)


def test_a_declared_rate_is_found_by_its_name_and_an_unknown_one_is_refused(app: App) -> None:
    declared = app.rate("x", rate=5, per="1m")
    assert app.rate("x") is declared
    with pytest.raises(UsageError, match="rate 'y' is not declared"):
        app.rate("y")


def test_acquire_that_cannot_be_in_time_raises_and_uses_nothing(app: App, desk: Desk) -> None:
    rate = app.rate("x", rate=1, per="1h", burst=1)
    rate.acquire()
    assert rate.try_acquire() is False
    with pytest.raises(RateTimeout, match="none was used"):
        rate.acquire(timeout=0.05)
    assert tokens(desk, "x") == pytest.approx(0.0, abs=0.01)


def test_async_callers_share_the_bucket(app: App) -> None:
    async def use() -> list[bool]:
        rate = app.rate("x", rate=1, per="1h", burst=2)
        await rate.aacquire(timeout=60)
        got = [await rate.atry_acquire(), await rate.atry_acquire()]
        await rate.adrain(5)
        await rate.agive_back()
        await app.aclose()
        return got

    assert asyncio.run(use()) == [True, False]


def test_a_handler_that_should_stop_does_not_wait_and_keeps_no_token(app: App, desk: Desk) -> None:
    ctx = Ctx(job=1, task="t", queue="q", control=_Stopping(), rate=app.rate)
    rate = ctx.rate("x", rate=1, per="1h", burst=1)
    rate.acquire()
    with pytest.raises(JobStopped):
        rate.acquire()
    app.rates.return_unused_tokens()
    assert tokens(desk, "x") == pytest.approx(0.0, abs=0.01)


class _Stopping:
    def is_stop_requested(self) -> bool:
        return True

    def seconds_left(self) -> float | None:
        return None

    def stop_reason(self) -> str:
        return "cancel"


def test_a_plain_call_of_a_handler_never_waits() -> None:
    rate = Ctx.for_test().rate("anything")
    for _ in range(1000):
        rate.acquire()
    assert rate.try_acquire()
    rate.drain(60)
    rate.acquire()
