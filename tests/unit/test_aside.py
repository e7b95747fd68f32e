"""Ends that are set aside stay ours while somebody looks whether their rows are free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from pgworkers.job.claim import Fence
from pgworkers.master.aside import Aside
from pgworkers.master.line import LineDown


@dataclass(frozen=True)
class One:
    fence: Fence


@dataclass
class Watched:
    """Answers that `locked` are; `seen` is what was aside while it was asked."""

    locked: set[int]
    down: bool = False
    aside: Any = None
    seen: list[list[Fence]] = field(default_factory=list)

    async def ask(self, query: Any) -> Any:
        self.seen.append([one.fence for one, _ in self.aside.waiting])
        if self.down:
            raise LineDown("no answer")
        return self.locked


def finish(coroutine: Any) -> Any:
    """Run what waits for nothing."""
    with pytest.raises(StopIteration) as end:
        coroutine.send(None)
    return end.value.value


def test_what_is_looked_at_is_still_aside_and_only_what_is_free_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = Watched(locked={1, 2})
    aside: Aside[One, str] = Aside(line)
    line.aside = aside
    monkeypatch.setattr("pgworkers.master.aside.AGAIN", 0.0)
    pairs = [(One(Fence(number, 1, 7)), "end") for number in (1, 2, 3)]
    assert finish(aside.sort(pairs)) == pairs[2:]
    line.locked = {2}
    assert finish(aside.back()) == pairs[:1]
    assert line.seen[-1] == [(1, 1, 7), (2, 1, 7)], (
        "a look for what nobody knows must not find them without an owner"
    )
    assert aside.waiting == pairs[1:2]
    line.down = True
    with pytest.raises(LineDown):
        aside.back().send(None)
    assert aside.waiting == pairs[1:2], "the next look finds them"
