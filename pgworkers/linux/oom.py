"""Evidence that the kernel's out-of-memory killer was here.

A SIGKILL does not say who sent it. The kernel counts its own kills, per memory cgroup where that is readable, otherwise for
the machine. If a worker died by a SIGKILL that its supervisor did not send, and the counter rose, the kernel killed it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def counters_of(groups: Iterable[str]) -> list[str]:
    """Files with a line `oom_kill N` for lines of /proc/PID/cgroup, the closest first. Pure."""
    found: list[str] = []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        path = path.rstrip("/")
        if "memory" in controllers.split(","):
            found.append(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
            found.append("/sys/fs/cgroup/memory/memory.oom_control")
        elif not controllers:
            found.append(f"/sys/fs/cgroup{path}/memory.events")
            found.append(f"/sys/fs/cgroup/unified{path}/memory.events")
    return [*found, "/proc/vmstat"]


def _own_groups() -> list[str]:
    try:
        return Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []


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


class OomKillCounter:
    """The closest readable counter.

    Two readings are kept, so that one taken between a kill and its discovery hides nothing.
    """

    def __init__(self, counters: Iterable[str] | None = None) -> None:
        places = counters_of(_own_groups()) if counters is None else counters
        self._path = next((path for path in places if _count(path) is not None), None)
        self._older = self._newer = self._read()

    def _read(self) -> int:
        return (_count(self._path) or 0) if self._path else 0

    def refresh(self) -> None:
        """Take the base line again. The supervisor does it in every round, each one to two seconds."""
        self._older, self._newer = self._newer, self._read()

    def has_grown(self) -> bool:
        """True if the kernel has killed a process since the base line."""
        return self._read() > self._older
