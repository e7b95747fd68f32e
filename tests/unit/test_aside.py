"""Ends that the database does not take now: what is locked is tried again soon, what is refused less and less often."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pgworkers.job.claim import Fence
from pgworkers.master import aside
from pgworkers.master.aside import FIRST, LOCKED_FIRST, LOCKED_MOST, MOST, Aside


@dataclass(frozen=True)
class One:
    fence: Fence


def test_what_is_locked_comes_back_soon_and_what_is_refused_after_ever_longer_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(aside, "monotonic", lambda: now)
    waiting: Aside[One, str] = Aside()
    locked, refused = One(Fence(1, 1, 7)), One(Fence(1, 1, 8))
    assert waiting.due_in() is None
    assert waiting.put_locked(locked, "end") == LOCKED_FIRST
    assert waiting.due_in() == pytest.approx(LOCKED_FIRST)
    assert waiting.put_refused(refused, "end") == FIRST
    assert (waiting.fences(), len(waiting)) == ([locked.fence, refused.fence], 2), "they are still ours"
    assert waiting.back() == []
    now += LOCKED_FIRST
    assert waiting.back() == [(locked, "end")]
    assert [waiting.put_locked(locked, "end") for _ in range(7)][-2:] == [LOCKED_MOST, LOCKED_MOST]
    waiting.forget(locked.fence)
    now += LOCKED_MOST
    assert waiting.back() == [(locked, "end")]
    now += FIRST
    assert waiting.back() == [(refused, "end")]
    pauses = [waiting.put_refused(refused, "end") for _ in range(8)]
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, MOST, MOST, MOST]
    assert waiting.knows
    waiting.forget(refused.fence)
    assert not waiting.knows
