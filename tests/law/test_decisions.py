"""The decision records are numbered without a gap, look alike, and are what the index and the code say they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = ROOT / "docs" / "adr"
RECORDS = sorted(path for path in DIRECTORY.glob("*.md") if path.name != "README.md")
#: "Why it is safe" is only there where correctness is at stake.
HEADINGS = ["Problem", "Decision", "Why it is safe", "Rejected", "Cost"]


def title(record: Path) -> tuple[int, str]:
    match = re.fullmatch(r"# (\d+)\. (.+)", record.read_text(encoding="utf-8").splitlines()[0])
    assert match, f"{record.name} does not begin with its number and title"
    return int(match[1]), match[2]


def test_records_are_numbered_from_one_on() -> None:
    assert [title(record)[0] for record in RECORDS] == list(range(1, len(RECORDS) + 1))
    assert [int(record.name[:2]) for record in RECORDS] == list(range(1, len(RECORDS) + 1))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_has_the_headings_of_the_template(record: Path) -> None:
    text = record.read_text(encoding="utf-8")
    found = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert found in (HEADINGS, [heading for heading in HEADINGS if heading != "Why it is safe"])
    assert text.splitlines()[2].startswith("Status: in force. Date: ")


def test_the_index_has_each_record_with_one_line() -> None:
    index = (DIRECTORY / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| \[(.+?)\]\((.+?)\) \| .+\. \|$", index, re.MULTILINE)
    assert rows == [(str(title(record)[0]), title(record)[1], record.name) for record in RECORDS]


def test_records_that_are_named_elsewhere_exist() -> None:
    names = {record.name for record in RECORDS} | {"README.md"}
    suffixes = {".py", ".sql", ".md"}
    for directory in ("pgworkers", "tests", "docs", "scripts"):
        for path in (ROOT / directory).rglob("*"):
            if path.is_file() and path.suffix in suffixes:
                text = path.read_text(encoding="utf-8")
                numbers = [int(one) for one in re.findall(r"\bADR (\d+)", text)]
                assert [one for one in numbers if not 1 <= one <= len(RECORDS)] == [], path
                assert set(re.findall(r"\badr/([\w-]+\.md)", text)) <= names, path
                assert [one for one in re.findall(r"\badr/(\d+)\b", text) if int(one) > len(RECORDS)] == [], (
                    path
                )
