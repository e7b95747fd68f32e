"""Where facts are told, and who listens.

`Facts.tell` never raises and never waits: a listener that fails is logged and left out for that fact, because a
fact must not delay or break the job it is about.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from operator import length_hint
from typing import Any

from pgworkers.events import Fact

Listener = Callable[[Any], None]
#: Hears facts of one kind that were told together; what it leaves in the iterator it does not care for.
Hearing = Callable[[Iterator[Any]], None]


class Facts:
    """Where facts are told and who listens.

    A listener that does something else with each kind says so: its `hears(kind)` is what hears facts of that kind, many at a
    time, or None. It is asked once for each kind, so that the facts of jobs find their way without a look and without a call
    for each of them.
    """

    def __init__(self) -> None:
        self._listeners: list[tuple[Listener, tuple[type, ...]]] = []
        self._of: dict[type, list[Hearing]] = {}  # who hears a kind of fact

    def listen(self, listener: Listener, *kinds: type) -> None:
        """Hear these kinds of facts; without any, all."""
        self._listeners.append((listener, kinds))
        self._of.clear()

    def tell(self, fact: Fact) -> None:
        self.tell_all((fact,))

    def tell_all(self, facts: Sequence[Fact]) -> None:
        """Facts of one kind, in their order."""
        if not facts:
            return
        kind = type(facts[0])
        hearings = self._of.get(kind)
        if hearings is None:
            hearings = self._of[kind] = self._hearing(kind)
        for hear in hearings:
            left = iter(facts)
            while before := length_hint(left):
                try:
                    hear(left)
                    break
                except Exception:
                    logging.getLogger("pgworkers").exception("a listener failed at %s", kind.__name__)
                    if length_hint(left) == before:
                        next(left)  # it failed before it took one

    def _hearing(self, kind: type) -> list[Hearing]:
        found: list[Hearing] = []
        for listener, kinds in self._listeners:
            if not kinds or kind in kinds:
                chosen = listener.hears(kind) if hasattr(listener, "hears") else each(listener)
                if chosen is not None:
                    found.append(chosen)
        return found


class ByKind:
    """A listener that does something else with each kind, and hears of many at a time."""

    def hears(self, kind: type) -> Hearing | None:
        raise NotImplementedError

    def __call__(self, fact: Fact) -> None:
        hear = self.hears(type(fact))
        if hear is not None:
            hear(iter((fact,)))


def each(listener: Listener) -> Hearing:
    """Somebody who hears one fact at a time."""

    def hear(facts: Iterator[Any]) -> None:
        for fact in facts:
            listener(fact)

    return hear
