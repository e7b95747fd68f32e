"""Where in its queues a host looks for work; pure.

While some snapshot is held for long, nothing of what was done is vacuumed, and the head of the index of ready jobs
fills with the remains of jobs that are gone: a look from the head takes longer and longer. So the host remembers
where it last found work, by queue and priority, and begins there. Higher priorities, and priorities in which it never
found anything, are looked at as a whole every time. What lies before the remembered places is found by looks before them
(`before`), as often as they are cheap.

Looks that take the oldest first (ageing) have the same places, and steps of their own before them: an ordinary look does not
get to the lower priorities, which are what those are for.

A share of the time also keeps a probe for jobs behind limits that became slow from eating the time of the others. As long as
it brings jobs, that is half of the time.

How a host looks at what lies before the places where it last found work; pure.

There may be a retry, a job that committed late, one that was given back; and the remains of all jobs since a snapshot
was taken that is still held. As long as that is cheap, the look begins at the head, at every claim: such a look is
followed by others without one for `PAUSE_PER_SCAN_FACTOR` times as long as it took longer than they do, but never for
longer than `most`: how long a claim took is also how slow the network was, and a job must not wait for that in front of
idle workers.

When it is not cheap, the claims behind it must not wait for all of it: it is made in steps, from the place down to the head,
each over so many ids as are not slow to go through. Quick steps become longer, until one reaches the head. A round that
takes longer than `most` gets more of the time, `PAUSE_PER_LATE_SCAN_FACTOR` instead of
`PAUSE_PER_SCAN_FACTOR`; its steps stay short. (docs/adr/22)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from pgworkers.job.claim import HIGHEST_PRIORITY, LOWEST_PRIORITY, WHOLE_QUEUE, ScanRange
from pgworkers.job.model import ClaimedJob

MAX_PRIORITIES_REMEMBERED = 16  # priorities of a queue that are remembered
#: Seconds that a claim, and each of its jobs, may take longer than one at the places only: else it is slow.
SLOW_SCAN_SECONDS, SLOW_SCAN_SECONDS_PER_JOB = 0.01, 0.00003
#: Seconds that a job behind a limit may take more than that.
SLOW_SCAN_SECONDS_PER_LIMITED_JOB = 0.0003
#: A slow look behind limits that was in vain is not repeated for this long, or `PAUSE_PER_LATE_SCAN_FACTOR` times as long
#: as it took if that is longer. The first look of a host is slow where a snapshot is held; it makes marks, and the next one
#: is quick.
GATES_PAUSE_SECONDS = 1.0
#: At most one claim in so many takes the oldest jobs first.
CLAIMS_PER_OLDEST_FIRST = 10

_FIRST, _LAST = WHOLE_QUEUE[0].first_id, WHOLE_QUEUE[0].last_id


class ClaimPositions:
    def __init__(self, most: float) -> None:
        self._max_pause_seconds = most
        self._next_ids: dict[str, dict[int, int]] = {}  # queue -> priority -> the id to begin at
        self._head_scan = SteppedScan(most)
        self._oldest_first_scan = SteppedScan(most)
        self._baseline_seconds = (
            0.0  # seconds that a claim takes which looks at the places only, without its jobs
        )
        self._seconds_per_limited_job = (
            0.0  # seconds that a job behind a limit adds to such a claim: an average
        )
        self._limited_scan_at = 0.0

    def is_head_scan_due(self, now: float) -> bool:
        return self._head_scan.is_due(now)

    def is_oldest_first_due(self, now: float) -> bool:
        return self._oldest_first_scan.is_due(now)

    def is_limited_scan_due(self, now: float) -> bool:
        return now >= self._limited_scan_at

    def next_scan_at(self, *, whole: bool, gates: bool) -> float:
        """When a look may go where one did not go that was, or was not, a whole one and one behind limits."""
        return min(inf if whole else self._head_scan.next_at, inf if gates else self._limited_scan_at)

    def ranges(
        self, queues: Iterable[str], *, head: bool = False, aged: bool = False
    ) -> dict[str, Sequence[ScanRange]]:
        """Where to look in each queue that is known, and before its places if `head` or `aged`; everywhere in the others."""
        before = self._oldest_first_scan if aged else self._head_scan if head else None
        if before is not None and before.is_whole:
            return {}
        known = ((queue, self._next_ids[queue]) for queue in queues if queue in self._next_ids)
        return {
            queue: _ranges_from(levels, before.next_step(queue, levels) if before is not None else None)
            for queue, levels in known
        }

    def record_scan(
        self, claimed: Sequence[ClaimedJob], wants: Mapping[str, int], now: float, *, aged: bool = False
    ) -> bool:
        """A look before the places came back, that wanted so many of each queue. True: it was the end of a whole look."""
        return (self._oldest_first_scan if aged else self._head_scan).record_step(
            claimed, wants, self._next_ids, now
        )

    def record_jobs(self, claimed: Sequence[ClaimedJob]) -> None:
        """Jobs were found: the next look begins behind them, wherever they were. (Steps before a place do not move it.)"""
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
                del levels[next(iter(levels))]  # the one that was of no use for longest

    def record_duration(
        self,
        seconds: float,
        now: float,
        *,
        head: bool,
        gates: bool,
        jobs: int,
        limited: int = 0,
        aged: bool = False,
    ) -> None:
        """How long a claim took that has just come back with so many jobs, some of them from behind a limit."""
        seconds = max(0.0, seconds - SLOW_SCAN_SECONDS_PER_JOB * jobs)
        if head or aged:
            seconds = max(0.0, seconds - self._seconds_per_limited_job * limited)
            slow = seconds > SLOW_SCAN_SECONDS + 2 * self._baseline_seconds
            before = self._oldest_first_scan if aged else self._head_scan
            before.record_duration(max(0.0, seconds - self._baseline_seconds), now, self._next_ids, slow=slow)
            self._baseline_seconds = min(seconds, self._baseline_seconds)
            return
        if gates:
            longer = max(0.0, seconds - SLOW_SCAN_SECONDS_PER_LIMITED_JOB * limited)
            share = 1 if limited else PAUSE_PER_SCAN_FACTOR  # what brings jobs has half of the time
            pause = min(
                share * longer,
                max(GATES_PAUSE_SECONDS, PAUSE_PER_LATE_SCAN_FACTOR * longer),
                self._max_pause_seconds,
            )
            self._limited_scan_at = now + pause if longer > SLOW_SCAN_SECONDS else 0.0
        if limited:
            self._seconds_per_limited_job += (seconds / limited - self._seconds_per_limited_job) / 4
        self._baseline_seconds = max(0.0, seconds - self._seconds_per_limited_job * limited)


def _ranges_from(levels: dict[int, int], step: tuple[int, int] | None) -> list[ScanRange]:
    """The remembered places, each after its step, and everything between them, the highest priorities first."""
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
    def __init__(self, most: float) -> None:
        self._max_pause_seconds = most
        self._step_ids = inf  # ids before the place that one look goes through; inf: from the head
        self._rounds: dict[
            str, tuple[int, float]
        ] = {}  # queue -> before which id its next step is; since when
        self._is_round_late = False  # a round takes too long
        self.next_at = 0.0  # not before this time

    @property
    def is_whole(self) -> bool:
        """Is one look enough?"""
        return self._step_ids == inf

    def is_due(self, now: float) -> bool:
        return now >= self.next_at

    def next_step(self, queue: str, levels: Mapping[int, int]) -> tuple[int, int]:
        """The next step of a queue with these places: from this id on, before that one."""
        below = self._rounds[queue][0] if queue in self._rounds else max(levels.values())
        return (int(below - self._step_ids) if below > self._step_ids else _LOWEST_ID), below

    def record_step(
        self, claimed: Sequence[ClaimedJob], wants: Mapping[str, int], places: NextIds, now: float
    ) -> bool:
        """A look came back, that wanted so many of each queue. True: it was the end of a whole one."""
        got = Counter(job.queue for job in claimed)
        before = {
            job.queue for job in claimed if job.id < places.get(job.queue, {}).get(job.priority, _LOWEST_ID)
        }
        for queue, count in wants.items():
            if self.is_whole or queue not in places:
                self._rounds.pop(queue, None)
                continue
            first, below = self.next_step(queue, places[queue])
            _, since = self._rounds.get(queue, (0, now))
            if queue in before and got[queue] >= count:
                self._rounds[queue] = below, since  # there may be more of them
            elif first > _LOWEST_ID:
                self._rounds[queue] = first, since
            else:
                self._rounds.pop(queue, None)
        rounds = [self._rounds[queue] for queue in wants if queue in self._rounds]
        self._is_round_late = any(now - since > self._max_pause_seconds for _, since in rounds)
        return not rounds

    def record_duration(self, longer: float, now: float, places: NextIds, *, slow: bool) -> None:
        """A look took so many seconds longer than one without it; `slow`: others waited for that."""
        self.next_at = now + min(
            (PAUSE_PER_LATE_SCAN_FACTOR if self._is_round_late else PAUSE_PER_SCAN_FACTOR) * longer,
            self._max_pause_seconds,
        )
        if slow:
            self._step_ids = MIN_STEP_IDS if self.is_whole else max(MIN_STEP_IDS, self._step_ids / 2)
        elif not self.is_whole:
            self._step_ids *= 2
            if self._step_ids > max((max(levels.values()) for levels in places.values()), default=0):
                self._step_ids = inf
