"""scripts/lint-prose finds each of its phrases in each kind of file, and its baseline can only shrink."""

from __future__ import annotations

import shutil
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
    "Who forks holds nothing.",
)


def run(*arguments: str | Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, str(root / "scripts" / "lint-prose"), *map(str, arguments)],
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
    )
    page.write_text("\n".join(sentences))
    assert lint(page) == []


def copied_project(root: Path, text: str) -> Path:
    """The script in a project of its own that has one page."""
    (root / "scripts").mkdir(parents=True)
    (root / "tests").mkdir()
    shutil.copy(ROOT / "scripts" / "lint-prose", root / "scripts")
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "tests/README.md"):
        (root / name).write_text("")
    (root / "README.md").write_text(text)
    return root


def test_the_baseline_allows_what_is_there_and_not_one_more(tmp_path: Path) -> None:
    root = copied_project(tmp_path / "project", "Nobody.\nSomebody.\n")
    assert run(root=root).returncode == 1, "without a baseline nothing is allowed"
    assert run("--shrink", root=root).returncode == 0
    assert run(root=root).returncode == 0
    (root / "README.md").write_text("Nobody.\nSomebody.\nAnybody.\n")
    assert "README.md: 3 findings, allowed are 2" in run(root=root).stdout
    assert run("--shrink", root=root).returncode == 1, "the baseline never grows"
    assert run(root=root).returncode == 1


def test_the_baseline_shrinks(tmp_path: Path) -> None:
    root = copied_project(tmp_path / "project", "Nobody.\nSomebody.\n")
    run("--shrink", root=root)
    (root / "README.md").write_text("Nobody.\n")
    assert "run scripts/lint-prose --shrink" in run(root=root).stdout
    assert run("--shrink", root=root).returncode == 0
    (root / "README.md").write_text("Nobody.\nSomebody.\n")
    assert run(root=root).returncode == 1
