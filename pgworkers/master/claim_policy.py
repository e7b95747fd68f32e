"""When a host claims, for which queues, and of which queues it wants to be notified. Pure.

`ClaimPolicy` plans each claim and records its answer. `SleepPolicy` decides about notifications, `SlowQueues` about queues
whose claims take too long, and `ClaimPositions` (claim_positions.py) where in a queue to look.

Notifications make all commits on the server wait for one another, so only hosts that need them get them. A network card does
the same under load: interrupts while little arrives, polling while much does.

A queue is *asleep* while few notifications of it arrive: each new job wakes one sleeping host at once. When more than
`MAX_NOTIFICATIONS_PER_WINDOW` arrive, it is *awake*: no host is notified of it, and this host claims every
`AWAKE_CLAIM_SECONDS` while it has room. When it had room and found nothing for `AWAKE_QUIET_SECONDS`, the queue falls asleep
again. Hosts that share a queue share these claims: each claims less often and stays awake longer, by up to
`MAX_HOSTS_SHARING_CLAIMS` times, so that together they claim as often as one.

A queue is *full* when the host was notified of a job for which it had no room, and passed the notification on. It asks to be
notified again when a claim has found fewer jobs than there was room for. (docs/adr/21)

Falling asleep has a gap: a transaction that saw no sleeping host may commit its job just after this host has claimed. So
the host claims again a few times, at growing intervals (`RECHECK_DELAYS_SECONDS`); what commits even later is found by the
poll. If another host was asleep already, that transaction has notified it, and there are no more claims.

A queue that is asleep and gave fewer jobs than there was room for is *known to be empty*. Whatever becomes ready in it is
notified, so until then no claim is for it, however many workers become idle. This lasts no longer than the poll interval, or
until a claim may scan what the last one did not.

Queues whose claims take too long are handled queue by queue and in bounded steps. The usual cause is jobs of tasks that
this host does not know: a claim walks over all of them. So after a slow claim its queues are *crowded*: such jobs are
parked, one portion at a time, and a claim looks only at what lies before the end of the last portion and at the newest ids.
The queue is left alone when a portion had nothing to park, or reached the end of the queue. A portion that times out is
halved, and the next one is tried after a pause. Meanwhile the queue is claimed.

If that was not the cause, the queues of a claim that timed out are claimed one by one. A queue that times out alone rests
for a while, so that the others have nearly all of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf

from pgworkers.job.claim import HIGHEST_PRIORITY, PARK_PORTION_ROWS, WHOLE_QUEUE, QueueCapacity, ScanRange
from pgworkers.job.model import ClaimedJob
from pgworkers.master.claim_positions import CLAIMS_PER_OLDEST_FIRST, ClaimPositions, ScanKind
from pgworkers.master.finisher import BatchSize

NOTIFICATION_WINDOW_SECONDS = 0.1
MAX_NOTIFICATIONS_PER_WINDOW = 20  # notifications of a queue within a window
AWAKE_CLAIM_SECONDS = 0.005
AWAKE_QUIET_SECONDS = 0.1
RECHECK_DELAYS_SECONDS = (0.003, 0.015, 0.075)
MAX_HOSTS_SHARING_CLAIMS = 10
#: A job that the poll finds after this long was missed by the host that was notified of it: hosts react within milliseconds.
MISSED_NOTIFICATION_SECONDS = 0.1


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
        """How long to wait for a notification before the next claim. `host_count`: hosts that share the queues."""
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
            includes_limited=self.positions.is_limited_scan_due(now),
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
        return self.notified_jobs.keys() - (with_capacity - self.slow_queues.blocked(now))

    def _record_positions(self, request: ClaimRequest, jobs: Sequence[ClaimedJob], now: float) -> float:
        """Record where the jobs were and how long it took. Returns when a claim may scan more than this one."""
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


class SleepPolicy:
    """Of which queues a host wants to be notified, and when it claims by itself."""

    def __init__(self) -> None:
        self._notification_windows: dict[
            str, tuple[float, int]
        ] = {}  # queue -> begin of the window, notifications in it
        self._awake_last_useful: dict[str, float] = {}  # queue -> when it last had jobs while awake
        self._announced: frozenset[str] | None = None  # what the database knows; None: unknown
        self._recheck_times: list[float] = []
        self.host_count = 1  # that serve these queues, this one included
        self._full_queues: set[str] = set()
        self._empty_until: dict[str, float] = {}  # queue -> until when
        self._poll_due: set[str] = set()  # no longer known to be empty, and not notified
        self._polled_queues: set[str] = set()  # of these, queues of the last claim
        self._notified_since_claim: set[str] | None = (
            set()
        )  # queues notified since the last claim was sent; None: any may have jobs

    def record_notification(self, queue: str, now: float) -> None:
        """A notification of this queue arrived."""
        self._empty_until.pop(queue, None)
        self._poll_due.discard(queue)
        if self._notified_since_claim is not None:
            self._notified_since_claim.add(queue)
        begin, count = self._notification_windows.get(queue, (now, 0))
        begin, count = (begin, count + 1) if now - begin <= NOTIFICATION_WINDOW_SECONDS else (now, 1)
        self._notification_windows[queue] = (begin, count)
        if count > MAX_NOTIFICATIONS_PER_WINDOW:
            self._awake_last_useful[queue] = now

    def is_awake(self, queue: str) -> bool:
        """True if the host claims from this queue without notifications."""
        return queue in self._awake_last_useful

    def assume_any_ready(self) -> None:
        """Something changed: jobs of any queue may be ready."""
        self._empty_until.clear()
        self._poll_due.clear()
        self._notified_since_claim = None

    def forget_announcement(self) -> None:
        """The database may have forgotten what this host announced."""
        self._announced = None
        self.assume_any_ready()

    def announcement_due(self, queues: Iterable[str]) -> frozenset[str] | None:
        """The queues of which the host wants to be notified; None: the database knows that already."""
        wanted = frozenset(queues) - self._awake_last_useful.keys() - self._full_queues
        return None if wanted == self._announced else wanted

    def record_announcement(
        self, asleep: frozenset[str], now: float, unattended: frozenset[str] | None = None
    ) -> None:
        """The database knows. Queues that fell asleep are claimed from again.

        `unattended`: the queues for which no other host slept; None: all of them.
        """
        fallen = asleep - (self._announced or frozenset())
        if fallen:
            self.assume_any_ready()
        if fallen if unattended is None else fallen & unattended:
            self._recheck_times = [now + after for after in RECHECK_DELAYS_SECONDS]
        self._announced = asleep

    def record_full(self, queues: Set[str]) -> None:
        """The database knows that this host is not to be notified of these queues: it has no room."""
        self._full_queues |= queues
        if self._announced is not None:
            self._announced -= queues

    def is_known_empty(self, queue: str, now: float) -> bool:
        return self._empty_until.get(queue, now) > now

    def record_claim_sent(self) -> None:
        """A claim was sent. It may miss jobs that are notified from now on."""
        self._notified_since_claim = set()

    def was_polled(self, queue: str) -> bool:
        """True if the last claim was for this queue only because the poll was due, without a notification."""
        return queue in self._polled_queues

    def record_claim(
        self, room: Mapping[str, int], found: Mapping[str, int], now: float, again: float
    ) -> None:
        """A claim for `room` jobs of each queue came back with `found`.

        `again`: when to claim once more, even without a notification.
        """
        self._recheck_times = [look for look in self._recheck_times if look > now]
        self._polled_queues = room.keys() & (self._poll_due | self._empty_until.keys())
        self._poll_due -= room.keys()
        for queue, count in room.items():
            if found.get(queue, 0) >= count:
                self._empty_until.pop(queue, None)
                continue
            self._full_queues.discard(queue)
            if (
                self._notified_since_claim is not None
                and queue not in self._notified_since_claim
                and queue in (self._announced or ())
            ):
                self._empty_until[queue] = again
        idle = room.keys() - found.keys()
        for queue, used in list(self._awake_last_useful.items()):
            if queue not in idle:
                self._awake_last_useful[queue] = now
            elif now - used > AWAKE_QUIET_SECONDS * self._hosts_sharing():
                del self._awake_last_useful[queue]
                self._notification_windows.pop(queue, None)

    def seconds_until_claim(self, now: float, poll: float, room: bool) -> float:
        """How long the host may wait for a notification before it claims anyway. Consumes what is due."""
        pause = poll
        if self._recheck_times and self._recheck_times[0] <= now:
            del self._recheck_times[0]
            self.assume_any_ready()
            return 0.0
        if self._empty_until:
            again = min(self._empty_until.values())
            if again <= now:
                self._poll_due |= {queue for queue, until in self._empty_until.items() if until <= now}
                self._empty_until = {
                    queue: until for queue, until in self._empty_until.items() if until > now
                }
                return 0.0
            pause = min(pause, again - now)
        if self._recheck_times:
            pause = min(pause, self._recheck_times[0] - now)
        if self._awake_last_useful and room:
            pause = min(pause, AWAKE_CLAIM_SECONDS * self._hosts_sharing())
        return pause

    def _hosts_sharing(self) -> int:
        return min(self.host_count, MAX_HOSTS_SHARING_CLAIMS)


#: Seconds that a claim may take before its queues are crowded.
SLOW_CLAIM_SECONDS = 0.2
#: Seconds until a queue in which there was nothing to park is looked at again.
RECHECK_SLOW_QUEUE_SECONDS = 60.0
#: How many of the newest ids a claim of a crowded queue scans, and all later ones.
NEWEST_IDS_SCANNED = 10_000
#: A queue that timed out alone rests for this many times the duration of that claim.
REST_PER_TIMEOUT_FACTOR = 12

ParkedPlace = tuple[int, int]
_FIRST, _LAST = WHOLE_QUEUE[0].first_id, WHOLE_QUEUE[0].last_id


class SlowQueues:
    """Queues whose claims take too long, and what is done about each."""

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
        """A portion parked `jobs` jobs and reached this place; None: the end of the queue. False: the queue is done."""
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
        """A portion timed out. A smaller one is tried after a pause, so that claims have half of the time.

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

    def blocked(self, now: float) -> set[str]:
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
        closed = self.blocked(now)
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
                    [ScanRange(priority + 1, HIGHEST_PRIORITY, _FIRST, _LAST)]
                    if priority < HIGHEST_PRIORITY
                    else []
                )
                before = ScanRange(priority, priority, _FIRST, last)
                found[queue] = [
                    *above,
                    before,
                    ScanRange(
                        priority, priority, max(last, self._newest_ids[queue] - NEWEST_IDS_SCANNED) + 1, _LAST
                    ),
                ]
        return found
