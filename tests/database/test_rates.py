"""Rate buckets on a real row: refill, reservation, drain, sessions that ask at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.database_host import DatabaseHost

from pgworkers import App, Ctx, JobStopped, RateTimeout, UsageError
from pgworkers.limits import rate_bucket
from pgworkers.limits.rate import RateLimit

SLOW = RateLimit("slow", tokens_per_second=1 / 3600, burst=5.0)  # no refill worth a token while a test lasts


def tokens(host: DatabaseHost, scope: str) -> float:
    row = host.conn.execute("SELECT tokens FROM pgworkers.rate_bucket WHERE scope = %s", [scope]).fetchone()
    assert row is not None
    return float(row[0])


def age(host: DatabaseHost, scope: str, seconds: float) -> None:
    """As if so much time had passed since the last question."""
    host.conn.execute(
        "UPDATE pgworkers.rate_bucket SET updated_at = updated_at - make_interval(secs => %s) WHERE scope = %s",
        [seconds, scope],
    )


@pytest.fixture
def app(emptied: str) -> Iterator[App]:
    made = App(dsn=emptied)
    made.queue("q")
    yield made
    made.close()


def test_a_new_bucket_is_full_and_then_empty(host: DatabaseHost) -> None:
    assert host.execute(rate_bucket.take_tokens(SLOW, 3, 0.0)).granted == 3
    assert host.execute(rate_bucket.take_tokens(SLOW, 3, 0.0)).granted == 2
    assert host.execute(rate_bucket.take_tokens(SLOW, 3, 0.0)).granted == 0


def test_a_first_question_larger_than_the_burst_gets_the_burst(host: DatabaseHost) -> None:
    assert host.execute(rate_bucket.take_tokens(SLOW, 64, 0.0)).granted == 5


def test_it_refills_by_the_clock_of_the_database_and_never_above_the_burst(host: DatabaseHost) -> None:
    limit = RateLimit(
        "x", tokens_per_second=2 / 3600, burst=5.0
    )  # slow: the test itself does not last long enough for another token
    host.execute(rate_bucket.take_tokens(limit, 5, 0.0))
    age(host, "x", 1.5 * 3600)
    assert host.execute(rate_bucket.take_tokens(limit, 9, 0.0)).granted == 3
    age(host, "x", 1e9)
    assert host.execute(rate_bucket.take_tokens(limit, 9, 0.0)).tokens_before == 5.0


def test_a_clock_that_was_set_back_takes_nothing_away(host: DatabaseHost) -> None:
    host.execute(rate_bucket.take_tokens(SLOW, 1, 0.0))
    age(host, "slow", -1000.0)
    assert host.execute(rate_bucket.take_tokens(SLOW, 1, 0.0)).tokens_before == pytest.approx(4.0)


def test_tokens_are_granted_in_the_order_of_the_requests(host: DatabaseHost, other: DatabaseHost) -> None:
    limit = RateLimit("x", tokens_per_second=1 / 3600, burst=1.0)
    waits = [
        who.execute(rate_bucket.take_tokens(limit, 1, None)).wait_seconds(limit.tokens_per_second)[0]
        for who in (host, other, host, other)
    ]
    assert [round(wait / 3600, 1) for wait in waits] == [0, 1, 2, 3]


def test_nothing_is_taken_that_is_due_too_late(host: DatabaseHost) -> None:
    host.execute(rate_bucket.take_tokens(SLOW, 7, None))
    assert host.execute(rate_bucket.take_tokens(SLOW, 1, 1800.0)).granted == 0
    assert tokens(host, "slow") == pytest.approx(-2.0, abs=0.1), "only the refill"


def test_unused_tokens_go_back_and_never_above_the_burst(host: DatabaseHost) -> None:
    host.execute(rate_bucket.take_tokens(SLOW, 4, 0.0))
    host.execute(rate_bucket.return_tokens("slow", 2))
    assert tokens(host, "slow") == pytest.approx(3.0)
    host.execute(rate_bucket.return_tokens("slow", 99))
    assert tokens(host, "slow") == 5.0


@pytest.mark.parametrize(("said", "meant"), [(0.01, 1.0), (10.0, 10.0), (9999.0, 60.0)])
def test_drain_keeps_all_callers_waiting_for_the_given_time(
    host: DatabaseHost, other: DatabaseHost, said: float, meant: float
) -> None:
    limit = RateLimit("x", tokens_per_second=50.0, burst=50.0)
    other.execute(rate_bucket.take_tokens(limit, 1, 0.0))
    host.execute(rate_bucket.drain_bucket(limit, said))
    assert tokens(host, "x") == pytest.approx(1 - meant * 50), "the next token is due after that time"
    age(host, "x", -3600.0)  # no time passes from here on: a second is soon over on a busy machine
    assert other.execute(rate_bucket.take_tokens(limit, 1, 0.0)).granted == 0


def test_drain_of_an_unused_bucket(host: DatabaseHost) -> None:
    limit = RateLimit("new", tokens_per_second=50.0, burst=50.0)
    host.execute(rate_bucket.drain_bucket(limit, 30))
    assert host.execute(rate_bucket.take_tokens(limit, 1, 0.0)).granted == 0


def test_sessions_that_ask_at_once_never_get_more_than_there_is(
    session: Callable[[], psycopg.Connection[Any]], schema: str
) -> None:
    database_hosts = [DatabaseHost(session(), schema) for _ in range(4)]
    limit = RateLimit("x", tokens_per_second=200.0, burst=20.0)
    began = database_hosts[0].conn.execute("SELECT clock_timestamp()").fetchone()
    granted = [0] * len(database_hosts)

    def ask(n: int) -> None:
        for _ in range(150):
            granted[n] += database_hosts[n].execute(rate_bucket.take_tokens(limit, 3, 0.0)).granted

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(len(database_hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    row = (
        database_hosts[0]
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


def test_acquire_from_outside_and_what_was_taken_ahead_goes_back(app: App, host: DatabaseHost) -> None:
    with app.rate("x", rate=1000, per="1s", burst=1000) as rate:
        for _ in range(100_000):
            rate.acquire(timeout=60)
            if len(rate.stock) > 0:
                break  # a fast loop takes ahead; on a busy machine one is not always fast
        assert len(rate.stock) > 0, "a fast loop takes ahead"
        held, left = len(rate.stock), tokens(host, "x")
    assert len(rate.stock) == 0
    assert tokens(host, "x") == pytest.approx(left + held)


def test_a_declared_rate_is_found_by_its_name_and_an_unknown_one_is_refused(app: App) -> None:
    declared = app.rate("x", rate=5, per="1m")
    assert app.rate("x") is declared
    with pytest.raises(UsageError, match="rate 'y' is not declared"):
        app.rate("y")


def test_acquire_that_cannot_be_in_time_raises_and_uses_nothing(app: App, host: DatabaseHost) -> None:
    rate = app.rate("x", rate=1, per="1h", burst=1)
    rate.acquire()
    assert rate.try_acquire() is False
    with pytest.raises(RateTimeout, match="none was used"):
        rate.acquire(timeout=0.05)
    assert tokens(host, "x") == pytest.approx(0.0, abs=0.01)


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


def test_a_handler_that_should_stop_does_not_wait_and_keeps_no_token(app: App, host: DatabaseHost) -> None:
    ctx = Ctx(job=1, task="t", queue="q", control=_Stopping(), rate=app.rate)
    rate = ctx.rate("x", rate=1, per="1h", burst=1)
    rate.acquire()
    with pytest.raises(JobStopped):
        rate.acquire()
    app.rates.return_unused_tokens()
    assert tokens(host, "x") == pytest.approx(0.0, abs=0.01)


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
