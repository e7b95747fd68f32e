"""The states, their moves, and the page that draws them."""

from __future__ import annotations

import re
from pathlib import Path

from pgworkers.job.model import (
    CRASH_VERDICTS,
    FREE_VERDICTS,
    JOB_STATE_MOVES,
    LIVE_STATES,
    TERMINAL_STATES,
    JobState,
    Verdict,
)

ROOT = Path(__file__).parents[2]


def test_every_state_is_live_or_terminal() -> None:
    assert set(JobState) == LIVE_STATES | TERMINAL_STATES
    assert not LIVE_STATES & TERMINAL_STATES


def test_every_state_but_success_can_be_left_and_every_state_can_be_reached() -> None:
    stored = set(JobState) - {JobState.CLAIMED}
    assert {source for source, _ in JOB_STATE_MOVES} == stored - {JobState.SUCCEEDED}
    assert {target for _, target in JOB_STATE_MOVES} == stored
    assert not [move for move in JOB_STATE_MOVES if move[0] == move[1]]


def test_only_an_operator_changes_a_terminal_state() -> None:
    assert {verb for (source, _), verb in JOB_STATE_MOVES.items() if source in TERMINAL_STATES} == {"requeue"}


def test_free_and_crash_verdicts_are_apart() -> None:
    assert not CRASH_VERDICTS & FREE_VERDICTS
    assert Verdict.SUCCEEDED not in CRASH_VERDICTS | FREE_VERDICTS


def test_the_diagram_in_the_docs_shows_exactly_these_moves() -> None:
    page = (ROOT / "docs" / "reference" / "states.md").read_text()
    drawn = {
        (JobState(source), JobState(target)): verb
        for source, target, verb in re.findall(r"^    (\w+) --> (\w+): (\w+)", page, re.MULTILINE)
        if source != "new"
    }
    assert drawn == JOB_STATE_MOVES


def test_the_docs_name_every_verdict() -> None:
    page = (ROOT / "docs" / "reference" / "states.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [str(verdict) for verdict in Verdict]
