"""The claim loop: claims jobs for the buffers of the dispatcher while earlier jobs run and finish.

It claims when a notification arrives or a worker becomes idle, and otherwise as often as `ClaimPolicy` decides.

A new job wakes one host. If that host has no room, it passes the notification on to another one. If the notified host was
killed or stopped, the poll of another host finds the job, and for a while that host lets all idle hosts be notified.
(docs/adr/21)

A queue that is throttled is passed by in the statement (`throttled_until` in job/claim*.sql). job/queues.py sets that time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import psycopg

from pgworkers.clock import monotonic
from pgworkers.events import AttemptEnded, ClaimTooSlow, EventBus, JobsClaimed, JobsParked
from pgworkers.job.claim import (
    QueueCapacity,
    claim,
    end_oversized_jobs,
    end_unclaimable_jobs,
    is_data_error,
    park,
)
from pgworkers.job.hosts import notify_all_idle_hosts, pass_on_notification, set_idle_queues
from pgworkers.job.model import ClaimedJob, JobState, Verdict
from pgworkers.job.notification_payloads import MIN_HINT_INTERVAL_SECONDS
from pgworkers.master.claim_policy import ClaimPolicy, ClaimRequest
from pgworkers.master.connection import ConnectionDown, ReconnectingConnection, is_statement_timeout
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.postgres.session import StatementTimedOut
from pgworkers.settings import Settings

#: Jobs are dispatched in chunks of this size. After this time, other tasks run before the next chunk.
DISPATCH_CHUNK_JOBS = 16
DISPATCH_SLICE_SECONDS = 0.001


class ClaimTimedOut(psycopg.errors.QueryCanceled):
    """A claim of these queues took longer than a statement may."""

    def __init__(self, queues: tuple[str, ...], seconds: float) -> None:
        super().__init__(f"a claim of {', '.join(queues)} timed out")
        self.queues = queues
        self.seconds = seconds


class Claimer:
    """Claims jobs for the dispatcher.

    It also ends or parks the jobs that make claims fail or slow.
    """

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
        # False if the leases have lapsed, or results come faster than the database takes them: then nothing is claimed.
        self._may_start_jobs = may_start_jobs
        self._wakeup = Wakeup()
        self._policy = ClaimPolicy(
            poll_seconds=settings.poll_interval,
            oldest_first_seconds=settings.ageing_delay,
            statement_timeout=settings.statement_timeout,
        )
        self._parked_jobs: Counter[tuple[str, str]] = Counter()  # jobs of each crowded queue and task
        self._pass_on_at = 0.0
        self._notify_all_until = 0.0

    def wake_for_all_queues(self) -> None:
        """Claim soon, also from queues that were known to be empty."""
        self._policy.sleep.assume_any_ready()
        self._wakeup.set()

    def on_capacity(self, queue: str) -> None:
        """Claim soon, if there may be jobs in this queue: it has room for more."""
        if not self._policy.sleep.is_known_empty(queue, monotonic()):
            self._wakeup.set()

    def on_notification(self, queue: str) -> None:
        """Claim soon: there may be jobs in this queue, or in any if it is "".

        Queues of other hosts are ignored.
        """
        now = monotonic()
        for name in [queue] if queue else list(self._dispatcher.buffers):
            if name in self._dispatcher.buffers and self._policy.on_notification(name, now):
                self._wakeup.set()

    def on_notification_for_this_host(self, queue: str, *, is_one_job: bool) -> None:
        """No other host was notified of these jobs: this one claims them, or passes the notification on."""
        if queue in self._dispatcher.buffers:
            self._policy.add_notified_jobs(queue, is_one_job=is_one_job)
            self.on_notification(queue)

    def on_reconnect(self) -> None:
        """Announce the sleeping queues again: the database may have forgotten them.

        Claim what was missed.
        """
        self._policy.sleep.forget_announcement()
        self._wakeup.set()

    async def run(self) -> None:
        while True:
            await self._wakeup.wait(self._seconds_until_claim)
            try:
                await self._announce_sleeping_queues()  # first: the claim finds what was enqueued before it
                await self._park_unknown_tasks()
                await self._claim_once()
                await self._pass_on_notifications()
            except ConnectionDown as down:
                if not await self._finish_unclaimable_jobs(down.__cause__):
                    await self._connection.wait_for_backoff()
                self._wakeup.set()
            except psycopg.Error as error:
                if not await self._finish_unclaimable_jobs(error):
                    await asyncio.sleep(self._settings.poll_interval)
                self._wakeup.set()

    async def _claim_once(self) -> None:
        request = self._plan_claim()
        if request is None:
            await asyncio.sleep(0)  # never keep the other tasks of the host from running
            return
        jobs = await self._execute_claim(request)
        answered_at = monotonic()
        if jobs:
            await self._dispatch_in_chunks(jobs)
            self._events.emit(JobsClaimed(len(jobs)))
        follow_up = self._policy.record(request, jobs, answered_at, queues=self._dispatcher.buffers)
        if follow_up.should_claim_again:
            self._wakeup.set()
        await self._report_missed_notifications(follow_up.missed_queues, answered_at)

    def _plan_claim(self) -> ClaimRequest | None:
        now = monotonic()
        if not self._may_start_jobs():
            self._policy.record_no_claim()
            return None
        request = self._policy.plan(self._dispatcher.capacity(), now)
        if request is None:
            self._policy.record_no_claim()
            if self._policy.slow_queues.is_parking(now):
                self._wakeup.set()
        elif self._policy.slow_queues.has_claim_due(now):
            self._wakeup.set()
        return request

    async def _execute_claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        """Run the claim. Raises `ClaimTimedOut` if its queues are the reason that it took too long."""
        query = claim(
            self._host_id,
            [QueueCapacity(queue, count) for queue, count in request.capacity.items()],
            list(self._dispatcher.tasks),
            request.oldest_first_seconds,
            scan_ranges=request.ranges,
            include_limited=request.includes_limited,
        )
        try:
            return await self._connection.execute(query, raise_timeouts=True)
        except psycopg.Error as error:
            if is_statement_timeout(error):
                raise ClaimTimedOut(tuple(request.capacity), monotonic() - request.planned_at) from error
            raise

    async def _dispatch_in_chunks(self, jobs: list[ClaimedJob]) -> None:
        """Pass jobs to the dispatcher.

        Workers that wake up compete for the core, so other tasks run between two chunks.
        """
        began = monotonic()
        for start in range(0, len(jobs), DISPATCH_CHUNK_JOBS):
            if start and monotonic() - began > DISPATCH_SLICE_SECONDS:
                await asyncio.sleep(0)
                began = monotonic()
            self._dispatcher.accept(jobs[start : start + DISPATCH_CHUNK_JOBS])

    # -- claims that fail, or take too long ----------------------------------------------------------------------------

    async def _finish_unclaimable_jobs(self, error: BaseException | None) -> bool:
        """End the jobs whose data made a claim fail.

        False: there were none, or it had another reason.
        """
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
        """A claim timed out: what it should pass by is parked.

        False: there is nothing to park, or it failed, too.
        """
        now = monotonic()
        self._events.emit(ClaimTooSlow(late.queues, late.seconds))
        self._policy.slow_queues.close(late.queues)
        if not self._policy.slow_queues.record_slow_claim(late.queues, now):
            self._policy.slow_queues.record_timeout(late.queues, late.seconds, now)
            return False
        try:
            has_parked = False
            for _ in late.queues:
                has_parked = bool(await self._park_unknown_tasks()) or has_parked
            return has_parked
        except (ConnectionDown, psycopg.Error):
            return False

    async def _park_unknown_tasks(self) -> int:
        """One portion of one crowded queue; how many jobs it moved."""
        began = monotonic()
        queue = self._policy.slow_queues.next_to_park(began)
        if queue is None:
            return 0
        try:
            portion = park(queue, self._dispatcher.tasks, self._policy.slow_queues.portion(queue))
            found = await self._connection.execute(portion, raise_timeouts=True)
        except psycopg.Error as error:
            if not is_statement_timeout(error):
                raise
            now = monotonic()
            self._events.emit(ClaimTooSlow((queue,), now - began))
            self._policy.slow_queues.not_parked(queue, now - began, now)
            return 0
        for task, jobs in found.jobs_by_task.items():
            if not self._parked_jobs[queue, task]:
                self._events.emit(JobsParked(queue, task, jobs, is_done=False))
            self._parked_jobs[queue, task] += jobs
        jobs = sum(found.jobs_by_task.values())
        now = monotonic()
        if not self._policy.slow_queues.record_parked(
            queue, jobs, found.last_place, found.newest_id, now, now - began
        ):
            for key in [key for key in self._parked_jobs if key[0] == queue]:
                self._events.emit(JobsParked(*key, self._parked_jobs.pop(key), is_done=True))
        return jobs

    # -- notifications -------------------------------------------------------------------------------------------------

    def _seconds_until_claim(self) -> float:
        now = monotonic()
        host_count = 1 + self._dispatcher.cluster.other_hosts_sharing
        pause = self._policy.seconds_until_claim(now, host_count=host_count)
        return min(pause, max(0.0, self._pass_on_at - now)) if self._policy.notified_jobs else pause

    async def _announce_sleeping_queues(self) -> None:
        """Write of which queues this host wants to be notified.

        The claim after it finds what was enqueued before.
        """
        wanted = self._policy.sleep.announcement_due(self._dispatcher.buffers)
        if wanted is not None and self._dispatcher.is_claiming:
            unattended = await self._connection.execute(set_idle_queues(self._host_id, wanted))
            self._policy.sleep.record_announcement(wanted, monotonic(), unattended)

    async def _pass_on_notifications(self) -> None:
        """Let another host be notified of jobs that this one was notified of and cannot claim now.

        However many hints come, this causes no more than one statement per `MIN_HINT_INTERVAL_SECONDS`.
        """
        if not self._policy.notified_jobs:
            return
        capacities = self._dispatcher.capacity() if self._may_start_jobs() else []
        full = self._policy.full_queues({one.queue for one in capacities}, monotonic())
        if not full:
            self._wakeup.set()
        elif self._dispatcher.cluster.other_hosts_sharing == 0:
            self._policy.notified_jobs.clear()
        elif monotonic() >= self._pass_on_at:
            for queue in full:
                del self._policy.notified_jobs[queue]
            await self._connection.execute(pass_on_notification(self._host_id, full, self._dispatcher.tasks))
            self._policy.sleep.record_full(full)
            self._pass_on_at = monotonic() + MIN_HINT_INTERVAL_SECONDS

    async def _report_missed_notifications(self, missed: frozenset[str], now: float) -> None:
        """Let all sleeping hosts be notified for a while, if the host that was notified of these queues did not come."""
        if missed and self._dispatcher.cluster.other_hosts_sharing > 0 and now >= self._notify_all_until:
            self._notify_all_until = now + self._settings.lease_duration / 3
            await self._connection.execute(notify_all_idle_hosts(self._host_id, missed))


class Wakeup:
    """Wakes one task. A call of `set` while the task does not wait ends its next wait at once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, max_seconds: Callable[[], float]) -> None:
        """Wait until it is set, or for at most `max_seconds`."""
        if not self._event.is_set():
            try:
                async with asyncio.timeout(max_seconds()):
                    await self._event.wait()
            except TimeoutError:
                pass
        self._event.clear()
