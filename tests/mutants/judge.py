"""Decide whether a mutant was caught: each of its checks must fail, and with the reason that the mutant names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from support.junit import Case

from mutants.mutant import Mutant


@dataclass(frozen=True)
class Judgement:
    caught: bool
    said: str  # the message of the failed check, or why the mutant counts as not caught


def judge(mutant: Mutant, cases: list[Case]) -> Judgement:
    reasons = []
    for check in mutant.checks:
        ran = [case for case in cases if case.belongs_to(check)]
        if not ran:
            return Judgement(False, f"the check itself broke: {_name(check)} did not come to its end")
        for test in dict.fromkeys(case.test for case in ran):
            red = [case.why for case in ran if case.test == test and case.outcome == "FAILED"]
            if not red:
                return Judgement(False, f"SURVIVED {_name(test)}")
            found = [match.group() for why in red if (match := re.search(mutant.reason, why))]
            if not found:
                return Judgement(False, f"{_name(test)} is red for another reason: {_line(red[0])}")
            reasons += found
    return Judgement(True, "; ".join(dict.fromkeys(map(_line, reasons))))


def without_any(checks: Iterable[str], cases: list[Case]) -> list[str]:
    """Why these checks prove nothing although no rule is broken; empty: all of them are green."""
    wrong = [f"{case.test} {case.outcome}: {_line(case.why)}" for case in cases if case.outcome != "ok"]
    return wrong + [
        f"{check} did not run" for check in checks if not any(case.belongs_to(check) for case in cases)
    ]


def _name(test: str) -> str:
    return test.rpartition("::")[2]


def _line(text: str) -> str:
    return " ".join(text.split())[:160]
