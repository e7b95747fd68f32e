"""A worker sends only what changed, so each value is kept until it is saved, replaced, or written with a result."""

from __future__ import annotations

import pytest

from pgworkers.job.finish import ProgressUpdate
from pgworkers.job.model import Fence
from pgworkers.master import deferred_results
from pgworkers.master.deferred_results import (
    MIN_LOCKED_RETRY_SECONDS,
    MIN_REFUSED_RETRY_SECONDS,
)
from pgworkers.master.unsaved_progress import UnsavedProgress

FENCE, OTHER = Fence(1, 1, 7), Fence(2, 1, 7)


def update(progress: str | None, checkpoint: str | None, fence: Fence = FENCE) -> ProgressUpdate:
    return ProgressUpdate(*fence, progress, checkpoint)


@pytest.fixture
def unsaved() -> UnsavedProgress:
    return UnsavedProgress()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(deferred_results, "monotonic", lambda: now[0])
    return now


def test_values_are_merged_field_by_field_while_they_wait(unsaved: UnsavedProgress) -> None:
    unsaved.add(update("1", '{"at": 1}'))
    unsaved.add(update("2", None))
    assert unsaved.take(10) == [update("2", '{"at": 1}')]
    unsaved.settle([])
    assert not unsaved


def test_a_newer_progress_does_not_erase_the_checkpoint_whose_answer_was_lost(
    unsaved: UnsavedProgress,
) -> None:
    unsaved.add(update(None, '{"at": 1}'))
    unsaved.take(10)
    unsaved.add(update("2", None))
    unsaved.add(update("3", None, OTHER))
    unsaved.restore()
    assert unsaved.take(1) == [update("2", '{"at": 1}')], "the older one comes first"


@pytest.mark.parametrize("newer", [None, update("2", None)], ids=["alone", "with a newer progress"])
def test_what_is_in_flight_is_written_with_the_result(
    unsaved: UnsavedProgress, newer: ProgressUpdate | None
) -> None:
    unsaved.add(update("1", '{"at": 1}'))
    unsaved.take(10)
    if newer is not None:
        unsaved.add(newer)
    assert unsaved.pop(FENCE) == update("2" if newer else "1", '{"at": 1}')
    unsaved.restore()
    assert not unsaved, "an older update must not follow the result"


def test_a_locked_update_is_sent_again_soon_without_what_is_newer(
    unsaved: UnsavedProgress, clock: list[float]
) -> None:
    unsaved.add(update("1", '{"at": 1}'))
    unsaved.add(update("1", None, OTHER))
    unsaved.take(10)
    unsaved.add(update("2", None))
    unsaved.settle([FENCE])
    assert unsaved.seconds_until_due() == pytest.approx(MIN_LOCKED_RETRY_SECONDS)
    assert unsaved.take(10) == [update("2", None)]
    unsaved.settle([])
    clock[0] += MIN_LOCKED_RETRY_SECONDS
    unsaved.requeue_due()
    assert unsaved.take(10) == [update(None, '{"at": 1}')], "not the progress: it would be overwritten"
    unsaved.settle([])
    assert not unsaved


def test_an_update_that_is_locked_again_keeps_what_was_deferred_before(
    unsaved: UnsavedProgress, clock: list[float]
) -> None:
    unsaved.add(update(None, '{"at": 1}'))
    unsaved.take(10)
    unsaved.settle([FENCE])
    unsaved.add(update("2", None))
    assert unsaved.take(10) == [update("2", None)]
    unsaved.settle([FENCE])
    clock[0] += 2 * MIN_LOCKED_RETRY_SECONDS
    unsaved.requeue_due()
    assert unsaved.take(10) == [update("2", '{"at": 1}')]


def test_a_value_replaces_one_that_is_deferred(unsaved: UnsavedProgress, clock: list[float]) -> None:
    unsaved.add(update("1", '{"at": 1}'))
    unsaved.take(10)
    unsaved.settle([FENCE])
    unsaved.add(update(None, '{"at": 2}'))
    assert unsaved.take(10) == [update(None, '{"at": 2}')]
    assert unsaved.pop(FENCE) == update("1", '{"at": 2}')
    assert not unsaved


@pytest.mark.parametrize("is_invalid", [False, True])
def test_a_refused_update_is_sent_again_and_spares_the_result_what_the_server_refuses(
    unsaved: UnsavedProgress, clock: list[float], is_invalid: bool
) -> None:
    unsaved.add(update("1", '{"at": 1}'))
    unsaved.take(10)
    assert unsaved.defer_refused(is_invalid=is_invalid) == MIN_REFUSED_RETRY_SECONDS
    clock[0] += MIN_REFUSED_RETRY_SECONDS
    unsaved.requeue_due()
    unsaved.take(10)
    assert unsaved.defer_refused(is_invalid=is_invalid) == 2 * MIN_REFUSED_RETRY_SECONDS
    unsaved.add(update("2", None))
    unsaved.take(10)
    unsaved.settle([])
    unsaved.add(update("2", None))
    expected = update("2", None) if is_invalid else update("2", '{"at": 1}')
    assert unsaved.pop(FENCE) == expected
    assert not unsaved


def test_a_refusal_of_what_the_result_has_taken_along_is_ignored(unsaved: UnsavedProgress) -> None:
    unsaved.add(update("1", None))
    unsaved.take(10)
    unsaved.pop(FENCE)
    assert unsaved.defer_refused(is_invalid=False) is None
    assert not unsaved
