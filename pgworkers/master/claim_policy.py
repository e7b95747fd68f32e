"""For which queues a host claims, and where in them it looks. Pure.

`ClaimPolicy` plans each claim and records its answer. It asks `SleepPolicy` (notifications.py) whether a claim is worth it,
`ClaimPositions` where a queue may have jobs, and `SlowQueues` what to do about queues whose claims take too long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum, auto
from math import inf

from pgworkers.job.claim import (
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    PARK_PORTION_ROWS,
    WHOLE_QUEUE,
    QueueCapacity,
    ScanRange,
)
from pgworkers.job.model import ClaimedJob
from pgworkers.master.batch_size import BatchSize
from pgworkers.master.notifications import SleepPolicy

#: A job that the poll finds after this long was missed by the host that was notified of it: hosts react within milliseconds.
MISSED_NOTIFICATION_SECONDS = 0.1
#: At most one claim in this number takes the oldest jobs first.
CLAIMS_PER_OLDEST_FIRST = 10

_FIRST_ID, _LAST_ID = WHOLE_QUEUE[0].first_id, WHOLE_QUEUE[0].last_id


class ScanKind(Enum):
    """Which part of the queues a claim scans."""

    POSITIONS = auto()  #: from the remembered positions on
    HEAD = auto()  #: also before them
    OLDEST_FIRST = auto()  #: also before them, the oldest jobs first


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """One claim: for which jobs, and where to look for them."""

    capacity: Mapping[str, int]  # queue -> jobs there is room for
    scan: ScanKind
    ranges: Mapping[str, Sequence[ScanRange]]  # where to look in a queue; one that is missing: everywhere
    oldest_first_seconds: float | None  # jobs that have been ready for this long come first
    includes_limited: bool  # jobs behind concurrency limits, too
    notified_jobs: Mapping[str, float]  # queue -> jobs that this host alone was notified of; inf: any number
    planned_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFollowUp:
    """What to do after a claim."""

    should_claim_again: bool
    missed_queues: frozenset[str]  # another host was notified of jobs in these, and did not claim them


class ClaimPolicy:
    def __init__(self, *, poll_seconds: float, oldest_first_seconds: float, statement_timeout: float) -> None:
        """`oldest_first_seconds`: now and then, jobs that have been ready for this long come first; 0: never."""
        self.sleep = SleepPolicy()
        self.slow_queues = SlowQueues(statement_timeout)
        self.positions = ClaimPositions(statement_timeout)
        self.notified_jobs: dict[
            str, float
        ] = {}  # queue -> jobs this host alone was notified of; inf: any number
        self._poll_seconds = poll_seconds
        self._oldest_first_seconds = oldest_first_seconds
        self._claims_since_oldest_first = CLAIMS_PER_OLDEST_FIRST - 1
        self._has_spare_capacity = False  # the last claim found fewer jobs than there was room for

    def on_notification(self, queue: str, now: float) -> bool:
        """Note that there may be jobs in this queue. True: claim now.

        False if the host claims from the queue every few milliseconds anyway, because it is awake and there is room.
        """
        claims_anyway = self._has_spare_capacity and self.sleep.is_awake(queue)
        self.sleep.record_notification(queue, now)
        return not claims_anyway

    def add_notified_jobs(self, queue: str, *, is_one_job: bool) -> None:
        """Note that no other host was notified of these jobs."""
        self.notified_jobs[queue] = self.notified_jobs.get(queue, 0) + (1 if is_one_job else inf)

    def seconds_until_claim(self, now: float, *, host_count: int) -> float:
        """How long to wait for a notification before the next claim.

        `host_count`: hosts that share the queues.
        """
        self.sleep.host_count = host_count
        return self.sleep.seconds_until_claim(now, self._poll_seconds, self._has_spare_capacity)

    def plan(self, capacities: Sequence[QueueCapacity], now: float) -> ClaimRequest | None:
        """Plan the next claim. None: no queue that may have jobs has room.

        Must not be called while jobs may not start: it would forget which queues are to be claimed one by one.
        """
        wanted = [one for one in capacities if not self.sleep.is_known_empty(one.queue, now)]
        wanted = self.slow_queues.claimable(wanted, now)
        if not wanted:
            return None
        scan = ScanKind.POSITIONS
        if self._is_oldest_first_due(now):
            scan = ScanKind.OLDEST_FIRST
        elif self.positions.is_head_scan_due(now):
            scan = ScanKind.HEAD
        capacity = {one.queue: one.count for one in wanted}
        self.sleep.record_claim_sent()
        return ClaimRequest(
            capacity=capacity,
            scan=scan,
            ranges=self.positions.ranges(capacity, scan) | self.slow_queues.ranges(capacity),
            oldest_first_seconds=self._oldest_first_seconds if scan is ScanKind.OLDEST_FIRST else None,
            includes_limited=scan is ScanKind.OLDEST_FIRST or self.positions.is_limited_scan_due(now),
            notified_jobs={
                queue: self.notified_jobs.pop(queue) for queue in capacity if queue in self.notified_jobs
            },
            planned_at=now,
        )

    def record_no_claim(self) -> None:
        """There was nothing to plan."""
        self._has_spare_capacity = False

    def record(
        self, request: ClaimRequest, jobs: Sequence[ClaimedJob], now: float, *, queues: Iterable[str]
    ) -> ClaimFollowUp:
        """A claim came back with these jobs. `queues`: those that the host serves."""
        duration = now - request.planned_at
        if duration > SLOW_CLAIM_SECONDS:
            self.slow_queues.record_slow_claim(request.capacity, now)
        found = Counter(job.queue for job in jobs)
        claim_again_at = min(now + self._poll_seconds, self._record_positions(request, jobs, now))
        self.sleep.record_claim(request.capacity, found, now, claim_again_at)
        self._has_spare_capacity = len(jobs) < sum(request.capacity.values())
        is_oldest_first = request.scan is ScanKind.OLDEST_FIRST
        self._claims_since_oldest_first = 0 if is_oldest_first else self._claims_since_oldest_first + 1
        for queue, notified in request.notified_jobs.items():
            if (
                request.capacity[queue] <= found[queue] < notified
            ):  # there may be more than there was room for
                self.notified_jobs[queue] = self.notified_jobs.get(queue, 0) + notified - found[queue]
        # Claim again if a queue was filled, since there may be more; and before this host is known to be asleep.
        was_filled = any(found[queue] >= count for queue, count in request.capacity.items())
        return ClaimFollowUp(
            should_claim_again=was_filled or self.sleep.announcement_due(queues) is not None,
            missed_queues=frozenset(
                job.queue
                for job in jobs
                if job.ready_seconds > MISSED_NOTIFICATION_SECONDS and self.sleep.was_polled(job.queue)
            ),
        )

    def full_queues(self, with_capacity: Set[str], now: float) -> set[str]:
        """Queues whose notified jobs this host cannot claim now."""
        return self.notified_jobs.keys() - (with_capacity - self.slow_queues.take_blocked(now))

    def _record_positions(self, request: ClaimRequest, jobs: Sequence[ClaimedJob], now: float) -> float:
        """Record where the jobs were and how long it took.

        Returns when a claim may scan more than this one.
        """
        is_round_over = self.positions.record_scan(jobs, request.capacity, now, request.scan)
        self.positions.record_jobs(jobs)
        self.positions.record_duration(
            now - request.planned_at,
            now,
            request.scan,
            includes_limited=request.includes_limited,
            jobs=len(jobs),
            limited=sum(job.is_limited for job in jobs),
        )
        return self.positions.next_scan_at(
            # Oldest first is not a full scan: it leaves out jobs whose task has become limited.
            is_full_scan=is_round_over and request.scan is ScanKind.HEAD,
            includes_limited=request.includes_limited,
        )

    def _is_oldest_first_due(self, now: float) -> bool:
        """True if the oldest jobs should come first now and then, so that low priorities do not starve."""
        return (
            self._oldest_first_seconds > 0
            and self._claims_since_oldest_first >= CLAIMS_PER_OLDEST_FIRST - 1
            and self.positions.is_oldest_first_due(now)
        )


MAX_PRIORITIES_REMEMBERED = 16  # of each queue
#: A claim is slow if it takes longer than one from the positions on by more than this, and this for each of its jobs.
SLOW_SCAN_SECONDS, SLOW_SCAN_SECONDS_PER_JOB = 0.01, 0.00003
#: And this for each of its jobs behind a limit.
SLOW_SCAN_SECONDS_PER_LIMITED_JOB = 0.0003
#: A slow scan behind limits that found nothing is not repeated for this long, or for `PAUSE_PER_LATE_SCAN_FACTOR` times its
#: duration if that is longer. The first scan of a host is slow while a snapshot is held; it sets marks for the next.
MIN_LIMITED_SCAN_PAUSE_SECONDS = 1.0
PAUSE_PER_SCAN_FACTOR = 20
PAUSE_PER_LATE_SCAN_FACTOR = 3
#: A step has no fewer ids than this.
MIN_STEP_IDS = 1 << 14


class ClaimPositions:
    """Where in each queue the host last found jobs: the next claim begins there.

    What it buys: while a transaction holds an old snapshot, vacuum removes nothing, and the head of the index of jobs fills
    with dead entries of finished jobs. A scan from the head then takes longer and longer. So the host remembers where it
    last found jobs, by queue and priority, and starts there. The plain version would be `ranges()` that always returns `{}`:
    a scan from the head each time. It fails the benchmark with a held snapshot.

    Higher priorities, and priorities in which the host never found anything, are scanned completely in every claim. Jobs
    before the remembered positions (a retry, a late commit, a released job) are found by *head scans*. While these are
    cheap, every claim is one. A head scan that takes longer than other claims is followed by a pause of
    `PAUSE_PER_SCAN_FACTOR` times the difference, but never longer than the statement timeout: the duration also depends on
    the network, and a job must not wait for that while workers are idle.

    Scans that take the oldest jobs first have the same positions and their own steps: a head scan does not reach the low
    priorities, which are what they are for. Scans behind concurrency limits get a share of the time as well, and half of it
    as long as they find jobs. (docs/adr/22)
    """

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
        """Where to look in each queue with known positions.

        A queue that is missing is scanned everywhere.
        """
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
            if stepping and job_id < levels.get(priority, _FIRST_ID):
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
        """A claim took `seconds`.

        It found `jobs` jobs, of which `limited` are behind a concurrency limit.
        """
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
            found.append(ScanRange(priority + 1, above, _FIRST_ID, _LAST_ID))
        if step is not None and step[0] < place:
            found.append(ScanRange(priority, priority, step[0], min(step[1], place) - 1))
        found.append(ScanRange(priority, priority, place, _LAST_ID))
        above = priority - 1
    if above >= LOWEST_PRIORITY:
        found.append(ScanRange(LOWEST_PRIORITY, above, _FIRST_ID, _LAST_ID))
    return found


NextIds = Mapping[str, Mapping[int, int]]


class SteppedScan:
    """A scan of what lies before the remembered positions, in one claim or in steps.

    A scan that is slow is made in steps, so that the claims behind it need not wait for all of it. The steps go from the
    position down to the head, each over a number of ids that is quick to scan. Quick steps become longer until one reaches
    the head. A round of steps that takes too long gets more of the time: its factor is `PAUSE_PER_LATE_SCAN_FACTOR`.
    """

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
        return (int(below - self._step_ids) if below > self._step_ids else _FIRST_ID), below

    def record_step(
        self, claimed: Sequence[ClaimedJob], capacity: Mapping[str, int], positions: NextIds, now: float
    ) -> bool:
        """A scan came back. True: everything before the positions has been scanned now."""
        got = Counter(job.queue for job in claimed)
        before = {
            job.queue for job in claimed if job.id < positions.get(job.queue, {}).get(job.priority, _FIRST_ID)
        }
        for queue, count in capacity.items():
            if self.is_whole or queue not in positions:
                self._rounds.pop(queue, None)
                continue
            first, below = self.next_step(queue, positions[queue])
            _, since = self._rounds.get(queue, (0, now))
            if queue in before and got[queue] >= count:
                self._rounds[queue] = below, since  # there may be more of them
            elif first > _FIRST_ID:
                self._rounds[queue] = first, since
            else:
                self._rounds.pop(queue, None)
        rounds = [self._rounds[queue] for queue in capacity if queue in self._rounds]
        self._is_round_late = any(now - since > self._max_pause_seconds for _, since in rounds)
        return not rounds

    def record_duration(self, extra_seconds: float, now: float, positions: NextIds, *, is_slow: bool) -> None:
        """A scan took `extra_seconds` longer than a claim without one.

        `is_slow`: other claims waited for that.
        """
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


#: Seconds that a claim may take before its queues are crowded.
SLOW_CLAIM_SECONDS = 0.2
#: Seconds until a queue in which there was nothing to park is looked at again.
RECHECK_SLOW_QUEUE_SECONDS = 60.0
#: How many of the newest ids a claim of a crowded queue scans, and all later ones.
NEWEST_IDS_SCANNED = 10_000
#: A queue that timed out alone rests for this many times the duration of that claim.
REST_PER_TIMEOUT_FACTOR = 12

ParkedPlace = tuple[int, int]


class SlowQueues:
    """Queues whose claims take too long, and what is done about each.

    The usual cause is jobs of tasks that this host does not know: a claim walks over all of them. So after a slow claim its
    queues are *crowded*: such jobs are parked, one portion at a time, and a claim looks only at what lies before the end of
    the last portion and at the newest ids. The queue is left alone when a portion had nothing to park, or reached the end of
    the queue. A portion that times out is halved, and the next one is tried after a pause. Meanwhile the queue is claimed.

    If that was not the cause, the queues of a claim that timed out are claimed one by one. A queue that times out alone
    rests for a while, so that the others have nearly all of the time.
    """

    def __init__(self, limit: float) -> None:
        """`limit`: seconds that a statement may take."""
        self._limit = limit
        self._parked_up_to: dict[str, ParkedPlace | None] = {}  # crowded queue -> the end of its last portion
        self._newest_ids: dict[
            str, int
        ] = {}  # crowded queue -> the newest id when its first portion was parked
        self._sizes: dict[str, BatchSize] = {}  # crowded queue -> how many jobs its next portion looks at
        self._due: dict[
            str, float
        ] = {}  # crowded queue -> when its next portion is due, after one that timed out
        self._open: set[str] = set()  # crowded queues that are claimed although their first portion timed out
        self._nothing_parked_at: dict[str, float] = {}  # queue -> when there was nothing to park
        self._claimed_alone: list[str] = []  # queues that are claimed one by one
        self._resting_until: dict[str, float] = {}  # queue -> until when

    def has_claim_due(self, now: float) -> bool:
        """True if the next claim is due, even without a notification."""
        return bool(self._claimed_alone) or self.is_parking(now)

    def is_parking(self, now: float) -> bool:
        """True if a portion is due."""
        return self.next_to_park(now) is not None

    def record_slow_claim(self, queues: Iterable[str], now: float) -> bool:
        """A claim of these queues took too long. True: some of them are crowded now."""
        fresh = [
            queue
            for queue in queues
            if now - self._nothing_parked_at.get(queue, -RECHECK_SLOW_QUEUE_SECONDS)
            >= RECHECK_SLOW_QUEUE_SECONDS
        ]
        for queue in fresh:
            self._parked_up_to.setdefault(queue, None)
        return bool(fresh)

    def next_to_park(self, now: float) -> str | None:
        """The queue whose next portion is due."""
        return next((queue for queue in self._parked_up_to if self._due.get(queue, now) <= now), None)

    def portion(self, queue: str) -> int:
        """How many jobs of a queue its next portion looks at."""
        return self._sizes.setdefault(queue, BatchSize(PARK_PORTION_ROWS, self._limit)).current

    def record_parked(
        self, queue: str, jobs: int, place: ParkedPlace | None, newest: int, now: float, took: float = 0.0
    ) -> bool:
        """A portion parked `jobs` jobs and reached this place; None: the end of the queue.

        False: the queue is done.
        """
        self._parked_up_to.pop(queue, None)
        self._due.pop(queue, None)
        self._open.discard(queue)
        newest = self._newest_ids.pop(queue, newest)
        if not jobs or place is None:
            self._sizes.pop(queue, None)
            self._nothing_parked_at[queue] = now
            return False
        size = self._sizes.get(queue)
        if size is not None:
            size.record_written(size.current, took)
        self._newest_ids[queue] = newest
        self._parked_up_to[queue] = place  # behind the others
        return True

    def not_parked(self, queue: str, took: float, now: float) -> None:
        """A portion timed out.

        A smaller one is tried after a pause, so that claims have half of the time.

        The queue is claimed meanwhile: that it is slow to write says little about how slow it is to claim. If one job is too
        many, it is left alone as a queue with nothing to park.
        """
        portion = self.portion(queue)
        if portion <= 1:
            self.record_parked(queue, 0, None, 0, now)
            return
        self._sizes[queue].record_failed(portion, slow=True)
        self._parked_up_to[queue] = self._parked_up_to.pop(queue, None)  # behind the others
        self._due[queue] = now + took
        self._open.add(queue)

    def close(self, queues: Iterable[str]) -> None:
        """A claim of these queues timed out: none is tried again before a portion was parked, where one is left to park."""
        self._open.difference_update(queues)

    def record_timeout(self, queues: Sequence[str], took: float, now: float) -> None:
        """A claim of these queues timed out, and there was nothing to park."""
        if len(queues) == 1:
            self._resting_until[queues[0]] = now + REST_PER_TIMEOUT_FACTOR * took
        else:
            self._claimed_alone = list(queues)

    def take_blocked(self, now: float) -> set[str]:
        """Queues that no claim may ask for now: those before their first portion, and those that rest.

        A queue whose rest is over is claimed alone first, so that a timeout names it and no other queue is set apart.
        """
        for queue in [queue for queue, until in self._resting_until.items() if until <= now]:
            del self._resting_until[queue]
            self._claimed_alone.append(queue)
        unparked = {queue for queue, place in self._parked_up_to.items() if place is None}
        return (unparked - self._open) | self._resting_until.keys()

    def claimable(self, wants: list[QueueCapacity], now: float) -> list[QueueCapacity]:
        """What the next claim may ask for."""
        closed = self.take_blocked(now)
        wants = [want for want in wants if want.queue not in closed]
        while self._claimed_alone:
            queue = self._claimed_alone.pop(0)
            if one := [want for want in wants if want.queue == queue]:
                return one
        return wants

    def ranges(self, queues: Iterable[str]) -> dict[str, Sequence[ScanRange]]:
        """Where to look in the queues that are crowded: up to the end of the last portion, and the newest jobs."""
        found: dict[str, Sequence[ScanRange]] = {}
        for queue in queues:
            if (place := self._parked_up_to.get(queue)) is not None:
                priority, last = place
                above = (
                    [ScanRange(priority + 1, HIGHEST_PRIORITY, _FIRST_ID, _LAST_ID)]
                    if priority < HIGHEST_PRIORITY
                    else []
                )
                before = ScanRange(priority, priority, _FIRST_ID, last)
                found[queue] = [
                    *above,
                    before,
                    ScanRange(
                        priority,
                        priority,
                        max(last, self._newest_ids[queue] - NEWEST_IDS_SCANNED) + 1,
                        _LAST_ID,
                    ),
                ]
        return found
