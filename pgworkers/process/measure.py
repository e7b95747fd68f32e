"""CPU and memory of processes, from /proc and getrusage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from time import process_time_ns

from pgworkers.process import tree
from pgworkers.process.descriptors import Descriptor, lift
from pgworkers.process.resting import Resting

_PAGE = os.sysconf("SC_PAGE_SIZE")
#: The most descendants of a worker that are counted in what people are shown: the master's loop does it.
SHOWN_FAMILY = 1000
RESET_EVERY = 10_000_000  #: nanoseconds
_TICKS = os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    """Bytes in memory, shared pages counted in full; 0: no such process."""
    try:
        return int(tree.read(f"/proc/{pid}/statm").split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def proportional(pid: int) -> int:
    """Bytes in memory, shared pages divided by those who share them; falls back to `resident`."""
    try:
        for line in tree.read(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resident(pid)


def over(pid: int, limit: int) -> int:
    """Bytes that a process and its descendants use if that is more than `limit`, else 0.

    The proportional size is the honest one but walks every page table, so the cheap upper bound is asked
    first.
    """
    members = tree.family(pid)
    if sum(map(resident, members)) <= limit:
        return 0
    used = sum(map(proportional, members))
    return used if used > limit else 0


def threads() -> list[int]:
    """Of this process, by the kernel's numbers, but the main one."""
    return [tid for tid in map(int, os.listdir("/proc/self/task")) if tid != os.getpid()]


def cpu_without(spared: list[int]) -> int:
    """Nanoseconds that this process has used, without what these threads of it used while they lived."""
    used = process_time_ns()
    for tid in spared:
        try:
            data = tree.read(f"/proc/self/task/{tid}/stat")
        except OSError:
            continue
        fields = data[data.rindex(b")") + 2 :].split()
        used -= (int(fields[11]) + int(fields[12])) * 1_000_000_000 // _TICKS
    return used


class Meter:
    """CPU time and largest resident size of this process from `begin` to the end of a job, waited-for children included.

    The end of a job is the beginning of the next one that follows at once. The kernel's high-water mark is set back when a
    job moved it, and every RESET_EVERY otherwise: of very short jobs in a row, one may be told the size that the process had
    a moment before it.

    Of the shortest nothing is asked (`guess`): to ask takes as long as they do. Their CPU time is the time they took, and
    their peak that of the job before. What they really used is divided by durations among them and the next job that is
    measured, which so is told its share, whatever the process did between them.

    Clocks are in nanoseconds, answers in microseconds.
    """

    def __init__(self) -> None:
        self._reset: Descriptor | None = None  # the peak is that of the whole life
        self._cpu = 0
        self._guessed = 0  # what jobs took that were not measured since
        self._last = 0  # what the kernel said last; kB
        self._peak = -1  # of this process, as it was when the mark was set back; kB
        self._children = 0
        self.grew = 0  # bytes by which the last job needed more than there was before it
        self._next_reset = 0

    def open(self) -> None:
        """By the process that is measured, unless there is one job in its life and nothing before it."""
        try:
            self._reset = Descriptor(lift(os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)))
        except OSError:
            pass  # not allowed

    def begin(self, now: int, fresh: bool) -> int:
        """Returns the CPU time used so far. `fresh`: time has passed since the last end."""
        if fresh or self._peak < 0 or now >= self._next_reset:
            self._set_back(now)
        return (self._cpu + self._guessed) // 1000

    def guess(self, took: int) -> tuple[int, int]:
        """CPU time and peak in bytes of a job that was too short for children, and to move the peak much."""
        self._guessed += took
        return took // 1000, self._last * 1024

    def end(self, took: int) -> tuple[int, int]:
        """CPU time since `begin`, and the peak in bytes."""
        own, waited = getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN)
        peak = self._last = own.ru_maxrss
        cpu = process_time_ns() + int((waited.ru_utime + waited.ru_stime) * 1e9)
        used, self._cpu = cpu - self._cpu, cpu
        if self._guessed:
            used = used * took // (took + self._guessed)
            self._guessed = 0
        self.grew = (peak - self._peak) * 1024
        if peak > self._peak:
            self._peak = -1
        if waited.ru_maxrss > self._children:  # the largest child ever waited for was one of this job
            self._children = waited.ru_maxrss
            peak = max(peak, waited.ru_maxrss)
        return used // 1000, peak * 1024

    def _set_back(self, now: int) -> None:
        if self._reset is not None:
            try:
                self._reset.check()
                os.write(self._reset.fd, b"5")  # resets the high-water mark
            except OSError:
                self._reset = None
        own, waited = getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN)
        self._cpu = process_time_ns() + int((waited.ru_utime + waited.ru_stime) * 1e9)
        self._guessed = 0
        self._peak = self._last = own.ru_maxrss
        self._children = waited.ru_maxrss
        self._next_reset = now + RESET_EVERY


class Usage:
    """CPU and memory of processes between two looks, with what they started: for people, once in a while."""

    def __init__(self) -> None:
        self._resting = Resting()
        self._seen: dict[int, tuple[float, int]] = {}  # pid -> when, ticks
        self._found: dict[int, tuple[float | None, int]] = {}

    def of(self, marks: Mapping[int, int | None], now: float) -> dict[int, tuple[float | None, int]]:
        """Percent of a core since the last look (None at the first) and resident bytes, of each with its descendants.

        Of those who rest by their marks (`Resting`), as it was at the last look.
        """
        due = set(self._resting.due(marks, now))
        found: dict[int, tuple[float | None, int]] = {}
        for pid in marks:
            if pid not in due and pid in self._found:
                found[pid] = self._found[pid]
            elif (seen := self._look(pid, now)) is not None:
                found[pid] = seen
        self._found = found
        self._seen = {pid: seen for pid, seen in self._seen.items() if pid in found}
        return found

    def _look(self, pid: int, now: float) -> tuple[float | None, int] | None:
        stats = [one for one in map(tree.stat, tree.family(pid, SHOWN_FAMILY)) if one is not None]
        if not stats:
            return None
        ticks = sum(one.ticks for one in stats)
        before = self._seen.get(pid)
        cpu = None
        if before is not None and now > before[0]:
            cpu = round(max(0.0, 100.0 * (ticks - before[1]) / _TICKS / (now - before[0])), 1)
        self._seen[pid] = now, ticks
        return cpu, sum(resident(one.pid) for one in stats)
