"""The database's time as a host estimates it: never ahead of a time by which every living host has renewed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pgworkers.master.lease_keeper import DatabaseClock

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = 30.0


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def renew(reckoning: DatabaseClock, *times: int, ahead: float = 0.0) -> None:
    """Our clock is at 100 when the database's is at 0."""
    for one in times:
        reckoning.record(100.0 + one, at(one + ahead), LEASE)


def test_nothing_is_known_before_the_first_renewal() -> None:
    assert DatabaseClock().read(100.0) is None


def test_it_goes_on_with_our_own_clock() -> None:
    reckoning = DatabaseClock()
    renew(reckoning, 0, 10)
    assert reckoning.read(115.5) == at(15.5)


def test_a_jump_forward_is_believed_after_a_lease() -> None:
    reckoning = DatabaseClock()
    renew(reckoning, 0, 10)
    renew(reckoning, 20, 30, 40, ahead=600)
    assert reckoning.read(140.0) == at(40), "who lives may not have renewed by the new time"
    renew(reckoning, 50, ahead=600)
    assert reckoning.read(150.0) == at(650)


def test_a_jump_back_is_believed_at_once() -> None:
    reckoning = DatabaseClock()
    renew(reckoning, 0, 10)
    renew(reckoning, 20, ahead=-600)
    assert reckoning.read(120.0) == at(-580)


def test_after_a_silence_longer_than_a_lease_the_first_answer_counts() -> None:
    reckoning = DatabaseClock()
    renew(reckoning, 0)
    renew(reckoning, 1000, ahead=600)
    assert reckoning.read(1100.0) == at(1600)


@pytest.mark.parametrize("late", [0.0, 5.0])
def test_a_slow_answer_makes_no_host_late(late: float) -> None:
    """It is `least(now(), …)` that counts: what is too large does not."""
    reckoning = DatabaseClock()
    reckoning.record(100.0, at(late), LEASE)  # it was sent at 0 and read at `late`
    found = reckoning.read(110.0)
    assert found is not None
    assert found >= at(10)
