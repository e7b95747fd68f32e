"""The table of faults and the tests are equal: each row has its test, or says why not; each fault test is in the table."""

from __future__ import annotations

import re
from pathlib import Path

from support.faults import table

ROOT = Path(__file__).parents[2]
#: The numbers of the matrix run to 99; these were taken out.
GONE = {4, 11, 16, 17, 25, 31, 39, 47, 54, 57, 64, 71, 85, 96}
ROWS = [str(number) for number in range(1, 100) if number not in GONE]


def test_every_row_of_the_matrix_is_there_once() -> None:
    assert [row.name for row in table(ROOT)] == [*ROWS, "model", "pooler"]


def test_every_row_has_a_test_that_exists_or_a_reason() -> None:
    for row in table(ROOT):
        if not row.tests:
            assert row.reason.startswith("not here: "), f"row {row.name}: no test and no reason"
            continue
        assert row.runs, f"row {row.name} does not say where it runs"
        where: set[str] = set()
        for test in row.tests:
            if row.pooled:
                assert (ROOT / test.removesuffix(" --pooler")).is_dir()
                where.add("long")
                continue
            file, _, name = test.partition("::")
            found = re.search(
                rf"((?:^@.*\n(?:^[ )\]].*\n)*)*)^def {name}\(", (ROOT / file).read_text(), re.MULTILINE
            )
            assert found, f"row {row.name}: {test} does not exist"
            where |= runs(file, found[1])
        said = {word for word in ("suite", "long") if re.search(rf"\b{word}\b", row.runs)}
        assert said == where, f"row {row.name}: the page says {row.runs}, its tests are {sorted(where)}"


def runs(file: str, decorators: str) -> set[str]:
    """By its markers; a parameter that is long leaves the others to the suite."""
    whole = re.search(
        r"^pytestmark = (?:\[\s*)?pytest\.mark\.long\b", (ROOT / file).read_text(), re.MULTILINE
    )
    if whole or "@pytest.mark.long" in decorators:
        return {"long"}
    return {"suite", "long"} if "pytest.mark.long" in decorators else {"suite"}


def test_every_fault_test_is_in_the_table() -> None:
    named = {test for row in table(ROOT) for test in row.tests}
    for path in sorted((ROOT / "tests" / "fault").glob("test_*.py")):
        for name in re.findall(r"^def (test_rows?_\w+)\(", path.read_text(), re.MULTILINE):
            assert f"tests/fault/{path.name}::{name}" in named, f"{name} is not in docs/reliability/faults.md"
