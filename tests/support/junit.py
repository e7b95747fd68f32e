"""What pytest wrote with --junitxml, read: how each case went, for how long, and why not well."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree


@dataclass(frozen=True)
class Case:
    test: str  # tests/unit/test_x.py::test_y[z]
    outcome: Literal["ok", "FAILED", "skipped"]
    seconds: float
    why: str  # the message of the exception or of the skip, not the source around it

    @property
    def function(self) -> str:
        return self.test.partition("[")[0]

    def belongs_to(self, named: str) -> bool:
        """True if it is this test, one of its cases, or in this file or directory."""
        return self.test == named or self.test.startswith((f"{named}[", f"{named}::", f"{named}/"))


def read(report: Path) -> list[Case]:
    """Empty where pytest did not come to write it."""
    text = report.read_text(encoding="utf-8") if report.exists() else ""
    return [_case(found) for found in ElementTree.fromstring(text).iter("testcase")] if text else []


def _case(found: ElementTree.Element) -> Case:
    test = f"{found.get('classname', '').replace('.', '/')}.py::{found.get('name', '')}"
    seconds = float(found.get("time", "0"))
    for child in found:
        if child.tag in ("failure", "error"):
            return Case(test, "FAILED", seconds, child.get("message", ""))
    for child in found:
        if child.tag == "skipped":
            return Case(test, "skipped", seconds, child.get("message", ""))
    return Case(test, "ok", seconds, "")
