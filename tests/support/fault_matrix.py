"""Reads the table of docs/reliability/checklist.md, and judges a run of the tests of its fault rows."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from support.junit import Case

PAGE = "docs/reliability/checklist.md"
#: What the database suite says of a test that has no meaning there; without a pooler it says something else.
NOT_JUDGED = "NOT TESTED through a pooler"


@dataclass(frozen=True)
class Row:
    name: str  # its number, or a word
    fault: str  # what happens
    promise: str  # what holds then
    tests: tuple[str, ...]
    reason: str  # where there is no test
    runs: str

    @property
    def pooled(self) -> bool:
        """A run of its own: a directory of tests, all of them through a pooler."""
        return any(test.endswith(" --pooler") for test in self.tests)


@dataclass(frozen=True)
class Outcome:
    row: Row
    result: str  # ok, FAILED, nothing, in part, NOT TESTED
    seconds: float
    said: tuple[str, ...]  # what failed or was not tested, and why

    @property
    def bad(self) -> bool:
        return self.result in ("FAILED", "nothing")

    @property
    def untested(self) -> bool:
        return self.result in ("in part", "NOT TESTED")


def checklist(root: Path) -> list[Row]:
    """Every row of the page, in its order."""
    rows = []
    for line in (root / PAGE).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("| ") or len(cells) != 6 or cells[0] == "row":
            continue  # prose, the head of the table, or the title of a group
        name, fault, promise, _, tests, runs = cells
        named = tuple(re.findall(r"`(tests/[^`]+)`", tests))
        rows.append(Row(name, fault, promise, named, "" if named else tests, runs))
    return rows


def table(root: Path) -> list[Row]:
    """The rows of the fault matrix."""
    return [row for row in checklist(root) if re.fullmatch(r"\d+|model|pooler", row.name)]


def outcome(row: Row, cases: list[Case]) -> Outcome:
    """A row holds if every case of every one of its tests ran and was green; a skipped one proves nothing."""
    tests = [test.removesuffix(" --pooler") for test in row.tests]
    mine = [case for case in cases if any(case.belongs_to(test) for test in tests)]
    missing = [test for test in tests if not any(case.belongs_to(test) for case in mine)]
    failed = [case for case in mine if case.outcome == "FAILED"]
    skipped = [
        case for case in mine if case.outcome == "skipped" and not (row.pooled and NOT_JUDGED in case.why)
    ]
    green = [case for case in mine if case.outcome == "ok"]
    said = [f"{test} did not run" for test in missing]
    said += [f"{case.test.rpartition('::')[2]}: {' '.join(case.why.split())[:200]}" for case in failed]
    said += [
        f"{name}: {why}" if count == 1 else f"{count} tests: {why}"
        for name, why, count in _by_reason(skipped)
    ]
    if row.pooled and green:
        judged = len(mine) - len(green) - len(failed) - len(skipped)
        said.append(
            f"{len(green)} passed, {judged} have no meaning through a pooler and were skipped by name"
        )
    if failed:
        result = "FAILED"
    elif missing:
        result = "nothing"
    elif skipped:
        result = "in part" if green else "NOT TESTED"
    else:
        result = "ok" if green else "nothing"
    return Outcome(row, result, sum(case.seconds for case in mine), tuple(said))


def summary(outcomes: list[Outcome]) -> list[str]:
    """How many rows hold, and by name what was not tried and why."""
    untested = [one for one in outcomes if one.untested]
    bad = [one for one in outcomes if one.bad]
    hold = len(outcomes) - len(untested) - len(bad)
    lines = [
        f"{hold} of {len(outcomes)} rows hold, {len(bad)} do not, {len(untested)} NOT TESTED or only in part"
    ]
    lines += [f"  row {one.row.name} {one.result}: {text}" for one in [*bad, *untested] for text in one.said]
    programs = sorted({name for one in untested for text in one.said for name in _programs(text)})
    if programs:  # printed, not run: Debian starts a pooler of its own with it
        lines.append(f"  to be had by: apt-get install {' '.join(programs)}")
    return lines


def _programs(text: str) -> list[str]:
    return re.findall(r"apt-get install ([a-z0-9-]+)", text)


def _by_reason(skipped: list[Case]) -> list[tuple[str, str, int]]:
    counted = Counter(case.why.removeprefix("NOT TESTED: ") for case in skipped)
    names = {case.why.removeprefix("NOT TESTED: "): case.test.rpartition("::")[2] for case in skipped}
    return [(names[why], why, count) for why, count in counted.items()]
