"""The seconds in brackets after each bound of docs/reliability/README.md are what its formula gives with the defaults."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

from pgworkers.settings import Settings

PAGE = (Path(__file__).parents[2] / "docs/reliability/README.md").read_text(encoding="utf-8")
PART = PAGE[PAGE.index("## How long it takes") : PAGE.index("## How it is tested")]
PARTS_OF_ONE = {"": Fraction(0), "⅔": Fraction(2, 3), "⅓": Fraction(1, 3), "⅙": Fraction(1, 6)}
#: What can be computed: numbers, single letters, seconds, sums and brackets.
FORMULA = re.compile(r"(?:[\d⅔⅓⅙()+ ]|(?<![A-Za-z])(?:[A-Z]|s)(?![A-Za-z]))+\[(\d+) s\]")
TERM = re.compile(r"(\d*)([⅔⅓⅙]?) ?([A-Z]|s|\(([^)]*)\))")


def letters() -> dict[str, Fraction]:
    """`H` renew, … `K` = ask_grace + raise_grace: what each letter is with the defaults."""
    defaults = Settings()
    found = re.findall(r"`([A-Z])` (?:= )?([a-z_]+(?: \+ [a-z_]+)*)", PART)
    return {
        letter: sum((Fraction(str(getattr(defaults, name))) for name in names.split(" + ")), Fraction(0))
        for letter, names in found
    }


def evaluate(formula: str, of: dict[str, Fraction]) -> Fraction:
    total, rest = Fraction(0), formula.strip()
    while rest:
        term = TERM.match(rest)
        assert term, f"{formula!r}: {rest!r} is no term"
        whole, part, what, inner = term.groups()
        times = Fraction(whole or "0") + PARTS_OF_ONE[part] if whole or part else Fraction(1)
        total += times * (evaluate(inner, of) if inner else Fraction(1) if what == "s" else of[what])
        rest = rest[term.end() :].removeprefix(" + ").strip()
    return total


def wrong(text: str, of: dict[str, Fraction]) -> list[str]:
    return [
        f"{found.group().strip()}: with the defaults it is {float(value):g} s"
        for found in FORMULA.finditer(text)
        if (value := evaluate(found.group().rpartition("[")[0], of)) != int(found.group(1))
    ]


def test_every_bound_is_what_its_formula_says() -> None:
    assert len(FORMULA.findall(PART)) >= 17, "the table was not understood"
    assert wrong(PART, letters()) == []


@pytest.mark.parametrize(
    "text",
    [
        "C + B + P [8 s] after",
        "2 L + S [64 s]",
        "P + S [6 s]",
        "⅔ L + ⅙ L + 1 s [30 s]",
        "3 (S + 1 s) [16 s]",
    ],
)
def test_one_that_is_not_is_seen(text: str) -> None:
    assert len(wrong(text, letters())) == 1
