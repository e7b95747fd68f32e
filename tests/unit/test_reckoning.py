"""The database's time as a host reckons it: never ahead of what everybody alive has renewed by."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pgworkers.master.reckoning import Reckoning

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = 30.0


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def renew(reckoning: Reckoning, *times: int, ahead: float = 0.0) -> None:
    """Our clock is at 100 when the database's is at 0."""
    for one in times:
        reckoning.renewed(100.0 + one, at(one + ahead), LEASE)


def test_nothing_is_known_before_the_first_renewal() -> None:
    assert Reckoning().at(100.0) is None


def test_it_goes_on_with_our_own_clock() -> None:
    reckoning = Reckoning()
    renew(reckoning, 0, 10)
    assert reckoning.at(115.5) == at(15.5)


def test_a_jump_forward_is_believed_after_a_lease() -> None:
    reckoning = Reckoning()
    renew(reckoning, 0, 10)
    renew(reckoning, 20, 30, 40, ahead=600)
    assert reckoning.at(140.0) == at(40), "who lives may not have renewed by the new time"
    renew(reckoning, 50, ahead=600)
    assert reckoning.at(150.0) == at(650)


def test_a_jump_back_is_believed_at_once() -> None:
    reckoning = Reckoning()
    renew(reckoning, 0, 10)
    renew(reckoning, 20, ahead=-600)
    assert reckoning.at(120.0) == at(-580)


def test_after_a_silence_longer_than_a_lease_the_first_answer_counts() -> None:
    reckoning = Reckoning()
    renew(reckoning, 0)
    renew(reckoning, 1000, ahead=600)
    assert reckoning.at(1100.0) == at(1600)


@pytest.mark.parametrize("late", [0.0, 5.0])
def test_a_slow_answer_makes_nobody_late(late: float) -> None:
    """It is `least(now(), …)` that counts: what is too large does not."""
    reckoning = Reckoning()
    reckoning.renewed(100.0, at(late), LEASE)  # it was sent at 0 and read at `late`
    found = reckoning.at(110.0)
    assert found is not None
    assert found >= at(10)
