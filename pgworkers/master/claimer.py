"""Claims jobs for the buffers of the dispatcher, on the claim connection, while earlier jobs run and finish.

It claims when a notification comes or a worker is free, and otherwise as often as `SleepPolicy` decides. `ClaimPositions`
decides where in a queue it looks.

A new job wakes one host. If that host has no room, it passes the notification on to another one. If it does not come,
because it was killed or stopped, the poll of another host finds the job, and that host lets all be notified for a while.
(docs/adr/21)
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf

import psycopg

from pgworkers.clock import monotonic
from pgworkers.events import AttemptEnded, ClaimTooSlow, EventBus, JobsParked
from pgworkers.events import JobsClaimed as ClaimedFact
from pgworkers.job.claim import (
    QueueCapacity,
    ScanRange,
    claim,
    end_oversized_jobs,
    end_unclaimable_jobs,
    is_data_error,
    park,
)
from pgworkers.job.hosts import notify_all_idle_hosts, pass_on_notification, set_idle_queues
from pgworkers.job.model import ClaimedJob, JobState, Verdict
from pgworkers.job.notification_payloads import MIN_HINT_INTERVAL_SECONDS
from pgworkers.master.claim_policy import SLOW_CLAIM_SECONDS, SleepPolicy, SlowQueues
from pgworkers.master.claim_positions import CLAIMS_PER_OLDEST_FIRST, ClaimPositions
from pgworkers.master.connection import ConnectionDown, ReconnectingConnection, is_statement_timeout
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.postgres.session import StatementTimedOut
from pgworkers.postgres.statements import Query
from pgworkers.settings import Settings

#: After so many jobs, and so many seconds, that are handed over the loop has another turn.
DISPATCH_CHUNK_JOBS = 16
DISPATCH_SLICE_SECONDS = 0.001

#: A job that the poll finds after this long was missed by the host that was notified of it: hosts come within milliseconds.
MISSED_NOTIFICATION_SECONDS = 0.1


class ClaimTimedOut(psycopg.errors.QueryCanceled):
    """A claim of these queues took longer than a statement may."""

    def __init__(self, queues: tuple[str, ...], seconds: float) -> None:
        super().__init__(f"a claim of {', '.join(queues)} timed out")
        self.queues = queues
        self.seconds = seconds


class Claimer:
    def __init__(
        self,
        host_id: str,
        connection: ReconnectingConnection,
        dispatcher: Dispatcher,
        events: EventBus,
        settings: Settings,
        may_start_jobs: Callable[[], bool],
    ) -> None:
        self._host_id = host_id
        self._connection = connection
        self._dispatcher = dispatcher
        self._events = events
        self._settings = settings
        # Else nothing would be won: the leases have lapsed, or the database does not take the ends of what runs.
        self._may_start_jobs = may_start_jobs
        self._wakeup = Wakeup()
        self._sleep = SleepPolicy()
        self._positions = ClaimPositions(settings.statement_timeout)
        self._slow_queues = SlowQueues(settings.statement_timeout)
        self._parked_jobs: Counter[tuple[str, str]] = Counter()  # jobs of each crowded queue and task
        self._claims_since_oldest_first = CLAIMS_PER_OLDEST_FIRST - 1  # claims since the last one out of turn
        self._dispatching_since = 0.0  # since when jobs are handed over
        self._notified_jobs: dict[str, float] = {}  # queue -> jobs this host was chosen for; inf: any number
        self._pass_on_at = 0.0
        self._notify_all_until = 0.0
        self._has_spare_capacity = False  # the last claim did not bring all that there was room for
        self._last_question: tuple[list[QueueCapacity], list[str], bool] | None = None
        self._last_query: Query[list[ClaimedJob]]  # that asks for it

    def wake_for_all_queues(self) -> None:
        """There may be work in any queue that was known to have none."""
        self._sleep.assume_any_ready()
        self._wakeup.set()

    def on_capacity(self, queue: str) -> None:
        """There may be room for more jobs of this queue."""
        if not self._sleep.is_known_empty(queue, monotonic()):
            self._wakeup.set()

    def on_notification(self, queue: str) -> None:
        """A notification: there may be jobs in this queue; without a name, in any. Others may have come with it.

        Of queues that this host does not serve nothing is kept. Of a queue that is awake a notification changes nothing: the
        host looks at it every few milliseconds as long as it has room.
        """
        now = monotonic()
        for name in [queue] if queue else list(self._dispatcher.buffers):
            if name in self._dispatcher.buffers:
                looks_anyway = self._has_spare_capacity and self._sleep.is_awake(name)
                self._sleep.record_notification(name, now)
                if not looks_anyway:
                    self._wakeup.set()

    def on_notification_for_this_host(self, queue: str, *, is_one_job: bool) -> None:
        """A notification that is for this host only: it claims the job, or passes the notification on."""
        if queue in self._dispatcher.buffers:
            jobs = 1 if is_one_job else inf
            self._notified_jobs[queue] = self._notified_jobs.get(queue, 0) + jobs
            self.on_notification(queue)

    def on_reconnect(self) -> None:
        """The database may have forgotten that this host wants to be told, and notifications may have been missed."""
        self._sleep.forget_announcement()
        self._wakeup.set()

    async def run(self) -> None:
        while True:
            await self._wakeup.wait(self._seconds_until_next_claim)
            try:
                await self._announce_sleeping_queues()
                await self._park_unknown_tasks()
                if wants := self._claimable_capacity():
                    if self._slow_queues.has_claim_due(monotonic()):
                        self._wakeup.set()
                    await self._claim_once(wants)
                else:
                    self._has_spare_capacity = False
                    if self._slow_queues.is_parking(monotonic()) and self._may_start_jobs():
                        self._wakeup.set()
                    await asyncio.sleep(0)  # nothing here may keep the other tasks of the host from running
                await self._pass_on_notifications()
            except ConnectionDown as down:
                if not await self._finish_unclaimable_jobs(down.__cause__):
                    await self._connection.wait_for_backoff()
                self._wakeup.set()
            except psycopg.Error as error:
                if not await self._finish_unclaimable_jobs(error):
                    await asyncio.sleep(self._settings.poll)
                self._wakeup.set()

    async def _finish_unclaimable_jobs(self, error: BaseException | None) -> bool:
        """End the jobs whose data made a claim fail. False: there were none, or it had another reason."""
        if isinstance(error, ClaimTimedOut) and await self._on_claim_timeout(error):
            return True
        too_late = isinstance(error, (psycopg.errors.QueryCanceled, StatementTimedOut))
        if not isinstance(error, psycopg.Error) or not (too_late or is_data_error(error.sqlstate)):
            return False
        queues = [want.queue for want in self._dispatcher.capacity()]
        try:
            found = await self._connection.execute(
                end_oversized_jobs(queues, self._dispatcher.tasks), raise_timeouts=True
            )
            if not found and not too_late:  # a timeout is no evidence of bad data
                found = await self._connection.execute(end_unclaimable_jobs(queues, self._dispatcher.tasks))
        except (ConnectionDown, psycopg.Error):
            return False
        for job in found:
            self._events.emit(
                AttemptEnded(
                    job=job.id,
                    lease=job.lease,
                    queue=job.queue,
                    task=job.task,
                    args="{}",
                    attempt=job.attempt,
                    max_attempts=job.max_attempts,
                    verdict=Verdict.UNFIT.value,
                    state=JobState.DEAD,
                    duration=0.0,
                    cpu=0.0,
                    peak_rss=0,
                    error=job.reason,
                    retry_in=None,
                )
            )
        return bool(found)

    async def _on_claim_timeout(self, late: ClaimTimedOut) -> bool:
        """A claim timed out: what it should pass by is parked. False: there is nothing to park, or it failed, too."""
        now = monotonic()
        self._events.emit(ClaimTooSlow(late.queues, late.seconds))
        self._slow_queues.close(late.queues)
        if not self._slow_queues.record_slow_claim(late.queues, now):
            self._slow_queues.record_timeout(late.queues, late.seconds, now)
            return False
        try:
            return any([await self._park_unknown_tasks() for _ in late.queues])
        except (ConnectionDown, psycopg.Error):
            return False

    async def _park_unknown_tasks(self) -> int:
        """One portion of one crowded queue; how many jobs it moved."""
        began = monotonic()
        queue = self._slow_queues.next_to_park(began)
        if queue is None:
            return 0
        try:
            portion = park(queue, self._dispatcher.tasks, self._slow_queues.portion(queue))
            found = await self._connection.execute(portion, raise_timeouts=True)
        except psycopg.Error as error:
            if not is_statement_timeout(error):
                raise
            now = monotonic()
            self._events.emit(ClaimTooSlow((queue,), now - began))
            self._slow_queues.not_parked(queue, now - began, now)
            return 0
        for task, jobs in found.jobs_by_task.items():
            if not self._parked_jobs[queue, task]:
                self._events.emit(JobsParked(queue, task, jobs, is_done=False))
            self._parked_jobs[queue, task] += jobs
        jobs = sum(found.jobs_by_task.values())
        now = monotonic()
        if not self._slow_queues.record_parked(
            queue, jobs, found.last_place, found.newest_id, now, now - began
        ):
            for key in [key for key in self._parked_jobs if key[0] == queue]:
                self._events.emit(JobsParked(*key, self._parked_jobs.pop(key), is_done=True))
        return jobs

    def _dispatch_first_chunk(self, claimed: list[ClaimedJob]) -> None:
        """The first piece, before anything else is done with the answer."""
        self._dispatching_since = monotonic()
        if claimed:
            self._dispatcher.accept(claimed[:DISPATCH_CHUNK_JOBS])

    async def _dispatch_in_chunks(self, claimed: list[ClaimedJob]) -> None:
        """Each piece wakes workers who take the core from us, so whoever else waits for the loop has his turn in between."""
        began = self._dispatching_since
        for start in range(DISPATCH_CHUNK_JOBS, len(claimed), DISPATCH_CHUNK_JOBS):
            if monotonic() - began > DISPATCH_SLICE_SECONDS:
                await asyncio.sleep(0)
                began = monotonic()
            self._dispatcher.accept(claimed[start : start + DISPATCH_CHUNK_JOBS])

    def _seconds_until_next_claim(self) -> float:
        now = monotonic()
        self._sleep.host_count = 1 + self._dispatcher.cluster.other_hosts_sharing
        pause = self._sleep.seconds_until_claim(now, self._settings.poll, self._has_spare_capacity)
        return min(pause, max(0.0, self._pass_on_at - now)) if self._notified_jobs else pause

    def _claimable_capacity(self) -> list[QueueCapacity]:
        """What there is room for, of queues that may have something."""
        if not self._may_start_jobs():
            return []
        now, dry = monotonic(), self._sleep.is_known_empty
        wants = [want for want in self._dispatcher.capacity() if not dry(want.queue, now)]
        return self._slow_queues.claimable(wants, now)

    async def _announce_sleeping_queues(self) -> None:
        """Before the claim, so that whatever is enqueued unheard until then is found by it."""
        wanted = self._sleep.announcement_due(self._dispatcher.buffers)
        if wanted is not None and self._dispatcher.is_claiming:
            unattended = await self._connection.execute(set_idle_queues(self._host_id, wanted))
            self._sleep.record_announcement(wanted, monotonic(), unattended)

    async def _pass_on_notifications(self) -> None:
        """Let another host be notified of jobs that this one was chosen for and cannot claim now.

        However many hints come, this causes no more than one statement per `MIN_HINT_INTERVAL_SECONDS`.
        """
        if not self._notified_jobs:
            return
        has_room = {want.queue for want in self._dispatcher.capacity()} if self._may_start_jobs() else set()
        full = self._notified_jobs.keys() - (has_room - self._slow_queues.blocked(monotonic()))
        if not full:
            self._wakeup.set()
        elif self._dispatcher.cluster.other_hosts_sharing == 0:
            self._notified_jobs.clear()
        elif monotonic() >= self._pass_on_at:
            for queue in full:
                del self._notified_jobs[queue]
            await self._connection.execute(pass_on_notification(self._host_id, full, self._dispatcher.tasks))
            self._sleep.record_full(full)
            self._pass_on_at = monotonic() + MIN_HINT_INTERVAL_SECONDS

    async def _claim_once(self, wants: list[QueueCapacity]) -> None:
        """Everything that can wait is done when the jobs are handed over."""
        began = monotonic()
        positions = self._positions
        aged = self._oldest_first_seconds(began)
        oldest = aged is not None
        head, gates = not oldest and positions.is_head_scan_due(began), positions.is_limited_scan_due(began)
        room = {want.queue: want.count for want in wants}
        places = positions.ranges(room, head=head, aged=oldest) | self._slow_queues.ranges(room)
        self._sleep.record_claim_sent()
        chosen_for = {queue: self._notified_jobs.pop(queue) for queue in room if queue in self._notified_jobs}
        try:
            query = self._claim_query(wants, aged, places, gates)
            claimed = await self._connection.execute(
                query, raise_timeouts=True, then=self._dispatch_first_chunk
            )
        except psycopg.Error as error:
            if is_statement_timeout(error):
                raise ClaimTimedOut(tuple(room), monotonic() - began) from error
            raise
        now = monotonic()
        if now - began > SLOW_CLAIM_SECONDS:
            self._slow_queues.record_slow_claim(room, now)
        if claimed:
            await self._dispatch_in_chunks(claimed)
            self._events.emit(ClaimedFact(len(claimed)))
        # The oldest first is no whole look: it leaves jobs whose task has become limited to the ordinary one.
        whole = (head or oldest) and positions.record_scan(claimed, room, now, aged=oldest) and head
        positions.record_jobs(claimed)
        limited = sum(job.is_limited for job in claimed)
        positions.record_duration(
            now - began, now, head=head, gates=gates, jobs=len(claimed), limited=limited, aged=oldest
        )
        found = Counter([job.queue for job in claimed])
        again = min(now + self._settings.poll, positions.next_scan_at(whole=whole, gates=gates))
        self._sleep.record_claim(room, found, now, again)
        if self._sleep.announcement_due(self._dispatcher.buffers) is not None:
            self._wakeup.set()  # it falls asleep, and until the database knows that nobody looks
        if any(found[queue] >= count for queue, count in room.items()):
            self._wakeup.set()  # there may be more: the next claim finds out while these run
        self._has_spare_capacity = len(claimed) < sum(room.values())
        self._claims_since_oldest_first = 0 if oldest else self._claims_since_oldest_first + 1
        for queue, jobs in chosen_for.items():
            if room[queue] <= found[queue] < jobs:  # there may be more than there was room for
                self._notified_jobs[queue] = self._notified_jobs.get(queue, 0) + jobs - found[queue]
        await self._report_missed_notifications(claimed, now)

    async def _report_missed_notifications(self, claimed: list[ClaimedJob], now: float) -> None:
        """Let every sleeping host be notified for a while, if the host that was notified of these jobs did not come."""
        missed = {
            job.queue
            for job in claimed
            if job.ready_seconds > MISSED_NOTIFICATION_SECONDS and self._sleep.was_polled(job.queue)
        }
        if missed and self._dispatcher.cluster.other_hosts_sharing > 0 and now >= self._notify_all_until:
            self._notify_all_until = now + self._settings.lease / 3
            await self._connection.execute(notify_all_idle_hosts(self._host_id, missed))

    def _claim_query(
        self,
        wants: list[QueueCapacity],
        aged: float | None,
        places: dict[str, Sequence[ScanRange]],
        gates: bool,
    ) -> Query[list[ClaimedJob]]:
        """An idle host asks the same whenever it is woken: it has the question at hand."""
        tasks = list(self._dispatcher.tasks)
        if aged is not None or places:
            return claim(self._host_id, wants, tasks, aged, scan_ranges=places, include_limited=gates)
        asked = wants, tasks, gates
        if asked != self._last_question:
            self._last_question, self._last_query = (
                asked,
                claim(self._host_id, wants, tasks, include_limited=gates),
            )
        return self._last_query

    def _oldest_first_seconds(self, now: float) -> float | None:
        """Low priority never starves: now and then the oldest go first."""
        due = (
            self._settings.ageing > 0
            and self._claims_since_oldest_first >= CLAIMS_PER_OLDEST_FIRST - 1
            and self._positions.is_oldest_first_due(now)
        )
        return self._settings.ageing if due else None


class Wakeup:
    """Wakes one task. A call of `set` while the task does not wait ends its next wait at once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, max_seconds: Callable[[], float]) -> None:
        """Wait until it is set, or for so many seconds."""
        if not self._event.is_set():
            try:
                async with asyncio.timeout(max_seconds()):
                    await self._event.wait()
            except TimeoutError:
                pass
        self._event.clear()
