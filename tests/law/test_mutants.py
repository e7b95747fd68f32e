"""Every mutant still applies to the code as it is, and its checks exist."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from mutants.catalogue import MUTANTS
from mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_applies_and_is_checked(mutant: Mutant, tmp_path: Path) -> None:
    for edit in mutant.edits:
        target = tmp_path / edit.file
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(ROOT / edit.file, target)
        assert edit.apply(tmp_path) is None, "the code moved: mend the pattern in tests/mutants"
        assert target.read_text() != (ROOT / edit.file).read_text()
    assert not re.search(mutant.reason, ""), "any red would do"
    for check in mutant.checks:
        file, _, name = check.partition("::")
        text = (ROOT / file).read_text()
        assert not name or re.search(rf"def {name.partition('[')[0]}\(", text), f"{check} does not exist"


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
