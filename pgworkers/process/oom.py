"""Evidence that the kernel's out-of-memory killer was here.

A SIGKILL does not say who sent it. The kernel counts its own kills, per memory cgroup where that is
readable, else for the machine. A worker that died by a SIGKILL which nobody of us sent, while that counter
rose, was taken by the kernel.
"""

from __future__ import annotations

import os
from pathlib import Path


def _counters() -> list[str]:
    """Files with a line `oom_kill N`, the closest first."""
    found: list[str] = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found.append(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
            found.append("/sys/fs/cgroup/memory/memory.oom_control")
        elif not controllers:
            found.append(f"/sys/fs/cgroup{path}/memory.events")
            found.append(f"/sys/fs/cgroup/unified{path}/memory.events")
    found.append("/proc/vmstat")
    return found


def _count(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    except (OSError, ValueError):
        pass
    return None


class Witness:
    """Watches the closest readable counter. Keeps two readings, so that a reading taken between the kill
    and its
    discovery does not hide it."""

    def __init__(self) -> None:
        self._path = next((p for p in _counters() if os.path.exists(p) and _count(p) is not None), None)
        self._older = self._newer = self._read()

    def _read(self) -> int:
        return (_count(self._path) or 0) if self._path else 0

    def refresh(self) -> None:
        """Take the base line again; called about once a second."""
        self._older, self._newer = self._newer, self._read()

    def saw_kill(self) -> bool:
        """Has the kernel killed since the base line?"""
        return self._read() > self._older
