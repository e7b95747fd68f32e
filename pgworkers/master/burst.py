"""When `run --burst` ends, and what it logs about the jobs that it leaves behind or waits for."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import psycopg

from pgworkers.clock import monotonic
from pgworkers.job import burst as burst_queries
from pgworkers.job import claim
from pgworkers.job.burst import MAX_LEFT_BEHIND_ROWS, BusyHost, LeftBehind
from pgworkers.master.boot import ServedApp
from pgworkers.master.connection import ConnectionDown, QueryExecutor
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.finisher import Finisher
from pgworkers.master.lifecycle import HostLifecycle
from pgworkers.master.supervisors import SupervisorPool
from pgworkers.observe.escape import printable, shell_command
from pgworkers.settings import Settings
from pgworkers.units import format_duration

QUEUES_EMPTY_TEXT = "burst: the queues are empty"
#: Reasons for jobs left behind that are logged, each in its own line.
MAX_REASON_LINES = 20
#: A burst in which nothing has run for this long logs what it waits for.
BURST_REPORT_SECONDS = 5.0


class BurstWatcher:
    """Makes the host leave when nothing is left that it could run.

    Its queries run on the connection `leadership`.
    """

    def __init__(
        self,
        *,
        host_id: str,
        executor: QueryExecutor,
        served: ServedApp,
        settings: Settings,
        lifecycle: HostLifecycle,
        dispatcher: Dispatcher,
        finisher: Finisher,
        supervisors: SupervisorPool,
    ) -> None:
        self._host_id = host_id
        self._executor = executor
        self._served = served
        self._settings = settings
        self._lifecycle = lifecycle
        self._dispatcher = dispatcher
        self._finisher = finisher
        self._supervisors = supervisors
        self._started_at = monotonic()
        self._last_busy_at: float | None = monotonic()  # None: what it waits for was logged since then
        self._reported_hosts: set[UUID] = set()  # whose jobs it has logged that it waits for

    def is_check_due(self) -> bool:
        """True if nothing runs here and all results are written."""
        if self._dispatcher.busy_workers():
            self._last_busy_at = monotonic()
            return False
        return not self._lifecycle.is_leaving and not len(self._finisher)

    async def check(self) -> None:
        """Leave if nothing is left, or log what the burst waits for."""
        if self._supervisors.errors:
            self._lifecycle.has_failed = True
            errors = "; ".join(f"queue {queue}: {error}" for queue, error in self._supervisors.errors.items())
            self._lifecycle.leave(f"burst: {errors}")
            return
        queues, tasks = list(self._served.queues), list(self._dispatcher.tasks)
        execute = self._executor.execute
        try:
            found = await execute(burst_queries.unfinished_work(queues, tasks))
            while found.next_place is not None and not found.jobs:
                found = await execute(burst_queries.unfinished_work(queues, tasks, found.next_place))
            if not found.jobs:
                for queue in found.crowded_queues:
                    await execute(claim.park(queue, tasks, burst_queries.UNFINISHED_SCAN_ROWS))
            if not found.is_finished or self._dispatcher.busy_workers():
                await self._report_waiting(found.jobs)
                return
            why, *rest = burst_end_lines(await execute(burst_queries.jobs_left_behind(queues, tasks)))
        except (ConnectionDown, psycopg.Error):
            return
        if self._lifecycle.is_leaving or self._dispatcher.busy_workers():
            return
        for line in rest:
            self._lifecycle.note(line)
        self._lifecycle.leave(why)

    async def _report_waiting(self, jobs: int) -> None:
        """Log what the burst waits for, so that it does not look as if it hung."""
        if self._dispatcher.busy_workers():
            return
        for other in await self._executor.execute(
            burst_queries.other_busy_hosts(self._host_id, list(self._served.queues))
        ):
            if other.id not in self._reported_hosts:
                self._reported_hosts.add(other.id)
                own = self._settings.lease_duration - (monotonic() - self._started_at)
                self._lifecycle.note(waiting_sentence(other, own, self._settings.rescue_interval))
        if self._last_busy_at is not None and monotonic() - self._last_busy_at > BURST_REPORT_SECONDS:
            self._last_busy_at = None
            more = " or more" if jobs >= burst_queries.UNFINISHED_SCAN_ROWS else ""
            what = f"{jobs}{more} jobs" if jobs > 1 else "a job"
            self._lifecycle.note(
                f"burst: waiting for {what}: to be retried, behind a throttle or a limit, or on another host"
            )


def burst_end_lines(left: Sequence[LeftBehind]) -> list[str]:
    """Why the burst ends, and then a line for each reason why something stays."""
    if not left:
        return [QUEUES_EMPTY_TEXT]
    total = sum(one.count for one in left)
    more = " or more" if total >= MAX_LEFT_BEHIND_ROWS else ""
    lines = [
        f"burst: nothing is left that could run now; {_job_count(total, more)} {'stays' if total == 1 else 'stay'}"
    ]
    lines += [
        f"left: {_job_count(one.count)} of {printable(one.task)}: {_reason_text(one)}"
        for one in left[:MAX_REASON_LINES]
    ]
    if len(left) > MAX_REASON_LINES:
        lines.append(
            f"left: and others for {len(left) - MAX_REASON_LINES} more reasons; pgworkers jobs list shows them"
        )
    return lines


def waiting_sentence(other: BusyHost, own: float, rescue: float) -> str:
    """Whom a burst waits for.

    `own`: seconds until this host may call others lost; `rescue`: between two rescues. Pure.
    """
    one = other.jobs == 1
    jobs = "1 job" if one else f"{other.jobs} jobs"
    who = f"host {str(other.id)[:8]} ({other.name}, pid {other.pid})"
    within = format_duration(round(max(other.lease_seconds - other.silent_seconds, own, 0.0) + rescue))
    rescued = f"if it is gone, {'it is' if one else 'they are'} rescued within {within}"
    return f"waits for {jobs} of {who}, which renewed {format_duration(round(other.silent_seconds))} ago; {rescued}"


def _reason_text(one: LeftBehind) -> str:
    queue, task = printable(one.queue), printable(one.task)
    match one.reason:
        case "paused":
            return f"the queue {queue} is paused; {shell_command('queues resume', one.queue)} lets them go on"
        case "no workers":
            undo = shell_command("queues scale", one.queue, default=True)
            return f"the queue {queue} is scaled to 0 workers; {undo} undoes it"
        case "limit":
            return f"the limit of {task}, or of their concurrency key, is 0; pgworkers queues limits shows it"
        case "unknown":
            return f"this app has no task {task}; they wait in {queue} for a host that knows it"
        case "held":
            return f"they wait in {queue} for other jobs, or for their batch"
        case "later" if one.due_in_seconds is not None:
            first = "scheduled for" if one.count == 1 else "the first is scheduled for"
            return f"{first} {format_duration(max(1, round(one.due_in_seconds)))} from now, in {queue}"
        case "running":
            return f"taken from {queue} just now"
    return f"came to {queue} just now"


def _job_count(count: int, more: str = "") -> str:
    return f"{count}{more} {'job' if count == 1 and not more else 'jobs'}"
