"""A throttled queue cools down, longer each time, and is forgiven."""

from __future__ import annotations

import pytest
from support.database_host import DatabaseHost

from pgworkers.job import queues
from pgworkers.job.queues import CoolDown, ThrottleAnswer

COOLING = CoolDown(base_seconds=60.0, growth=2.0, max_seconds=300.0, quiet_seconds=120.0)


def state(host: DatabaseHost) -> tuple[int, float]:
    (config,) = host.execute(queues.queue_configs(["a"]))
    return config.throttle_level, config.throttled_seconds


def over(host: DatabaseHost, ago: str = "1 second") -> None:
    """The cool-down ended that long ago."""
    host.conn.execute("UPDATE pgworkers.queue SET throttled_until = now() - %s::interval", [ago])


@pytest.fixture
def cooling(host: DatabaseHost) -> DatabaseHost:
    host.execute(queues.declare_queues(["a"]))
    return host


def test_each_cool_down_is_twice_as_long_up_to_the_cap(cooling: DatabaseHost) -> None:
    expected = [60.0, 120.0, 240.0, 300.0, 300.0]
    for nth, seconds in enumerate(expected, start=1):
        assert cooling.execute(queues.throttle_queue("a", None, COOLING)) is ThrottleAnswer.THROTTLED
        throttle_level, left = state(cooling)
        assert throttle_level == nth
        assert seconds - 5 < left <= seconds
        over(cooling)


def test_growth_of_one_is_flat(cooling: DatabaseHost) -> None:
    for _ in range(3):
        cooling.execute(queues.throttle_queue("a", None, CoolDown(growth=1.0)))
        assert 55 < state(cooling)[1] <= 60
        over(cooling)


def test_a_thousand_throttles_do_not_overflow(cooling: DatabaseHost) -> None:
    cooling.conn.execute("UPDATE pgworkers.queue SET throttle_level = 100000")
    cooling.execute(queues.throttle_queue("a", None, COOLING))
    assert 290 < state(cooling)[1] <= 300


def test_jobs_that_ran_when_it_began_count_as_one_throttle(cooling: DatabaseHost) -> None:
    for _ in range(20):
        cooling.execute(queues.throttle_queue("a", None, COOLING))
    throttle_level, left = state(cooling)
    assert throttle_level == 1
    assert left <= 60


def test_the_handlers_own_word_counts_and_is_never_shortened(cooling: DatabaseHost) -> None:
    cooling.execute(queues.throttle_queue("a", 500.0, COOLING))
    cooling.execute(queues.throttle_queue("a", 2.0, COOLING))
    assert 490 < state(cooling)[1] <= 500


def test_each_grace_without_a_throttle_wears_one_off(cooling: DatabaseHost) -> None:
    for _ in range(3):
        cooling.execute(queues.throttle_queue("a", None, COOLING))
        over(cooling)
    over(cooling, "250 seconds")  # two graces
    cooling.execute(queues.throttle_queue("a", None, COOLING))
    throttle_level, left = state(cooling)
    assert throttle_level == 2
    assert 110 < left <= 120


def test_a_success_forgives_all_after_the_grace_and_none_before(cooling: DatabaseHost) -> None:
    cooling.execute(queues.throttle_queue("a", None, COOLING))
    assert not cooling.execute(queues.reset_throttle("a", 120.0))
    over(cooling, "100 seconds")
    assert not cooling.execute(queues.reset_throttle("a", 120.0))
    over(cooling, "130 seconds")
    assert cooling.execute(queues.reset_throttle("a", 120.0))
    assert state(cooling)[0] == 0


def test_a_success_waits_for_no_lock_of_the_queue(cooling: DatabaseHost, other: DatabaseHost) -> None:
    cooling.execute(queues.throttle_queue("a", None, COOLING))
    over(cooling, "130 seconds")
    cooling.conn.execute("SET statement_timeout = '10s'")
    with other.conn.transaction():
        other.conn.execute("UPDATE pgworkers.queue SET workers = workers WHERE name = 'a'")
        assert not cooling.execute(queues.reset_throttle("a", 120.0))
        assert cooling.execute(queues.throttle_queue("a", None, COOLING)) is ThrottleAnswer.LOCKED
    assert cooling.execute(queues.reset_throttle("a", 120.0)), "the next success resets it"
