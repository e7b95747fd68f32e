"""What scripts/faults and scripts/mutants say of a run: green is what ran, red is what is red for its reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants.judge import judge, without_any
from mutants.mutant import Mutant
from support import junit
from support.fault_matrix import Row, outcome, summary
from support.junit import Case

A, B = "tests/fault/test_x.py::test_a", "tests/fault/test_x.py::test_b"
ROW = Row("7", "a fault", "it is survived", (A, B), "", "suite")
POOLED = Row("pooler", "all of it", "as without", ("tests/database --pooler",), "", "long")
MUTANT = Mutant("m", "a rule", (), (A, B), "overlapp?ed")


def ok(test: str) -> Case:
    return Case(test, "ok", 1.0, "")


def red(test: str, why: str = "AssertionError: they overlapped") -> Case:
    return Case(test, "FAILED", 1.0, why)


def skipped(test: str, why: str = "NOT TESTED: no x (apt-get install x)") -> Case:
    return Case(test, "skipped", 0.0, why)


@pytest.mark.parametrize(
    ("cases", "result"),
    [
        ([ok(A), ok(f"{B}[1]"), ok(f"{B}[2]")], "ok"),
        ([ok(A), ok(f"{B}[1]"), skipped(f"{B}[2]")], "in part"),
        ([skipped(A), skipped(B)], "NOT TESTED"),
        ([red(A), skipped(B)], "FAILED"),
        ([ok(A)], "nothing"),
        ([ok(A), ok(f"{B}_and_more")], "nothing"),
        ([], "nothing"),
    ],
)
def test_a_row_holds_if_every_case_ran_and_was_green(cases: list[Case], result: str) -> None:
    assert outcome(ROW, cases).result == result


def test_the_summary_names_what_was_not_tested_and_what_to_install() -> None:
    held = outcome(ROW, [ok(A), ok(B)])
    part = outcome(ROW, [ok(A), skipped(B)])
    assert summary([held, part]) == [
        "1 of 2 rows hold, 0 do not, 1 NOT TESTED or only in part",
        "  row 7 in part: test_b: no x (apt-get install x)",
        "  to be had by: apt-get install x",
    ]


def test_a_test_that_cannot_run_through_a_pooler_is_not_a_gap_but_a_missing_pooler_is() -> None:
    through = ok("tests/database/test_x.py::test_a")
    named = skipped("tests/database/test_x.py::test_b", "NOT TESTED through a pooler: it looks at sessions")
    found = outcome(POOLED, [through, named])
    assert (found.result, found.said[0][:8]) == ("ok", "1 passed")
    assert outcome(POOLED, [skipped("tests/database/test_x.py::test_a"), named]).result == "NOT TESTED"
    assert outcome(POOLED, [named]).result == "nothing"


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        ([red(A), red(B)], ""),
        ([red(A), ok(B)], "SURVIVED test_b"),
        ([red(A), skipped(B)], "SURVIVED test_b"),
        ([red(A), red(f"{B}[1]"), ok(f"{B}[2]")], "SURVIVED test_b[2]"),
        ([red(A), red(B, "OSError: no space left")], "another reason: OSError"),
        ([red(A)], "test_b did not come to its end"),
    ],
)
def test_a_mutant_is_caught_by_all_of_its_checks_and_for_its_reason(cases: list[Case], said: str) -> None:
    found = judge(MUTANT, cases)
    assert found.caught == (not said)
    assert (said or "overlapped") in found.said


def test_a_check_that_is_not_green_without_a_mutant_proves_nothing() -> None:
    assert without_any([A, B], [ok(A), ok(B)]) == []
    assert len(without_any([A, B], [ok(A), skipped(B)])) == 1
    assert len(without_any([A, B], [ok(A)])) == 1


def test_the_report_of_pytest_is_read(tmp_path: Path) -> None:
    report = tmp_path / "r.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.unit.test_x" name="test_a[1]" time="0.5"/>'
        '<testcase classname="tests.unit.test_x" name="test_b" time="1"><failure message="AssertionError: why">source'
        "</failure></testcase></testsuite></testsuites>"
    )
    assert junit.read(report) == [
        Case("tests/unit/test_x.py::test_a[1]", "ok", 0.5, ""),
        Case("tests/unit/test_x.py::test_b", "FAILED", 1.0, "AssertionError: why"),
    ]
    assert junit.read(tmp_path / "none.xml") == []
