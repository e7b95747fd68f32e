"""docs/reference/log-lines.md says what the lines for machines have, and says all of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from pgworkers import events
from pgworkers.observe.log import JSON_KEYS, KEYS_OUTSIDE_DATA, UNLOGGED_EVENTS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "log-lines.md").read_text()


def rows(heading: str) -> dict[str, str]:
    """The table below a heading row, by first cell."""
    table = PAGE.partition(f"| {heading} |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    return {name.strip().strip("`"): text.strip() for name, text in cells}


def test_the_keys_of_a_json_line_are_documented_in_their_order() -> None:
    assert tuple(rows("key")) == JSON_KEYS


def test_every_fact_has_a_row_with_its_data_or_has_no_line() -> None:
    told = {
        fact.__name__: [name for name in fact.__match_args__ if name not in KEYS_OUTSIDE_DATA]
        for fact in get_args(events.Event)
        if fact not in UNLOGGED_EVENTS or fact is events.LogLinesDropped
    }
    page = {name: re.findall(r"`(\w+)`", text) for name, text in rows("event").items()}
    assert {name: page.get(name) for name in told} == told, (
        "add the fact to docs/reference/log-lines.md or to log.SILENT"
    )
    assert set(page) - set(told) == {"summary", "log"}
