"""Reading JSON columns for people: one value that Python cannot hold must not hide all the others.

jsonb takes numbers of thousands of digits and thousands of levels; Python's reader refuses the first and recursion
ends at the second, here or in whoever prints the value. So these columns travel as text, and each is decoded by itself.
"""

from __future__ import annotations

import json
import re
from typing import Any

DEEPEST = 200  #: levels that everything that prints a value can recurse through
_STRINGS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_BRACKETS = re.compile(r"[\[\]{}]")
_SHOWN = 60


class Unreadable(str):
    """Stands for a value that is stored but cannot be read; its text says why."""

    __slots__ = ()


#: Stands for payload that the role of this session may not read.
HIDDEN = Unreadable("(hidden: this role sees no payload)")


def value_of(text: str | None) -> Any:
    """The Python value of a JSON column that was selected as text; `Unreadable` when there is none."""
    if text is None:
        return None
    if _too_deep(text):
        return _unreadable(text, f"nested deeper than {DEEPEST} levels")
    try:
        return json.loads(text)
    except (
        ValueError
    ):  # the only thing that jsonb writes and this refuses: an integer of more than 4300 digits
        return _unreadable(text, "it holds a number with too many digits")


def _unreadable(text: str, why: str) -> Unreadable:
    begin = text[:_SHOWN] + "…" if len(text) > _SHOWN else text
    return Unreadable(f"(unreadable: {why}; {len(text):,} characters: {begin})")


def _too_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= DEEPEST:
        return False
    depth = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > DEEPEST:
            return True
    return False
