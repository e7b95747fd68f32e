"""What a mutant is: edits of files, the checks that they must turn red, and the reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Edit:
    """In this file, each match of the pattern becomes this text."""

    file: str
    pattern: str
    text: str
    least: int = 1  # the fewest matches that count as found

    def apply(self, root: Path) -> str | None:
        """Change the file; or why it cannot be."""
        path = root / self.file
        if not path.exists():
            return f"{self.file} is gone"
        changed, times = re.subn(self.pattern, self.text, path.read_text(encoding="utf-8"), flags=re.DOTALL)
        if times < self.least:
            return f"{self.file}: {self.pattern!r} was found {times} times, not {self.least}"
        path.write_text(changed, encoding="utf-8")
        return None


@dataclass(frozen=True)
class Mutant:
    name: str
    breaks: str  # the rule, in one sentence
    edits: tuple[Edit, ...]
    checks: tuple[str, ...]  # pytest ids; every case of each must be red
    reason: str  # a pattern in the message of each of them: red for another reason is not caught
    note: str = ""  # what it stands for
