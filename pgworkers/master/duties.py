"""What must be done once for the whole cluster: the leader's duties.

Each skips what others have locked, and runs on the leading session. Its statements touch a bounded number of rows. It loops
until nothing is left or until its slice of time is over; then the other duties come in between, and it goes on where it
stopped. A duty that fails is reported and counted, and never stops the others. `perform_completely` runs one by hand.

Most have nothing to do most of the time. One query (`due_duties` in job/maintenance.py) returns which of them have work, and
when. Only the others have an interval of their own. An enqueue for the next seconds notifies `due:`, and the leader queries
at once.

Jobs of lost hosts are rescued in batches, and row by row where a batch is refused. One row that the database will not
schedule again (a unique index or a trigger of the user's own) must not keep the jobs around it with a host that is gone:
it ends, and its record says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from math import inf
from typing import Any

import psycopg

from pgworkers.clock import monotonic
from pgworkers.errors import NotFound
from pgworkers.events import DutyFailed, DutyPerformed, EventBus, JobRescued, QueuesMeasured, RowsPurged
from pgworkers.job import batches, gauges, hosts, maintenance, operations, requests
from pgworkers.job.handler_sessions import end_handler_sessions
from pgworkers.job.maintenance import Portion, RescuedJob, due_duties, rescue_candidates, rescue_jobs
from pgworkers.limits import concurrency
from pgworkers.master import scheduler
from pgworkers.master.connection import ConnectionDown, QueryExecutor
from pgworkers.master.leadership import Leadership
from pgworkers.observe import statistics
from pgworkers.postgres.statements import Query
from pgworkers.schedule import fire
from pgworkers.settings import Settings

DUTY_ROWS_PER_STATEMENT = 1000
PARTITION_DAYS_AHEAD = 3
#: Seconds of one performance of a duty. With more to do it rests as long as it worked, so that the others come in between.
DUTY_SLICE_SECONDS = 1.0
#: How many open batches one statement reads; it locks those that it completes until its end.
BATCHES_PER_STATEMENT = 200
#: How many rows of a partition one statement reads to find those that outlive it.
PARTITION_ROWS_PER_STATEMENT = 5000
#: Seconds until a partition that could not be locked is tried again.
PARTITION_RETRY_SECONDS = 60.0
#: Seconds; the least pause between two queries for what is due.
MIN_DUE_CHECK_SECONDS = 0.02
#: Seconds; a schedule that is due and cannot fire (another session holds its row) is not tried more often.
MIN_FIRE_INTERVAL_SECONDS = 0.1
#: Factor on the interval of `check_due` while nothing is scheduled, expires or waits for its batch. New work is notified.
NOTHING_DUE_INTERVAL_FACTOR = 2
#: A duty that only reads rests at least this many times as long as it took.
READ_REST_FACTOR = 50
#: Seconds; the longest such rest. The query may have been slow because the database was away.
MAX_READ_REST_SECONDS = 60.0
#: Seconds; a count of the depth that is not complete by then is reported as a lower bound.
MAX_DEPTH_COUNT_SECONDS = 30.0


@dataclass(slots=True)
class Duty:
    name: str
    interval_seconds: float
    perform: Callable[[], Awaitable[int]]
    description: str
    is_due_on_election: bool = False  # on becoming leader; others start a full period later
    is_read_only: bool = False  # changes nothing, so it rests longer after a slow query
    is_on_demand: bool = (
        False  # performed when `check_due` finds work, and not more often than `interval_seconds`
    )
    due_at: float = 0.0
    performed_at: float = -inf
    is_unfinished: bool = False  # its slice of time was over before its work was


class DutyRunner:
    def __init__(
        self,
        host_id: str,
        executor: QueryExecutor,
        events: EventBus,
        settings: Settings,
        may_rescue: Callable[[], bool],
        database_time: Callable[[], datetime | None],
    ) -> None:
        self._host_id = host_id
        self._executor = executor
        self._events = events
        self._settings = settings
        self._may_rescue = may_rescue
        self._database_time = database_time  # the database's time, as this host estimates it
        self.duties = {
            duty.name: duty
            for duty in (
                Duty(
                    "check_due",
                    settings.promote_interval,
                    self._check_due,
                    "find out what is due",
                    is_due_on_election=True,
                ),
                Duty(
                    "promote",
                    MIN_DUE_CHECK_SECONDS,
                    self._promote,
                    "make scheduled jobs that are due ready",
                    is_on_demand=True,
                ),
                Duty(
                    "expire",
                    settings.rescue_interval,
                    self._expire,
                    "end jobs that were not started in time",
                    is_on_demand=True,
                ),
                Duty(
                    "link_dependencies",
                    MIN_DUE_CHECK_SECONDS,
                    self._link_dependents,
                    "link new dependent jobs to their parents",
                    is_on_demand=True,
                ),
                Duty(
                    "rescue",
                    settings.rescue_interval,
                    self._rescue,
                    "rescue jobs of hosts that stopped renewing",
                ),
                Duty(
                    "prune_hosts",
                    settings.rescue_interval * 6,
                    self._prune_hosts,
                    "delete the rows of hosts that are gone",
                ),
                Duty(
                    "partitions",
                    settings.partition_interval,
                    self._partitions,
                    "make partitions ahead, drop old ones",
                    True,
                ),
                Duty(
                    "prune",
                    settings.prune_interval,
                    self._prune,
                    "delete finished jobs past their queue's retention",
                ),
                Duty(
                    "fire_schedules",
                    MIN_FIRE_INTERVAL_SECONDS,
                    self._fire_schedules,
                    "fire the schedules that are due",
                    is_on_demand=True,
                ),
                Duty(
                    "batches",
                    settings.rescue_interval,
                    self._complete_batches,
                    "complete batches whose jobs have all ended",
                    is_on_demand=True,
                ),
                Duty(
                    "queue_depth",
                    settings.queue_depth_interval,
                    self._count_queues,
                    "count the jobs of each queue, for the gauges",
                    True,
                ),
            )
        }

        self._wake = asyncio.Event()
        self._slice_end = inf
        self._walk_positions: dict[str, Any] = {}  # of walks that have not come to their end: where to go on
        self._partitions_to_drop: set[str] = (
            set()
        )  # partitions of which everything was moved that outlives them
        self._locked_partitions: set[str] = set()  # partitions that could not be locked
        self._depth_count: gauges.DepthCount | None = None  # of the depth: the count under way
        self._depth_count_since = 0.0  # since when
        self._expected_queues = 10  # how many it found the last time, or may find

    def add(self, duty: Duty) -> None:
        self.duties[duty.name] = duty

    def on_due_soon(self) -> None:
        """A notification: something is due soon."""
        duty = self.duties["check_due"]
        duty.due_at = min(duty.due_at, max(monotonic(), duty.performed_at + MIN_DUE_CHECK_SECONDS))
        self._wake.set()

    async def run(self, leadership: Leadership) -> None:
        """Perform what is due, for as long as this host leads; then wait to lead again."""
        while True:
            await leadership.until_leading()
            term, self._depth_count = leadership.leader_since, None
            self._walk_positions.clear()
            self._partitions_to_drop.clear()
            self._locked_partitions.clear()
            for duty in self.duties.values():
                duty.due_at = (
                    inf
                    if duty.is_on_demand
                    else term + (0.0 if duty.is_due_on_election else duty.interval_seconds)
                )
            while leadership.is_leader and leadership.leader_since == term:
                self._wake.clear()
                for duty in self.duties.values():
                    if duty.due_at <= monotonic() and leadership.is_leader:
                        duty.performed_at = monotonic()
                        duty.due_at = inf if duty.is_on_demand else duty.performed_at + duty.interval_seconds
                        changed = await self.perform(duty.name)
                        if duty.is_unfinished:
                            duty.due_at = min(duty.due_at, self._next_slice_at(duty, changed))
                        elif duty.is_read_only:
                            now = monotonic()
                            duty.due_at = max(
                                duty.due_at,
                                now
                                + min(READ_REST_FACTOR * (now - duty.performed_at), MAX_READ_REST_SECONDS),
                            )
                pause = min(duty.due_at for duty in self.duties.values()) - monotonic()
                try:
                    async with asyncio.timeout(max(0.005, pause)):
                        await self._wake.wait()
                except TimeoutError:
                    pass

    def _next_slice_at(self, duty: Duty, changed: int) -> float:
        """When a duty that is not finished goes on: after as long as it worked; after a longer rest if it only read."""
        now = monotonic()
        took = max(MIN_DUE_CHECK_SECONDS, now - duty.performed_at)
        return now + (took if changed else max(took, min(READ_REST_FACTOR * took, duty.interval_seconds)))

    async def perform_completely(self, name: str) -> int:
        """One duty, now, until nothing is left. How many rows it touched."""
        total = await self.perform(name)
        while self.duties[name].is_unfinished:
            total += await self.perform(name)
        return total

    async def perform(self, name: str) -> int:
        """One duty, now, for one slice of time. How many rows it touched."""
        duty = self.duties.get(name)
        if duty is None:
            raise NotFound(f"there is no duty {name!r}; there are {', '.join(self.duties)}")
        began = monotonic()
        self._slice_end, duty.is_unfinished = began + DUTY_SLICE_SECONDS, False
        try:
            count = await duty.perform()
        except (ConnectionDown, psycopg.Error) as error:
            duty.is_unfinished = False
            self._events.emit(
                DutyFailed(name, f"{type(error).__name__}: {error}", isinstance(error, ConnectionDown))
            )
            return 0
        self._events.emit(DutyPerformed(name, count, monotonic() - began))
        return count

    def _is_slice_over(self, duty: str) -> bool:
        """True if the slice of this duty is over. It goes on with what is left in its next slice."""
        if monotonic() < self._slice_end:
            return False
        self.duties[duty].is_unfinished = True
        return True

    async def _repeat_until_empty(self, duty: str, query: Callable[[], Query[Any]], batch: int) -> int:
        total = 0
        while True:
            done = await self._executor.execute(query())
            count = done if isinstance(done, int) else len(done)
            total += count
            if count < batch or self._is_slice_over(duty):
                return total

    async def _continue_walk(
        self, duty: str, walk: str, step: Callable[[Any], Query[Portion[Any]]]
    ) -> tuple[int, bool]:
        """Go on with a walk where its last slice ended.

        How many rows were changed, and whether it came to its end.
        """
        total = 0
        while True:
            done = await self._executor.execute(step(self._walk_positions.get(walk)))
            total += done.changed_rows
            if done.is_blocked:
                return total, False
            if done.next_key is None:
                self._walk_positions.pop(walk, None)
                return total, True
            self._walk_positions[walk] = done.next_key
            if self._is_slice_over(duty):
                return total, False

    async def _check_due(self) -> int:
        """Set when each of the duties with a due time is performed next.

        Returns how many of them have something to do.
        """
        seen = await self._executor.execute(due_duties())
        now = monotonic()
        for name, within in seen.items():
            if name in self.duties:
                duty = self.duties[name]
                duty.due_at = (
                    inf if within is None else max(now + within, duty.performed_at + duty.interval_seconds)
                )
        some = sum(within is not None for within in seen.values())
        if not some:
            self.duties["check_due"].due_at = (
                now + NOTHING_DUE_INTERVAL_FACTOR * self.duties["check_due"].interval_seconds
            )
        return some

    async def _promote(self) -> int:
        total = 0
        while True:
            promoted = await self._executor.execute(maintenance.promote_due(DUTY_ROWS_PER_STATEMENT))
            total += promoted.count
            if promoted.count < DUTY_ROWS_PER_STATEMENT:
                if promoted.next_in_seconds is not None:
                    self.duties["promote"].due_at = monotonic() + max(
                        MIN_DUE_CHECK_SECONDS, promoted.next_in_seconds
                    )
                return total
            if self._is_slice_over("promote"):
                return total

    async def _expire(self) -> int:
        return await self._repeat_until_empty(
            "expire", lambda: maintenance.expire_jobs(DUTY_ROWS_PER_STATEMENT), DUTY_ROWS_PER_STATEMENT
        )

    async def _link_dependents(self) -> int:
        return await self._repeat_until_empty(
            "link_dependencies",
            lambda: maintenance.link_dependencies(DUTY_ROWS_PER_STATEMENT),
            DUTY_ROWS_PER_STATEMENT,
        )

    async def _rescue(self) -> int:
        """Rescue only if this host has itself renewed without a gap: an outage must not become a mass rescue."""

        def may() -> bool:
            return self._may_rescue() and not self._is_slice_over("rescue")

        rescued = await rescue_lost_jobs(
            self._executor, self._host_id, self._events, may, self._database_time
        )
        if rescued:
            self.on_due_soon()  # they are scheduled now
        return rescued

    async def _prune_hosts(self) -> int:
        if not self._may_rescue():
            return 0
        return await self._walk_count(
            "prune_hosts",
            "hosts",
            partial(hosts.prune_hosts, DUTY_ROWS_PER_STATEMENT, host_clock=self._database_time()),
        )

    async def _partitions(self) -> int:
        """Empty the default partitions, make those of the next days, and retire the old ones: each by itself."""
        total = 0
        for name in maintenance.DEFAULT_PARTITIONS:
            total += await self._perform_item(
                "partitions", name, partial(self._empty_default_partition, name), None
            )
        total += await self._executor.execute(maintenance.make_partitions(PARTITION_DAYS_AHEAD))
        for name in await self._executor.execute(maintenance.old_partitions(self._settings.retention)):
            total += await self._perform_item(
                "partitions", name, partial(self._drop_partition, name), f"partition {name}"
            )
        return total

    async def _empty_default_partition(self, name: str) -> int:
        return await self._walk_count("partitions", name, self._keep_rows(name))

    async def _drop_partition(self, name: str) -> int:
        """Move what outlives this partition, then drop it. 0: not yet."""
        if name not in self._partitions_to_drop:
            _, is_whole = await self._continue_walk("partitions", name, self._keep_rows(name))
            if is_whole:
                self._partitions_to_drop.add(name)
        dropped = (
            await self._executor.execute(maintenance.drop_partition(name))
            if name in self._partitions_to_drop
            else None
        )
        if dropped is not None:
            self._partitions_to_drop.discard(name)
            self._locked_partitions.discard(name)
        elif not self.duties["partitions"].is_unfinished:
            self._retry_partition_later(name)
        return int(bool(dropped))

    def _retry_partition_later(self, name: str) -> None:
        """Try this partition again soon. Its refusal is reported once."""
        duty = self.duties["partitions"]
        duty.due_at = min(duty.due_at, monotonic() + PARTITION_RETRY_SECONDS)
        if name not in self._locked_partitions:
            self._locked_partitions.add(name)
            why = f"{name} is not dropped yet: a session holds a lock on the table; it is tried again every minute"
            self._events.emit(DutyFailed("partitions", why))

    def _keep_rows(self, name: str) -> Callable[[int | None], Query[Portion[int]]]:
        return partial(
            maintenance.move_kept_rows, name, self._settings.dead_retention, PARTITION_ROWS_PER_STATEMENT
        )

    async def _prune(self) -> int:
        keep, dead = self._settings.retention, self._settings.dead_retention
        walks: dict[str, Callable[[Any], Query[Portion[Any]]]] = {
            "ticks": partial(fire.prune_ticks, keep, DUTY_ROWS_PER_STATEMENT),
            "finished jobs": partial(maintenance.prune_history, keep, dead, DUTY_ROWS_PER_STATEMENT),
            "finished jobs that were kept": partial(
                maintenance.prune_history, keep, dead, DUTY_ROWS_PER_STATEMENT, kept=True
            ),
            "attempts": partial(maintenance.prune_attempts, keep, DUTY_ROWS_PER_STATEMENT),
        }
        bounded: dict[str, Callable[[], Query[int]]] = {
            "operations": lambda: operations.prune_operations(max(keep, dead), DUTY_ROWS_PER_STATEMENT),
            "idempotency keys": lambda: maintenance.prune_idempotency_keys(DUTY_ROWS_PER_STATEMENT),
            "scan starts of limits": lambda: concurrency.prune_limit_scan_starts(
                concurrency.SCAN_START_MAX_AGE_SECONDS, DUTY_ROWS_PER_STATEMENT
            ),
            "scan starts of groups": lambda: concurrency.prune_group_scan_starts(
                concurrency.SCAN_START_MAX_AGE_SECONDS, DUTY_ROWS_PER_STATEMENT
            ),
            "requests of operators": lambda: requests.prune_requests(DUTY_ROWS_PER_STATEMENT),
            "batches": lambda: batches.prune_batches(keep, DUTY_ROWS_PER_STATEMENT),
            "rows of statistics": lambda: statistics.prune(
                statistics.STATISTICS_RETENTION_SECONDS, DUTY_ROWS_PER_STATEMENT
            ),
        }
        total = 0
        for what, step in walks.items():
            total += await self._perform_item(
                "prune", what, partial(self._walk_count, "prune", what, step), what
            )
        for what, query in bounded.items():
            total += await self._perform_item(
                "prune",
                what,
                partial(self._repeat_until_empty, "prune", query, DUTY_ROWS_PER_STATEMENT),
                what,
            )
        return total

    async def _walk_count(self, duty: str, walk: str, step: Callable[[Any], Query[Portion[Any]]]) -> int:
        changed, _ = await self._continue_walk(duty, walk, step)
        return changed

    async def _perform_item(
        self, duty: str, what: str, perform: Callable[[], Awaitable[int | None]], purged: str | None
    ) -> int:
        """One of several items of a duty. A failure is reported, and the others continue.

        `purged`: what it deletes.
        """
        try:
            count = await perform()
        except (ConnectionDown, psycopg.Error) as error:
            cause = error.__cause__ if isinstance(error, ConnectionDown) else error
            if not (isinstance(cause, psycopg.Error) and cause.sqlstate):
                raise  # the session is lost, for the other items, too
            why = f"{what}: {type(error).__name__}: {error}"
            self._events.emit(DutyFailed(duty, why, isinstance(error, ConnectionDown)))
            return 0
        if count and purged is not None:
            self._events.emit(RowsPurged(purged, int(count)))
        return int(count or 0)

    async def _complete_batches(self) -> int:
        return await self._walk_count(
            "batches", "open batches", partial(batches.settle_open_batches, BATCHES_PER_STATEMENT)
        )

    async def _count_queues(self) -> int:
        """Run one statement of a count, then rest, so that other duties come in between.

        Returns how many queues it found.

        Neither a long backlog nor a vacuum that is held back nor a hundred queues take a large share of the time. The count
        is reported when it is complete, or after MAX_DEPTH_COUNT_SECONDS.
        """
        began, duty = monotonic(), self.duties["queue_depth"]
        tally, self._depth_count = self._depth_count, None  # after a failure the count begins again
        if tally is None:
            tally, self._depth_count_since = (
                await self._executor.execute(gauges.start_depth_count(self._expected_queues)),
                began,
            )
            found = len(tally.queues)
        elif more := tally.next_query():
            await self._executor.execute(more)
            found = 0
        now = monotonic()
        rest = (now - began) * READ_REST_FACTOR
        if tally.next_query() and now < self._depth_count_since + MAX_DEPTH_COUNT_SECONDS:
            self._depth_count, duty.due_at = tally, now + min(rest, duty.interval_seconds)
        else:
            duty.due_at = max(duty.due_at, now + min(rest, MAX_READ_REST_SECONDS))
            self._expected_queues = len(tally.queues)
            self._events.emit(QueuesMeasured(tally.queues))
            if not all(one.is_exact for one in tally.queues):
                why = (
                    "a session locks the table host, so jobs that hosts claimed ahead were counted as running"
                )
                self._events.emit(DutyFailed("queue_depth", why))
        return found

    async def _fire_schedules(self) -> int:
        made = await scheduler.fire_due_schedules(self._executor, self._events)
        self.on_due_soon()  # each has another time now
        return made


RESCUED_JOBS_PER_STATEMENT = 500


async def rescue_lost_jobs(
    executor: QueryExecutor,
    host_id: str,
    events: EventBus,
    may: Callable[[], bool],
    database_time: Callable[[], datetime | None],
) -> int:
    """Rescue while `may` allows it: a host whose own renewals had a gap declares no host lost.

    Returns the job count.
    """
    total = 0
    while may():
        try:
            rescued = await executor.execute(
                rescue_jobs(host_id, RESCUED_JOBS_PER_STATEMENT, host_clock=database_time())
            )
            more = len(rescued) == RESCUED_JOBS_PER_STATEMENT
        except psycopg.Error:
            rescued = await _rescue_one_by_one(executor, host_id, database_time)
            more = bool(rescued)
        for job in rescued:
            events.emit(
                JobRescued(
                    job=job.id,
                    lease=job.lease,
                    queue=job.queue,
                    task=job.task,
                    attempt=job.attempt,
                    state=job.state,
                    error=job.error,
                    max_attempts=job.max_attempts,
                )
            )
        if rescued:  # the server may still be busy with a statement of a host that is gone
            await executor.execute(end_handler_sessions([(job.id, job.lease) for job in rescued]))
        total += len(rescued)
        if not more:
            break
    return total


async def _rescue_one_by_one(
    executor: QueryExecutor, host_id: str, database_time: Callable[[], datetime | None]
) -> list[RescuedJob]:
    rescued: list[RescuedJob] = []
    for job in await executor.execute(
        rescue_candidates(host_id, RESCUED_JOBS_PER_STATEMENT, host_clock=database_time())
    ):
        try:
            one = await executor.execute(rescue_jobs(host_id, 1, host_clock=database_time(), only_job=job))
        except psycopg.Error as refused:
            try:
                one = await executor.execute(
                    rescue_jobs(host_id, 1, host_clock=database_time(), only_job=job, refusal=str(refused))
                )
            except psycopg.Error:
                continue  # the connection reports it; the next sweep tries again
        rescued += one
    return rescued
