"""The page that a long run leaves: of which commit, when, on what machine, and what came out."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path


def about(root: Path) -> str:
    """Asked before the run: it is of the tree as it was then."""
    commit = _git(root, "rev-parse", "--short", "HEAD") or "no commit"
    changed = " with changes that are in no commit" if _git(root, "status", "--porcelain") else ""
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    who = "root" if os.geteuid() == 0 else "no root"
    return (
        f"Commit {commit}{changed}, {at}, {os.cpu_count()} cores, Linux {platform.release()},"
        f" Python {platform.python_version()}, {who}, load {os.getloadavg()[0]:.1f} at the start."
    )


def cell(text: str) -> str:
    """A text that stays in its cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def write(path: Path, title: str, of: str, lines: Iterable[str]) -> None:
    path.write_text("\n".join([f"# {title}", "", of, "", *lines]) + "\n", encoding="utf-8")


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
