"""Which processes need no new look: they rest, and were found resting before. Pure.

A look at a process (its memory, its CPU time) costs as much as many of its own wake-ups, and of one that rests it says the
same again. Two looks in a row at the same rest are trusted for a while: the first may still speak of the work before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

#: Seconds after which even those who rest are looked at: a thread of theirs may have grown.
TRUSTED = 30.0


class _Look(NamedTuple):
    mark: int | None
    same: bool  # as at the look before
    at: float


class Resting:
    def __init__(self) -> None:
        self._looks: dict[int, _Look] = {}

    def due(self, marks: Mapping[int, int | None], now: float) -> list[int]:
        """Who is to be looked at now. Marks by pid: None while it works, and for each of its rests another number."""
        before, self._looks = self._looks, {}
        due = []
        for pid, mark in marks.items():
            last = before.get(pid)
            same = last is not None and mark is not None and last.mark == mark
            if last is not None and same and last.same and now - last.at < TRUSTED:
                self._looks[pid] = last
            else:
                self._looks[pid] = _Look(mark, same, now)
                due.append(pid)
        return due
