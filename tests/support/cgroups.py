"""A memory cgroup for a test: made by root, with a limit, gone afterwards."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FIRST = Path("/sys/fs/cgroup/memory")  # cgroup v1
SECOND = Path("/sys/fs/cgroup")  # cgroup v2


class NoCgroup(Exception):
    """Why none can be made here."""


@contextmanager
def memory_cgroup(limit: int) -> Iterator[Path]:
    root, name = (FIRST, "memory.limit_in_bytes") if FIRST.is_dir() else (SECOND, "memory.max")
    made = root / f"pgworkers-test-{uuid.uuid4().hex[:12]}"
    try:
        made.mkdir()
    except OSError as error:
        raise NoCgroup(f"no memory cgroup can be made in {root}: {error}") from error
    try:
        try:
            (made / name).write_text(str(limit))
        except OSError as error:
            raise NoCgroup(f"{made} takes no memory limit: {error}") from error
        yield made
    finally:
        for _ in range(100):  # the last process may still be leaving
            try:
                made.rmdir()
                break
            except OSError:
                time.sleep(0.02)
