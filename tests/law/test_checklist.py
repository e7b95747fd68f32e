"""The checklist of docs/reliability: every row is there once and names tests that exist and run where the page says."""

from __future__ import annotations

import re
from pathlib import Path

from mutants.catalogue import MUTANTS
from support.fault_matrix import checklist, table

ROOT = Path(__file__).parents[2]
#: The numbers of the fault matrix run to 99; these were taken out.
GONE = {4, 11, 16, 17, 25, 31, 39, 47, 54, 57, 64, 71, 85, 96}
FAULTS = [str(number) for number in range(1, 100) if number not in GONE]
INVARIANTS = (1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 16, 18, 19, 21, 22, 23)
WANTED = {
    *(f"P{number}" for number in range(1, 9)),
    *(f"I{number}" for number in INVARIANTS),
    *(f"A{number}" for number in range(1, 8)),
    *(f"S-{number:02}" for number in range(1, 18)),
    *(f"S-low: {what}" for what in ("files", "schedules", "frames", "cores", "history", "doctor")),
    "S-claim",
    *(f"C{number}" for number in range(1, 19)),
    *(f"M: {mutant.name}" for mutant in MUTANTS),
}


def test_every_row_is_there_once() -> None:
    names = [row.name for row in checklist(ROOT)]
    assert len(names) == len(set(names))
    assert set(names) >= WANTED
    assert [row.name for row in table(ROOT)] == [*FAULTS, "model", "pooler"]


def test_every_row_says_what_happens_and_what_holds() -> None:
    assert [row.name for row in checklist(ROOT) if not row.fault or not row.promise] == []


def test_every_row_has_tests_that_exist_and_run_where_the_page_says() -> None:
    wrong = []
    for row in checklist(ROOT):
        if not row.tests:
            assert row.reason.startswith("no test of pytest: "), f"row {row.name}: no test and no reason"
            continue
        where: set[str] = set()
        for test in row.tests:
            file, _, name = test.partition("::")
            if row.pooled:
                assert (ROOT / test.removesuffix(" --pooler")).is_dir()
                where.add("long")
            elif not (ROOT / file).is_file() or (name and decorators(file, name) is None):
                wrong.append(f"row {row.name}: {test} does not exist")
            else:
                where |= runs(file, name)
        named = {word for word in ("suite", "long") if re.search(rf"\b{word}\b", row.runs)}
        if named != where:
            wrong.append(f"row {row.name}: the page says {row.runs}, its tests are {sorted(where)}")
    assert wrong == []


def decorators(file: str, name: str) -> str | None:
    """The decorators of a test, or None if there is no such test."""
    found = re.search(rf"((?:^@.*\n(?:^[ )\]].*\n)*)*)^def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
    return found[1] if found else None


def runs(file: str, name: str) -> set[str]:
    """Where a test runs, by its markers. A parameter that is long leaves the others to the suite."""
    text = (ROOT / file).read_text()
    if re.search(r"^pytestmark = (?:\[\s*)?pytest\.mark\.long\b", text, re.MULTILINE):
        return {"long"}
    marks = decorators(file, name) or "" if name else ""
    if "@pytest.mark.long" in marks:
        return {"long"}
    return {"suite", "long"} if "pytest.mark.long" in marks else {"suite"}


def test_every_fault_test_is_in_the_table() -> None:
    named = {test for row in table(ROOT) for test in row.tests}
    for path in sorted((ROOT / "tests" / "fault").glob("test_*.py")):
        for name in re.findall(r"^def (test_rows?_\w+)\(", path.read_text(), re.MULTILINE):
            assert f"tests/fault/{path.name}::{name}" in named, (
                f"{name} is not in docs/reliability/checklist.md"
            )


def test_each_row_of_a_mutant_names_its_checks() -> None:
    rows = {row.name: set(row.tests) for row in checklist(ROOT)}
    for mutant in MUTANTS:
        assert rows[f"M: {mutant.name}"] == {check.partition("[")[0] for check in mutant.checks}, mutant.name
