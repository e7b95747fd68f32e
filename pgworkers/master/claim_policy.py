"""When a host wants to be told of new jobs, and when it looks by itself; pure.

Notifications make all commits on the server wait for one another, so they are for hosts that sleep. It is what a
network card does under load: interrupts while little comes in, polling while much does.

A queue is *asleep* as long as few notifications of it arrive: each new job wakes one of the sleeping hosts at once. When
they come faster than `MAX_NOTIFICATIONS_PER_WINDOW`, it is *awake*: no host is notified of it, and the host looks every
`AWAKE_CLAIM_SECONDS` while it has room. When it had room and found nothing for `AWAKE_QUIET_SECONDS`, it falls asleep
again. Hosts that share a queue share the looks: each looks less often and stays awake for longer, up to
`MAX_HOSTS_SHARING_CLAIMS` times, so that together they look as often as one.

A queue is *full* when the host was notified of a job for which it had no room, and passed the notification on. It asks to
be notified again when a claim has found less than there was room for. (docs/adr/21)

Falling asleep has a gap: a transaction that saw no sleeping host may commit its job just after this host has looked. So
the host looks again, a few times, at growing distances (`RECHECK_DELAYS_SECONDS`); what commits later still is found by
the poll. If another host slept already, that transaction has notified it, and there are no more looks.

A queue that sleeps and gave less than there was room for is *dry*: whatever becomes ready in it is notified, so until then
nobody looks, however many workers get free. It is dry for no longer than the poll, or until a look can go where the last
one did not. (docs/adr/21)

Queues whose claims take too long: what is done about it, queue by queue and in bounded steps; pure.

The usual cause are jobs of tasks that this host does not know: a claim walks over all of them. So a queue whose claim was
slow is *crowded*: such jobs are parked, one portion at a time, and a claim looks only at what lies before the end of the
last portion, and at the newest jobs. The queue is left alone when a portion had nothing to park, or came to the end of it.
A portion that times out is halved, and the next one is tried after a pause. Meanwhile the queue is claimed.

When that was not the cause, the queues of a claim that timed out are claimed one by one. A queue that times out alone rests
for a while, so that the others have nearly all of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from pgworkers.job.claim import HIGHEST_PRIORITY, PARK_PORTION_ROWS, WHOLE_QUEUE, QueueCapacity, ScanRange
from pgworkers.master.finisher import BatchSize

NOTIFICATION_WINDOW_SECONDS = 0.1
MAX_NOTIFICATIONS_PER_WINDOW = 20  # notifications of a queue within a window
AWAKE_CLAIM_SECONDS = 0.005
AWAKE_QUIET_SECONDS = 0.1
RECHECK_DELAYS_SECONDS = (0.003, 0.015, 0.075)
MAX_HOSTS_SHARING_CLAIMS = 10


class SleepPolicy:
    def __init__(self) -> None:
        self._notification_windows: dict[
            str, tuple[float, int]
        ] = {}  # queue -> begin of the window, notifications in it
        self._awake_last_useful: dict[str, float] = {}  # queue -> when it was last of use to be awake
        self._announced: frozenset[str] | None = None  # what the database knows; None: nobody knows
        self._recheck_times: list[float] = []
        self.host_count = 1  # that serve these queues, this one included
        self._full_queues: set[str] = set()
        self._empty_until: dict[str, float] = {}  # queue -> until when
        self._poll_due: set[str] = set()  # were dry until now, and were not heard of
        self._polled_queues: set[str] = set()  # of these, what the last claim looked at
        self._notified_since_claim: set[str] | None = (
            set()
        )  # queues heard of since the last claim was sent; None: any may have jobs

    def record_notification(self, queue: str, now: float) -> None:
        """A notification of this queue came."""
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
        """True if the host looks at this queue by itself, without notifications."""
        return queue in self._awake_last_useful

    def assume_any_ready(self) -> None:
        """Something changed that may let jobs of any queue begin."""
        self._empty_until.clear()
        self._poll_due.clear()
        self._notified_since_claim = None

    def forget_announcement(self) -> None:
        """The database may know nothing of this host any more."""
        self._announced = None
        self.assume_any_ready()

    def announcement_due(self, queues: Iterable[str]) -> frozenset[str] | None:
        """Of which of its queues the host wants to be notified, when the database does not know that yet."""
        wanted = frozenset(queues) - self._awake_last_useful.keys() - self._full_queues
        return None if wanted == self._announced else wanted

    def record_announcement(
        self, asleep: frozenset[str], now: float, unattended: frozenset[str] | None = None
    ) -> None:
        """The database knows. Whatever fell asleep is looked at again.

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
        """A claim is on its way: what is heard from now on it may have missed."""
        self._notified_since_claim = set()

    def was_polled(self, queue: str) -> bool:
        """True if the last claim looked at this queue only because the poll was due: no notification had come."""
        return queue in self._polled_queues

    def record_claim(
        self, room: Mapping[str, int], found: Mapping[str, int], now: float, again: float
    ) -> None:
        """A claim came back: these queues had room for so many, and in these it found some.

        `again`: when to look once more, whatever is heard until then.
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
        """How long the host may wait for a notification before it looks by itself."""
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
#: So many of the newest ids are looked at in a crowded queue, and all that come later.
NEWEST_IDS_SCANNED = 10_000
#: A queue that timed out alone rests for so many times as long as that took.
REST_PER_TIMEOUT_FACTOR = 12

ParkedPlace = tuple[int, int]
_FIRST, _LAST = WHOLE_QUEUE[0].first_id, WHOLE_QUEUE[0].last_id


class SlowQueues:
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
        """True if the next claim is due, whatever is heard."""
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
        """A portion moved so many jobs and came to this place; None: to the end of the queue. False: the queue is done."""
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
