"""Where in its queues a host looks for jobs. Pure.

What it buys: while a transaction holds an old snapshot, vacuum removes nothing, and the head of the index of jobs fills
with dead entries of finished jobs. A scan from the head then takes longer and longer. So the host remembers where it last
found jobs, by queue and priority, and starts there. The plain version would be `ranges()` that always returns `{}`: a scan
from the head each time. It fails the benchmark with a held snapshot.

Higher priorities, and priorities in which the host never found anything, are scanned completely in every claim. Jobs before
the remembered positions (a retry, a late commit, a released job) are found by *head scans*. While these are cheap, every
claim is one. A head scan that takes longer than other claims is followed by a pause of `PAUSE_PER_SCAN_FACTOR` times the
difference, but never longer than the statement timeout: the duration also depends on the network, and a job must not wait
for that while workers are idle.

A head scan that is slow is made in steps, so that the claims behind it need not wait for all of it. The steps go from the
position down to the head, each over a number of ids that is quick to scan. Quick steps become longer until one reaches the
head. A round of steps that takes too long gets more of the time: its factor is `PAUSE_PER_LATE_SCAN_FACTOR`.

Scans that take the oldest jobs first have the same positions and their own steps: a head scan does not reach the low
priorities, which are what they are for. Scans behind concurrency limits get a share of the time as well, and half of it as
long as they find jobs. (docs/adr/22)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from math import inf

from pgworkers.job.claim import HIGHEST_PRIORITY, LOWEST_PRIORITY, WHOLE_QUEUE, ScanRange
from pgworkers.job.model import ClaimedJob

MAX_PRIORITIES_REMEMBERED = 16  # of each queue
#: A claim is slow if it takes longer than one from the positions on by more than this, and this for each of its jobs.
SLOW_SCAN_SECONDS, SLOW_SCAN_SECONDS_PER_JOB = 0.01, 0.00003
#: And this for each of its jobs behind a limit.
SLOW_SCAN_SECONDS_PER_LIMITED_JOB = 0.0003
#: A slow scan behind limits that found nothing is not repeated for this long, or for `PAUSE_PER_LATE_SCAN_FACTOR` times its
#: duration if that is longer. The first scan of a host is slow while a snapshot is held; it sets marks for the next.
MIN_LIMITED_SCAN_PAUSE_SECONDS = 1.0
#: At most one claim in this number takes the oldest jobs first.
CLAIMS_PER_OLDEST_FIRST = 10

_FIRST, _LAST = WHOLE_QUEUE[0].first_id, WHOLE_QUEUE[0].last_id


class ScanKind(Enum):
    """Which part of the queues a claim scans."""

    POSITIONS = auto()  #: from the remembered positions on
    HEAD = auto()  #: also before them
    OLDEST_FIRST = auto()  #: also before them, the oldest jobs first


class ClaimPositions:
    def __init__(self, max_pause_seconds: float) -> None:
        self._max_pause_seconds = max_pause_seconds
        self._next_ids: dict[str, dict[int, int]] = {}  # queue -> priority -> the id to begin at
        self._head_scan = SteppedScan(max_pause_seconds)
        self._oldest_first_scan = SteppedScan(max_pause_seconds)
        self._baseline_seconds = 0.0  # of a claim from the positions on, without its jobs
        self._seconds_per_limited_job = 0.0  # a moving average
        self._limited_scan_at = 0.0

    def is_head_scan_due(self, now: float) -> bool:
        return self._head_scan.is_due(now)

    def is_oldest_first_due(self, now: float) -> bool:
        return self._oldest_first_scan.is_due(now)

    def is_limited_scan_due(self, now: float) -> bool:
        return now >= self._limited_scan_at

    def next_scan_at(self, *, is_full_scan: bool, includes_limited: bool) -> float:
        """When a claim may scan what one like this did not: before the positions, or behind limits."""
        return min(
            inf if is_full_scan else self._head_scan.next_at,
            inf if includes_limited else self._limited_scan_at,
        )

    def ranges(self, queues: Iterable[str], scan: ScanKind) -> dict[str, Sequence[ScanRange]]:
        """Where to look in each queue with known positions. A queue that is missing is scanned everywhere."""
        before = self._scan_before(scan)
        if before is not None and before.is_whole:
            return {}
        known = ((queue, self._next_ids[queue]) for queue in queues if queue in self._next_ids)
        return {
            queue: _ranges_from(levels, before.next_step(queue, levels) if before is not None else None)
            for queue, levels in known
        }

    def record_scan(
        self, claimed: Sequence[ClaimedJob], capacity: Mapping[str, int], now: float, scan: ScanKind
    ) -> bool:
        """A scan before the positions came back. True: everything before them has been scanned now."""
        before = self._scan_before(scan)
        return before is not None and before.record_step(claimed, capacity, self._next_ids, now)

    def _scan_before(self, scan: ScanKind) -> SteppedScan | None:
        match scan:
            case ScanKind.POSITIONS:
                return None
            case ScanKind.HEAD:
                return self._head_scan
            case ScanKind.OLDEST_FIRST:
                return self._oldest_first_scan

    def record_jobs(self, claimed: Sequence[ClaimedJob]) -> None:
        """Jobs were found: the next claim starts behind them. (Steps before a position do not move it back.)"""
        last: dict[tuple[str, int], int] = {}
        for job in claimed:
            key = job.queue, job.priority
            last[key] = max(last.get(key, 0), job.id)
        for (queue, priority), job_id in last.items():
            levels = self._next_ids.setdefault(queue, {})
            stepping = not (self._head_scan.is_whole and self._oldest_first_scan.is_whole)
            if stepping and job_id < levels.get(priority, _FIRST):
                continue
            levels.pop(priority, None)
            levels[priority] = job_id + 1
            if len(levels) > MAX_PRIORITIES_REMEMBERED:
                del levels[next(iter(levels))]  # the one unused for longest

    def record_duration(
        self,
        seconds: float,
        now: float,
        scan: ScanKind,
        *,
        includes_limited: bool,
        jobs: int,
        limited: int = 0,
    ) -> None:
        """A claim took `seconds`. It found `jobs` jobs, of which `limited` are behind a concurrency limit."""
        seconds = max(0.0, seconds - SLOW_SCAN_SECONDS_PER_JOB * jobs)
        before = self._scan_before(scan)
        if before is not None:
            seconds = max(0.0, seconds - self._seconds_per_limited_job * limited)
            is_slow = seconds > SLOW_SCAN_SECONDS + 2 * self._baseline_seconds
            extra_seconds = max(0.0, seconds - self._baseline_seconds)
            before.record_duration(extra_seconds, now, self._next_ids, is_slow=is_slow)
            self._baseline_seconds = min(seconds, self._baseline_seconds)
            return
        if includes_limited:
            extra_seconds = max(0.0, seconds - SLOW_SCAN_SECONDS_PER_LIMITED_JOB * limited)
            factor = 1 if limited else PAUSE_PER_SCAN_FACTOR  # scans that find jobs get half of the time
            pause = min(
                factor * extra_seconds,
                max(MIN_LIMITED_SCAN_PAUSE_SECONDS, PAUSE_PER_LATE_SCAN_FACTOR * extra_seconds),
                self._max_pause_seconds,
            )
            self._limited_scan_at = now + pause if extra_seconds > SLOW_SCAN_SECONDS else 0.0
        if limited:
            self._seconds_per_limited_job += (seconds / limited - self._seconds_per_limited_job) / 4
        self._baseline_seconds = max(0.0, seconds - self._seconds_per_limited_job * limited)


def _ranges_from(levels: dict[int, int], step: tuple[int, int] | None) -> list[ScanRange]:
    """The remembered positions, each after its step, and everything between them, the highest priorities first."""
    found = []
    above = HIGHEST_PRIORITY
    for priority in sorted(levels, reverse=True):
        place = levels[priority]
        if priority < above:
            found.append(ScanRange(priority + 1, above, _FIRST, _LAST))
        if step is not None and step[0] < place:
            found.append(ScanRange(priority, priority, step[0], min(step[1], place) - 1))
        found.append(ScanRange(priority, priority, place, _LAST))
        above = priority - 1
    if above >= LOWEST_PRIORITY:
        found.append(ScanRange(LOWEST_PRIORITY, above, _FIRST, _LAST))
    return found


PAUSE_PER_SCAN_FACTOR = 20
PAUSE_PER_LATE_SCAN_FACTOR = 3
#: A step has no fewer ids than this.
MIN_STEP_IDS = 1 << 14

_LOWEST_ID = WHOLE_QUEUE[0].first_id

NextIds = Mapping[str, Mapping[int, int]]


class SteppedScan:
    """A scan of what lies before the remembered positions, in one claim or in steps."""

    def __init__(self, max_pause_seconds: float) -> None:
        self._max_pause_seconds = max_pause_seconds
        self._step_ids = inf  # ids before the place that one look goes through; inf: from the head
        self._rounds: dict[
            str, tuple[int, float]
        ] = {}  # queue -> before which id its next step is; since when
        self._is_round_late = False  # a round takes too long
        self.next_at = 0.0  # not before this time

    @property
    def is_whole(self) -> bool:
        """True if one claim scans everything before the positions."""
        return self._step_ids == inf

    def is_due(self, now: float) -> bool:
        return now >= self.next_at

    def next_step(self, queue: str, levels: Mapping[int, int]) -> tuple[int, int]:
        """The next step of a queue with these positions: from this id on, before that one."""
        below = self._rounds[queue][0] if queue in self._rounds else max(levels.values())
        return (int(below - self._step_ids) if below > self._step_ids else _LOWEST_ID), below

    def record_step(
        self, claimed: Sequence[ClaimedJob], capacity: Mapping[str, int], positions: NextIds, now: float
    ) -> bool:
        """A scan came back. True: everything before the positions has been scanned now."""
        got = Counter(job.queue for job in claimed)
        before = {
            job.queue
            for job in claimed
            if job.id < positions.get(job.queue, {}).get(job.priority, _LOWEST_ID)
        }
        for queue, count in capacity.items():
            if self.is_whole or queue not in positions:
                self._rounds.pop(queue, None)
                continue
            first, below = self.next_step(queue, positions[queue])
            _, since = self._rounds.get(queue, (0, now))
            if queue in before and got[queue] >= count:
                self._rounds[queue] = below, since  # there may be more of them
            elif first > _LOWEST_ID:
                self._rounds[queue] = first, since
            else:
                self._rounds.pop(queue, None)
        rounds = [self._rounds[queue] for queue in capacity if queue in self._rounds]
        self._is_round_late = any(now - since > self._max_pause_seconds for _, since in rounds)
        return not rounds

    def record_duration(self, extra_seconds: float, now: float, positions: NextIds, *, is_slow: bool) -> None:
        """A scan took `extra_seconds` longer than a claim without one. `is_slow`: other claims waited for that."""
        self.next_at = now + min(
            (PAUSE_PER_LATE_SCAN_FACTOR if self._is_round_late else PAUSE_PER_SCAN_FACTOR) * extra_seconds,
            self._max_pause_seconds,
        )
        if is_slow:
            self._step_ids = MIN_STEP_IDS if self.is_whole else max(MIN_STEP_IDS, self._step_ids / 2)
        elif not self.is_whole:
            self._step_ids *= 2
            if self._step_ids > max((max(levels.values()) for levels in positions.values()), default=0):
                self._step_ids = inf
