"""The table of faults in docs/reliability/faults.md, read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = "docs/reliability/faults.md"


@dataclass(frozen=True)
class Row:
    name: str  # its number, or a word
    fault: str
    tests: tuple[str, ...]
    reason: str  # where there is no test
    runs: str


def table(root: Path) -> list[Row]:
    rows = []
    for line in (root / PAGE).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("|") or not re.fullmatch(r"\d+|model", cells[0]):
            continue
        tests = tuple(re.findall(r"`(tests/[^`]+)`", cells[2]))
        rows.append(
            Row(cells[0], cells[1], tests, "" if tests else cells[2], cells[3] if len(cells) > 3 else "")
        )
    return rows
