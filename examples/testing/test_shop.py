"""How to test an app: docs/how-to/test-your-app.md explains each part."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
import shop

from pgworkers import UsageError
from pgworkers.testing import Box, TestHost


def test_an_order_enqueues_its_jobs(pgworkers_box: Box) -> None:
    shop.place_order(7, "ada@example.com")
    pgworkers_box.assert_enqueued(shop.charge, order=7, unique="charge:7", count=1)
    pgworkers_box.assert_enqueued(shop.send_mail, to="ada@example.com", delay="5m")
    pgworkers_box.assert_not_enqueued(shop.nightly_report)


def test_an_order_is_charged_and_confirmed(pgworkers_box: Box) -> None:
    shop.sent.clear()
    shop.place_order(7, "ada@example.com")
    pgworkers_box.run()
    (charge,) = pgworkers_box.find(shop.charge)
    assert (charge.state, charge.error) == ("scheduled", "ConnectionError: the bank did not answer")
    pgworkers_box.clock.move("1m")
    pgworkers_box.run()
    assert (charge.state, charge.result, shop.sent) == ("succeeded", 100, [])
    pgworkers_box.clock.move("5m")
    pgworkers_box.run()
    assert shop.sent == ["ada@example.com"]


def test_a_closed_bank_delays_the_charge(pgworkers_box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shop, "is_open", False)
    shop.charge.enqueue(7, 100)
    pgworkers_box.run()
    (charge,) = pgworkers_box.enqueued
    assert charge.run_at == pgworkers_box.clock.now + timedelta(hours=1)


async def order_async() -> int:
    async with shop.app.testing() as box:
        job = await shop.charge.aenqueue(7, 100)
        await box.arun_all()
        return await job.aresult()


def test_async_code() -> None:
    import asyncio

    assert asyncio.run(order_async()) == 100


def test_the_report_is_made_every_night(pgworkers_box: Box) -> None:
    made = pgworkers_box.fire_schedules("3d", run=True)
    assert [job.result for job in made] == ["report"] * 3


def test_a_forgotten_box_is_noticed() -> None:
    with pytest.raises(UsageError, match="nothing was sent to it"):
        shop.place_order(7, "ada@example.com")


def test_with_a_real_database(pgworkers_database: str) -> None:
    job = shop.send_mail.enqueue("ada@example.com", subject="hello")
    assert job.state == "ready"
    with psycopg.connect(pgworkers_database) as conn:
        assert conn.execute("SELECT count(*) FROM pgworkers.job").fetchone() == (1,)


def make_ledger(dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute("CREATE TABLE payment (id int PRIMARY KEY, amount int)")
        conn.execute("CREATE TABLE ledger (total int); INSERT INTO ledger VALUES (0)")


@pytest.mark.pgworkers_chaos(moments=2, seed=7)
def test_a_payment_is_added_once(pgworkers_database: str, pgworkers_host: TestHost) -> None:
    """With `--pgworkers-chaos` it runs once for each point at which the worker can die."""
    make_ledger(pgworkers_database)
    shop.add_to_ledger.enqueue(1, 100)
    pgworkers_host.drain()
    with psycopg.connect(pgworkers_database) as conn:
        assert conn.execute("SELECT total FROM ledger").fetchone() == (100,)
