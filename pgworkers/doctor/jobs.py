"""Checks of jobs: which are stuck, and which wait and why. Checks are pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgworkers.doctor.findings import Finding, Thresholds, fail, jobs_wait_sentence, ok, warn
from pgworkers.events import QueueDepth
from pgworkers.observe.escape import printable, shell_command
from pgworkers.postgres.statements import Query, Statement, query_records
from pgworkers.units import format_duration

_RUNNING = Statement.from_file(__file__, "jobs_running")
_WORKER_GROUPS = Statement.from_file(__file__, "jobs_worker_groups")
_QUEUE_RATES = Statement.from_file(__file__, "jobs_queue_rates")

#: A job is unusual when it runs this many times longer than its task usually does, and this many times the threshold.
UNUSUAL_DURATION_FACTOR = 10.0
UNUSUAL_MINIMUM_FACTOR = 5.0
#: The same for a task without statistics, as a multiple of the threshold.
LONG_WITHOUT_HISTORY_FACTOR = 60.0
_MAX_RECENT_JOBS = 10_000


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job in a worker of a living host.

    `overdue_seconds`: how long it is past its deadline or timeout. `seconds_since_cancel`: since its cancel was requested.
    """

    id: int
    queue: str
    task: str
    host: str
    worker: str
    pid: int
    state: str
    is_stalled: bool
    running_seconds: float
    usual_seconds: float | None = None
    overdue_seconds: float | None = None
    seconds_since_cancel: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """Workers of a queue in the same state, with the same task."""

    queue: str
    state: str
    task: str | None
    count: int
    longest_seconds: float


@dataclass(frozen=True, slots=True)
class QueueRate:
    """The last five minutes of a queue: attempts that ended, and jobs that were enqueued and still wait."""

    queue: str
    ended: int
    enqueued: int


def running_jobs() -> Query[list[RunningJob]]:
    return query_records(_RUNNING, RunningJob)


def worker_groups() -> Query[list[WorkerGroup]]:
    return query_records(_WORKER_GROUPS, WorkerGroup)


def queue_rates() -> Query[list[QueueRate]]:
    return query_records(_QUEUE_RATES, QueueRate, {"max_rows": _MAX_RECENT_JOBS})


def check_stuck_jobs(found: list[RunningJob], stop_seconds: float, tolerance: Thresholds) -> list[Finding]:
    """Find jobs that do not end. `stop_seconds`: how long a job may run after a stop request or its deadline."""
    bad = [
        finding for job in found if (finding := _judge_running_job(job, stop_seconds, tolerance)) is not None
    ]
    longest = max((job.running_seconds for job in found), default=0.0)
    what = f"{len(found)} running" + (f", the longest for {format_duration(longest)}" if found else "")
    return bad or [ok("stuck", what, running=len(found), longest=longest)]


def _late_stop_reason(graces: float) -> str:
    causes = "it is stopped, has no CPU, or waits for processes of the job that do not die"
    return f"its supervisor should have ended it within {format_duration(graces)}: {causes}; the log of the host says which"


def _judge_running_job(job: RunningJob, graces: float, tolerance: Thresholds) -> Finding | None:
    who = f"#{job.id} {job.task} on {job.host} {job.worker} pid {job.pid}"
    show_stack, stop = shell_command("jobs stack", job.id), shell_command("jobs cancel", job.id)
    facts = {"job": job.id, "pid": job.pid, "seconds": job.running_seconds}
    if job.seconds_since_cancel is not None and job.seconds_since_cancel > graces:
        what = f"{who} was cancelled {format_duration(job.seconds_since_cancel)} ago and is still there"
        why = _late_stop_reason(graces)
        return fail(
            "stuck",
            what,
            why,
            shell_command("jobs kill", job.id),
            f"kill -9 {job.pid}  # on {printable(job.host)}",
            **facts,
        )
    if job.state == "suspended":
        if job.running_seconds < tolerance.warn_after_seconds:
            return None
        what, why = (
            f"{who} has been suspended for {format_duration(job.running_seconds)}",
            "it keeps its worker, and its deadline waits",
        )
        return warn("stuck", what, why, shell_command("jobs resume", job.id), stop, **facts)
    if job.overdue_seconds is not None and job.overdue_seconds > graces:
        what = f"{who} is {format_duration(job.overdue_seconds)} past its deadline"
        why = _late_stop_reason(graces)
        return fail("stuck", what, why, show_stack, shell_command("jobs kill", job.id), **facts)
    if job.is_stalled:
        what = (
            f"{who} is stalled: it neither beats nor uses CPU, after {format_duration(job.running_seconds)}"
        )
        why = "its process is stopped, or waits in the kernel (a dead network share); without stall_timeout= it stays"
        return warn("stuck", what, why, show_stack, stop, **facts)
    limit = (
        UNUSUAL_MINIMUM_FACTOR * tolerance.warn_after_seconds
        if job.usual_seconds
        else LONG_WITHOUT_HISTORY_FACTOR * tolerance.warn_after_seconds
    )
    if job.running_seconds > limit and job.running_seconds > UNUSUAL_DURATION_FACTOR * (
        job.usual_seconds or 0.0
    ):
        usually = (
            f"; its kind usually takes {format_duration(job.usual_seconds)}" if job.usual_seconds else ""
        )
        what = f"{who} has run for {format_duration(job.running_seconds)}{usually}"
        why = "it hangs, or has far more to do; it keeps its worker from everything else, and no timeout= ends it"
        return warn("stuck", what, why, show_stack, stop, f"@app.task(timeout=…) on {job.task}", **facts)
    return None


def check_backlog(
    depths: Sequence[QueueDepth], crew: list[WorkerGroup], pace: list[QueueRate], tolerance: Thresholds
) -> list[Finding]:
    """Warn about queues whose oldest ready job waits longer than the threshold, and what their workers do."""
    check, bad = "backlog", []
    paces = {one.queue: one for one in pace}
    for depth in depths:
        oldest = depth.oldest
        if not depth.ready or oldest < tolerance.warn_after_seconds:
            continue
        members = [one for one in crew if one.queue == depth.queue]
        recent = paces.get(depth.queue, QueueRate(depth.queue, 0, 0))
        growing = recent.enqueued > recent.ended
        what = f"{jobs_wait_sentence(depth.ready)} in {depth.queue}, the oldest for {format_duration(oldest)}"
        what += f"; in 5m {recent.ended:,} ended and {recent.enqueued:,} more came" if growing else ""
        why, *fixes = backlog_reason(depth, members)
        how = fail if oldest >= 10 * tolerance.warn_after_seconds and not depth.is_paused else warn
        bad.append(how(check, what, why, *fixes, queue=depth.queue, ready=depth.ready, oldest=oldest))
    longest_wait = max((depth.oldest for depth in depths if depth.ready), default=0.0)
    return bad or [
        ok(
            check,
            f"the oldest ready job has waited for {format_duration(longest_wait)}"
            if longest_wait
            else "nothing waits",
        )
    ]


def backlog_reason(depth: QueueDepth, members: list[WorkerGroup]) -> tuple[str, ...]:
    """Why a queue does not move, and what to do."""
    name = depth.queue
    if depth.is_paused:
        return "the queue is paused", shell_command("queues resume", name)
    if depth.is_throttled:
        return (
            "the queue cools down: a handler raised Throttled",
            "pgworkers queues list  # says for how long; it goes on by itself",
        )
    total = sum(one.count for one in members)
    busy = [one for one in members if one.state in ("busy", "stalled", "suspended")]
    if not total:
        return "the queue has no worker", shell_command("run", Q=name)
    if sum(one.count for one in busy) < total:
        idle = total - sum(one.count for one in busy)
        who = (
            "its only worker does"
            if total == 1
            else f"{idle} of its {total} workers {'does' if idle == 1 else 'do'}"
        )
        return (
            f"{who} nothing: its jobs wait for a concurrency limit, are of a task that no "
            "host has, or its hosts cannot claim",
            "pgworkers queues limits",
            shell_command("jobs list", queue=name, state="ready"),
        )
    doing = ", ".join(
        f"{one.count}x {one.task} (up to {format_duration(one.longest_seconds)})" for one in busy[:3]
    )
    return (
        f"{f'all its {total} workers are' if total > 1 else 'its only worker is'} busy: {doing}",
        "pgworkers top",
        shell_command("queues scale", name, 2 * total),
        f"{shell_command('run', Q=name)}  # on another machine",
    )
