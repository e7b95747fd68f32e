"""Where facts are told, and who listens.

`Facts.tell` never raises and never waits: a listener that fails is logged and left out for that fact, because a
fact must not delay or break the job it is about.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from pgworkers.events import Fact

Listener = Callable[[Any], None]


class Facts:
    """Where facts are told and who listens.

    A listener that does something else with each kind says so: its `hears(kind)` is what hears that kind, or None. It is
    asked once for each kind, so that the facts of jobs find their way without a look.
    """

    def __init__(self) -> None:
        self._listeners: list[tuple[Listener, tuple[type, ...]]] = []
        self._of: dict[type, list[Listener]] = {}  # who hears a kind of fact

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
        hearing = self._of.get(kind)
        if hearing is None:
            hearing = self._of[kind] = self._hearing(kind)
        for listener in hearing:
            left = iter(facts)
            while True:
                try:
                    for fact in left:
                        listener(fact)
                    break
                except Exception:
                    logging.getLogger("pgworkers").exception("a listener failed at %s", kind.__name__)

    def _hearing(self, kind: type) -> list[Listener]:
        found: list[Listener] = []
        for listener, kinds in self._listeners:
            if not kinds or kind in kinds:
                chosen = listener.hears(kind) if hasattr(listener, "hears") else listener
                if chosen is not None:
                    found.append(chosen)
        return found
