"""scripts/lint-prose finds each of its phrases in each kind of file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: One sentence for each phrase, in the order of the script.
SENTENCES = (
    "Whoever holds it writes it.",
    "The lock is held by somebody.",
    "Two hosts beside the leader.",
    "It ends by the way.",
    "After so many seconds it ends.",
    "The host begins anew.",
    "The master is told of it.",
    "The worker has said why.",
    "The host hears of it.",
    "A wish to stop it.",
    "The supervisor buries the process.",
    "The host takes it back.",
    "The worker stands still.",
    "It waits until it comes to itself.",
    "It goes on as ever.",
    "The signal was sent in vain.",
    "It shall end.",
    "The second is dearer.",
    "It reckons the time.",
    "This mends it.",
    "Two sessions of ours.",
    "A drain is no failure.",
    "The user and his job.",
    "From its birth on.",
    "It lies on the shelf.",
    "A page for those who read.",
    "It notifies the host who sleeps.",
    "The time from when on it fails.",
    "The client hangs up.",
    "It sends its last words.",
    "The lock cannot be had.",
    "This is its patience.",
    "It knows no queues.",
    "Who forks holds nothing.",
)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "lint-prose"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done


def lint(*files: Path) -> list[str]:
    done = run(*files)
    found = done.stdout.splitlines()
    assert done.returncode == bool(found)
    return found


def test_each_phrase_is_found_in_markdown_sql_and_python(tmp_path: Path) -> None:
    page, statement, module = tmp_path / "page.md", tmp_path / "one.sql", tmp_path / "one.py"
    page.write_text("\n".join(SENTENCES))
    statement.write_text("\n".join(f"SELECT 1 -- {sentence}" for sentence in SENTENCES))
    module.write_text("\n".join(f"# {sentence}" for sentence in SENTENCES))
    for path in (page, statement, module):
        lines = [int(finding.split(":")[1]) for finding in lint(path)]
        assert sorted(lines) == list(range(1, len(SENTENCES) + 1)), path.name


def test_a_docstring_that_is_a_question_is_found(tmp_path: Path) -> None:
    module = tmp_path / "one.py"
    module.write_text(
        'def is_idle():\n    """Is it idle?"""\n\n\ndef is_busy():\n    """True if it is busy."""\n'
    )
    assert len(lint(module)) == 1


def test_code_and_quotations_are_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```\nnobody said so\n```\nThe account `nobody`.\nHe said it. <!-- prose: ok -->\n")
    assert lint(page) == []


def test_english_with_the_same_words_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    sentences = (
        "It tells two hosts apart.",
        "The index tells whether there are any.",
        "A timeout is no evidence of bad data.",
        "There is no host.",
        "It knows no more than this.",
    )
    page.write_text("\n".join(sentences))
    assert lint(page) == []


def test_names_in_tests_are_read_as_words(tmp_path: Path) -> None:
    module = tmp_path / "test_one.py"
    module.write_text("def test_nobody_waits(): ...\nclass ToldTwice: ...\ndef test_a_job_waits(): ...\n")
    assert [finding.split(":")[1] for finding in lint(module)] == ["1", "2"]
