"""The states, their moves, and the page that draws them."""

from __future__ import annotations

import re
from pathlib import Path

from pgworkers.job.state import CRASHES, FREE, LIVE, MOVES, TERMINAL, State, Verdict

ROOT = Path(__file__).parents[2]


def test_every_state_is_live_or_terminal() -> None:
    assert set(State) == LIVE | TERMINAL
    assert not LIVE & TERMINAL


def test_every_state_but_success_can_be_left_and_every_state_can_be_reached() -> None:
    stored = set(State) - {State.CLAIMED}
    assert {source for source, _ in MOVES} == stored - {State.SUCCEEDED}
    assert {target for _, target in MOVES} == stored
    assert not [move for move in MOVES if move[0] == move[1]]


def test_only_an_operator_changes_a_terminal_state() -> None:
    assert {verb for (source, _), verb in MOVES.items() if source in TERMINAL} == {"requeue"}


def test_free_and_crash_verdicts_are_apart() -> None:
    assert not CRASHES & FREE
    assert Verdict.SUCCEEDED not in CRASHES | FREE


def test_the_diagram_in_the_docs_shows_exactly_these_moves() -> None:
    page = (ROOT / "docs" / "states.md").read_text()
    drawn = {
        (State(source), State(target)): verb
        for source, target, verb in re.findall(r"^    (\w+) --> (\w+): (\w+)", page, re.MULTILINE)
        if source != "new"
    }
    assert drawn == MOVES


def test_the_docs_name_every_verdict() -> None:
    page = (ROOT / "docs" / "states.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [str(verdict) for verdict in Verdict]
