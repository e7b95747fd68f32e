"""Cgroups for a test: made by root, gone afterwards."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


class NoCgroup(Exception):
    """Why none can be made here."""


@contextmanager
def cgroup(controller: str) -> Iterator[Path]:
    """A directory of the controller's own hierarchy (v1), or of the one there is (v2)."""
    root = ROOT / controller if (ROOT / controller).is_dir() else ROOT
    made = root / f"pgworkers-test-{uuid.uuid4().hex[:12]}"
    try:
        made.mkdir()
    except OSError as error:
        raise NoCgroup(f"no {controller} cgroup can be made in {root}: {error}") from error
    try:
        if root == ROOT and controller == "freezer":
            raise NoCgroup("freezer.state is of cgroup v1")
        yield made
    finally:
        for _ in range(100):  # the last process may still be leaving
            try:
                made.rmdir()
                break
            except OSError:
                time.sleep(0.02)


@contextmanager
def memory_cgroup(limit: int) -> Iterator[Path]:
    with cgroup("memory") as made:
        name = "memory.limit_in_bytes" if made.parent != ROOT else "memory.max"
        try:
            (made / name).write_text(str(limit))
        except OSError as error:
            raise NoCgroup(f"{made} takes no memory limit: {error}") from error
        yield made
