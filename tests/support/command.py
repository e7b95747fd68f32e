"""The real command line as a subprocess: what a person would type, and everything that comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT = 60.0


@dataclass(frozen=True)
class Said:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def lines(self) -> list[str]:
        return self.out.splitlines()


class Command:
    """`pgworkers …` in a directory, with an environment that knows no database unless the test says so."""

    def __init__(self, cwd: Path, **variables: str) -> None:
        self.cwd = cwd
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PG", "DATABASE_URL"))
        }
        marks = {name: value for name, value in os.environ.items() if name.startswith("PGWORKERS_TEST")}
        self.environ = {**kept, **marks, "COLUMNS": "100", **variables}

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "pgworkers", *words]

    def __call__(self, *words: str, given: str | bytes = b"", code: int | None = 0, **variables: str) -> Said:
        """Run to the end; `code` is the exit code that is expected, None for any."""
        ended = subprocess.run(
            self.argv(*words),
            cwd=self.cwd,
            env={**self.environ, **variables},
            input=given.encode() if isinstance(given, str) else given,
            capture_output=True,
            timeout=LIMIT,
            check=False,
        )
        said = Said(ended.returncode, ended.stdout.decode(), ended.stderr.decode())
        assert code is None or said.code == code, f"{words} ended with {said.code}: {said.out}{said.err}"
        return said

    def fails(self, *words: str, code: int, given: str | bytes = b"", **variables: str) -> str:
        """Run to a failure and give its one line: exactly one, and no traceback."""
        said = self(*words, given=given, code=code, **variables)
        lines = [line for line in said.err.splitlines() if line.startswith("pgworkers: error: ")]
        assert len(lines) == 1, said.err
        assert "Traceback" not in said.err + said.out
        return lines[0].removeprefix("pgworkers: error: ")
