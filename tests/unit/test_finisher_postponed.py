"""Ends that the database does not take now: what is locked is tried again soon, what is refused less and less often."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pgworkers.job.model import Fence
from pgworkers.master import deferred_results
from pgworkers.master.deferred_results import (
    MAX_LOCKED_RETRY_SECONDS,
    MAX_REFUSED_RETRY_SECONDS,
    MIN_LOCKED_RETRY_SECONDS,
    MIN_REFUSED_RETRY_SECONDS,
    DeferredResults,
)


@dataclass(frozen=True)
class FencedResult:
    fence: Fence


def test_what_is_locked_comes_back_soon_and_what_is_refused_after_ever_longer_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(deferred_results, "monotonic", lambda: now)
    waiting: DeferredResults[FencedResult, str] = DeferredResults()
    locked, refused = FencedResult(Fence(1, 1, 7)), FencedResult(Fence(1, 1, 8))
    assert waiting.seconds_until_due() is None
    assert waiting.defer_locked(locked, "end") == MIN_LOCKED_RETRY_SECONDS
    assert waiting.seconds_until_due() == pytest.approx(MIN_LOCKED_RETRY_SECONDS)
    assert waiting.defer_refused(refused, "end") == MIN_REFUSED_RETRY_SECONDS
    assert (waiting.fences(), len(waiting)) == ([locked.fence, refused.fence], 2), "they are still ours"
    assert waiting.pop_due() == []
    now += MIN_LOCKED_RETRY_SECONDS
    assert waiting.pop_due() == [(locked, "end")]
    assert [waiting.defer_locked(locked, "end") for _ in range(7)][-2:] == [
        MAX_LOCKED_RETRY_SECONDS,
        MAX_LOCKED_RETRY_SECONDS,
    ]
    waiting.forget(locked.fence)
    now += MAX_LOCKED_RETRY_SECONDS
    assert waiting.pop_due() == [(locked, "end")]
    now += MIN_REFUSED_RETRY_SECONDS
    assert waiting.pop_due() == [(refused, "end")]
    pauses = [waiting.defer_refused(refused, "end") for _ in range(8)]
    assert pauses == [
        2.0,
        4.0,
        8.0,
        16.0,
        32.0,
        MAX_REFUSED_RETRY_SECONDS,
        MAX_REFUSED_RETRY_SECONDS,
        MAX_REFUSED_RETRY_SECONDS,
    ]
    assert waiting.has_retries
    waiting.forget(refused.fence)
    assert not waiting.has_retries
