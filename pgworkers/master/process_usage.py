"""CPU and memory of processes, and which of them need no new measurement because they are idle.

Measuring a process costs as much as many of its own wake-ups, and an idle process has the same figures again. Two
measurements in a row of the same idle time are trusted for a while, because the first may still include the work before it.
`ProcessUsage` reads /proc. `RemeasurePolicy` decides what is due and has no I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pgworkers.linux import proc
from pgworkers.linux.proc import CLOCK_TICKS_PER_SECOND, resident_bytes

#: The most descendants of a worker that are counted in what people are shown: the master's loop does it.
MAX_SHOWN_PROCESSES = 1000


class ProcessUsage:
    """CPU and memory of processes with their descendants, for people. Measured once in a while."""

    def __init__(self) -> None:
        self._remeasure_policy = RemeasurePolicy()
        self._cpu_ticks_seen: dict[int, tuple[float, int]] = {}  # pid -> when, ticks
        self._last_samples: dict[int, tuple[float | None, int]] = {}

    def sample(self, idle_marks: Mapping[int, int | None], now: float) -> dict[int, tuple[float | None, int]]:
        """Percent of a core since the last measurement (None at the first) and resident bytes, of each with its descendants.

        A process that `RemeasurePolicy` does not name keeps its last figures.
        """
        due = set(self._remeasure_policy.due(idle_marks, now))
        found: dict[int, tuple[float | None, int]] = {}
        for pid in idle_marks:
            if pid not in due and pid in self._last_samples:
                found[pid] = self._last_samples[pid]
            elif (seen := self._measure(pid, now)) is not None:
                found[pid] = seen
        self._last_samples = found
        self._cpu_ticks_seen = {pid: seen for pid, seen in self._cpu_ticks_seen.items() if pid in found}
        return found

    def _measure(self, pid: int, now: float) -> tuple[float | None, int] | None:
        stats = [
            one
            for one in map(proc.read_stat, proc.process_with_descendants(pid, MAX_SHOWN_PROCESSES))
            if one is not None
        ]
        if not stats:
            return None
        ticks = sum(one.cpu_ticks for one in stats)
        before = self._cpu_ticks_seen.get(pid)
        cpu = None
        if before is not None and now > before[0]:
            cpu = round(max(0.0, 100.0 * (ticks - before[1]) / CLOCK_TICKS_PER_SECOND / (now - before[0])), 1)
        self._cpu_ticks_seen[pid] = now, ticks
        return cpu, sum(resident_bytes(one.pid) for one in stats)


#: Seconds after which an idle process is measured as well: one of its threads may have grown.
IDLE_REMEASURE_SECONDS = 30.0


class _UsageSample(NamedTuple):
    idle_mark: int | None
    is_same_mark: bool  # as at the measurement before
    measured_at: float


class RemeasurePolicy:
    def __init__(self) -> None:
        self._measurements: dict[int, _UsageSample] = {}

    def due(self, idle_marks: Mapping[int, int | None], now: float) -> list[int]:
        """Return the pids to measure now.

        Marks by pid: None while it works, and another number for each idle time.
        """
        before, self._measurements = self._measurements, {}
        due = []
        for pid, mark in idle_marks.items():
            last = before.get(pid)
            same = last is not None and mark is not None and last.idle_mark == mark
            if (
                last is not None
                and same
                and last.is_same_mark
                and now - last.measured_at < IDLE_REMEASURE_SECONDS
            ):
                self._measurements[pid] = last
            else:
                self._measurements[pid] = _UsageSample(mark, same, now)
                due.append(pid)
        return due
