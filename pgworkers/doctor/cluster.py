"""Checks of the cluster: hosts, their leader, and queues, tasks and schedules that no host serves. Checks are pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from pgworkers.doctor.findings import (
    Finding,
    Thresholds,
    fail,
    jobs_wait_sentence,
    ok,
    psql_command,
    show_job_count,
    skip,
    warn,
)
from pgworkers.events import QueueDepth
from pgworkers.job.gauges import UnknownTask
from pgworkers.job.hosts import LockHolder
from pgworkers.job.queries import HostView
from pgworkers.observe.escape import shell_command
from pgworkers.postgres.statements import Query, Statement, query_records
from pgworkers.units import format_duration

_LEADER_TERM = Statement.from_file(__file__, "cluster_leader_term")
_START_FAILURES = Statement.from_file(__file__, "cluster_start_failures")
_SCHEDULES = Statement.from_file(__file__, "cluster_schedules")
_PAUSED_QUEUES = Statement.from_file(__file__, "cluster_paused_queues")
_GRANTS_WITHOUT_ROLE = Statement.from_file(__file__, "cluster_grants_without_role")
_MISSING_MUTEXES = Statement.from_file(__file__, "cluster_missing_mutexes")

#: Rows of the table `mutex`: the migration makes them, and limits and batches lock them.
MUTEX_ROWS = 2048
#: How long hosts may be without a leader: a new one is found in seconds, a frozen one is deposed after its lease.
LEADERLESS_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """A schedule and its last tick. `overdue_seconds`: since the leader should have looked at it; negative: not yet."""

    name: str
    scope: str
    task: str
    is_paused: bool
    error: str | None
    overdue_seconds: float
    is_task_known: bool
    seconds_since_tick: float | None = None  # seconds ago
    reason: str | None = None  # why the last tick made no job
    last_job: int | None = None
    is_last_job_running: bool = False

    @property
    def full_name(self) -> str:
        return f"{self.name}/{self.scope}" if self.scope else self.name


@dataclass(frozen=True, slots=True)
class LeaderTerm:
    """The term of the host that leads. `seconds_left`: seconds until it runs out; negative: it ran out."""

    host: UUID
    seconds_left: float


@dataclass(frozen=True, slots=True)
class PausedQueue:
    queue: str
    is_paused: bool  # else: an operator gave it no workers
    seconds: float


@dataclass(frozen=True, slots=True)
class StartFailure:
    """A queue whose workers cannot start on one host."""

    host: str
    pid: int
    queue: str
    error: str
    traceback: str


def start_failures() -> Query[list[StartFailure]]:
    return query_records(_START_FAILURES, StartFailure)


def check_starts(found: list[StartFailure]) -> list[Finding]:
    """Workers that cannot start: a start hook that fails, an app that cannot be imported there."""
    why = "the host tries again after growing pauses, and jobs of the queue wait meanwhile"
    bad = [
        fail(
            "starts",
            f"no worker of {one.queue} starts on {one.host} (pid {one.pid}): {one.error}",
            why,
            "correct what the traceback names and deploy, or send the host SIGHUP",
            queue=one.queue,
            host=one.host,
            traceback=one.traceback,
        )
        for one in found
    ]
    return bad or [ok("starts", "workers start")]


def leader_term() -> Query[LeaderTerm | None]:
    """The term of leadership, if a host has one."""
    return Query(_LEADER_TERM, {}, lambda found: found[0] if found else None, record=LeaderTerm)


def schedule_status() -> Query[list[ScheduleStatus]]:
    return query_records(_SCHEDULES, ScheduleStatus)


def paused_queues() -> Query[list[PausedQueue]]:
    return query_records(_PAUSED_QUEUES, PausedQueue)


def grants_without_role() -> Query[list[tuple[str, list[int]]]]:
    """Roles that have enqueue grants and do not exist, each with the ids of its grants."""
    return Query(_GRANTS_WITHOUT_ROLE, {}, lambda rows: [(row[0], list(row[1])) for row in rows])


def check_grants(found: list[tuple[str, list[int]]]) -> list[Finding]:
    """Grants of roles that do not exist, and so limit no login."""
    why = (
        "a grant names its role by text: a renamed login no longer has its old grants, "
        "and a login without a grant may enqueue every task in every queue"
    )
    bad = [
        warn(
            "grants",
            f"the role {role} has enqueue grants ({', '.join(map(str, ids))}) and does not exist",
            why,
            "give the new name the same grants: pgworkers grants add NEW_NAME …; then "
            + shell_command("grants remove", *ids),
            role=role,
            grants=ids,
        )
        for role, ids in found
    ]
    return bad or [ok("grants", "each is of a role that exists")]


def missing_mutexes() -> Query[int]:
    """How many of the rows that limits and batches lock are missing."""
    return Query(_MISSING_MUTEXES, {"rows": MUTEX_ROWS}, lambda rows: int(rows[0][0]))


def check_mutexes(missing: int) -> list[Finding]:
    """Check the rows of the table `mutex`. A limit or a batch without its row waits for ever."""
    if not missing:
        return [ok("mutexes", "every row that limits and batches lock is there")]
    return [
        fail(
            "mutexes",
            f"{missing:,} of {MUTEX_ROWS:,} rows are missing in the table mutex",
            "jobs behind a concurrency limit are not claimed, and batches do not complete, when their row is missing",
            psql_command(
                f"INSERT INTO {{schema}}.mutex SELECT generate_series(0, {MUTEX_ROWS - 1}) ON CONFLICT DO NOTHING"
            ),
            missing=missing,
        )
    ]


def check_hosts(
    found: Sequence[HostView], waiting: int, now_ages: Sequence[float], tolerance: Thresholds
) -> list[Finding]:
    """`now_ages`: seconds since each host renewed; `waiting`: ready jobs of all queues."""
    check, bad = "hosts", []
    for host, age in zip(found, now_ages, strict=True):
        if not host.is_stale:
            continue
        what = f"{host.name} (pid {host.pid}) has not renewed for {format_duration(age)}"
        if host.running:
            late = age > host.lease + tolerance.warn_after_seconds
            what += f" and still holds {host.running} jobs" if host.running != 1 else " and still holds a job"
            why = "the leader rescues its jobs when its lease expires" + (
                ", and this has not happened" if late else ", within seconds"
            )
            fix = "pgworkers duties run rescue"
            bad.append((fail if late else warn)(check, what, why, fix, host=str(host.id), seconds=age))
        else:
            why = "it crashed, was killed, froze or lost the network; its jobs were rescued; its row is removed later"
            fix = f"on {host.name}: dmesg | grep -i oom; start it again: pgworkers run"
            bad.append(warn(check, what, why, fix, host=str(host.id), seconds=age))
    alive = [host for host in found if not host.is_stale]
    if not alive:
        how = fail if waiting else warn
        what = "no host is running" + (f", and {jobs_wait_sentence(waiting)}" if waiting else "")
        bad.append(
            how(check, what, "nothing runs jobs, fires schedules or rescues lost jobs", "pgworkers run")
        )
    for host in alive:
        if host.state == "draining":
            bad.append(
                warn(
                    check,
                    f"{host.name} (pid {host.pid}) is draining",
                    "it takes no new jobs",
                    "pgworkers hosts",
                )
            )
    versions = sorted({host.version for host in alive if host.state == "running"})
    note = f", {len(versions)} versions of the code" if len(versions) > 1 else ""
    return bad or [ok(check, f"{len(alive)} running{note}", alive=len(alive))]


def check_leader(
    found: Sequence[HostView], ages: Sequence[float], held: LeaderTerm | None, holders: list[LockHolder]
) -> list[Finding]:
    """`ages`: seconds since each host started. `holders`: sessions that have the lock and do not lead."""
    check = "leader"
    alive = [(host, age) for host, age in zip(found, ages, strict=True) if not host.is_stale]
    if not alive:
        return [skip(check, "no host is running")]
    bad = [
        warn(
            check,
            f"the leader's lock is held by a session that does not lead: pid {one.pid}, role {one.user}, "
            f"application {one.application or '(none)'}",
            "duties go on, because the term in pgworkers.leader decides; but any login can hold the lock, and a host never "
            "leaves it behind: find out whose session it is",
            f'psql -c "SELECT pg_terminate_backend({one.pid})"',
            pid=one.pid,
            role=one.user,
        )
        for one in holders
    ]
    if held is None or held.seconds_left <= 0:
        if max(age for _, age in alive) < LEADERLESS_SECONDS:
            return [*bad, ok(check, "none yet: the hosts have just started")]
        what = (
            "no host leads"
            if held is None
            else f"no host leads: the last term ran out {format_duration(-held.seconds_left)} ago"
        )
        why = "no host fires schedules, promotes delayed jobs, rescues jobs of lost hosts or drops old partitions"
        fix = (
            "pgworkers hosts  # and see in their logs why none takes the term;"
            " until then: pgworkers duties run fire_schedules"
        )
        return [*bad, fail(check, what, why, fix)]
    name = next((host.name for host in found if host.id == held.host), f"host {held.host}, which has no row,")
    return bad or [ok(check, f"{name} leads")]


def check_unserved_queues(
    depths: Sequence[QueueDepth], found: Sequence[HostView], tolerance: Thresholds
) -> list[Finding]:
    check, bad = "queues", []
    served = {
        queue
        for host in found
        if not host.is_stale and host.state in ("starting", "running")
        for queue in host.queues
    }
    for depth in depths:
        if depth.queue in served or not depth.ready + depth.scheduled:
            continue
        ready, scheduled = show_job_count(depth.ready), show_job_count(depth.scheduled)
        what = (
            f"no host serves the queue {depth.queue}, which has {ready} ready and {scheduled} scheduled jobs"
        )
        why = "they will wait until a host does; a typing error in queue=… looks like this, too"
        fixes = shell_command("run", Q=depth.queue), shell_command("jobs list", queue=depth.queue)
        bad.append(
            (fail if depth.ready else warn)(check, what, why, *fixes, queue=depth.queue, ready=depth.ready)
        )
    return bad or [ok(check, f"{len(depths)}, each with jobs is served")]


def check_unknown_tasks(found: list[UnknownTask]) -> list[Finding]:
    bad = []
    for stranger in found:
        jobs = "1 job of it waits" if stranger.jobs == 1 else f"{stranger.jobs:,} jobs of it wait"
        what = f"no host has the task {stranger.task}; at least {jobs} in {stranger.queue}"
        why = f"no host will take them; the oldest has waited for {format_duration(stranger.oldest_seconds)}"
        fix = (
            f"start a host whose app has @app.task(name={stranger.task!r}), or give them up: "
            + shell_command("jobs discard", task=stranger.task)
        )
        bad.append(fail("tasks", what, why, fix, task=stranger.task, jobs=stranger.jobs))
    return bad or [ok("tasks", "every ready job is of a task that a host of its queue has")]


def check_schedules(found: list[ScheduleStatus], leads: bool, tolerance: Thresholds) -> list[Finding]:
    check, bad = "schedules", []
    for one in found:
        if one.is_paused:
            fix = shell_command("schedules resume", one.name)
            bad.append(
                warn(
                    check,
                    f"{one.full_name} is paused",
                    "its ticks pass by without a job",
                    fix,
                    schedule=one.name,
                )
            )
        elif one.error:
            what, why = (
                f"{one.full_name} cannot fire: {one.error}",
                "its ticks wait until a deploy corrects it",
            )
            bad.append(
                fail(
                    check,
                    what,
                    why,
                    f"correct it in the app and deploy; {shell_command('schedules next', one.name)}",
                )
            )
        elif one.overdue_seconds > tolerance.warn_after_seconds:
            ago = format_duration(one.overdue_seconds)
            what = f"{one.full_name} is overdue: the leader should have looked at it {ago} ago"
            why = "its jobs are not made" + (
                "; the duty `fire_schedules` fails or is slow" if leads else ": no host leads"
            )
            fixes = (
                ("pgworkers duties run fire_schedules", "pgworkers hosts")
                if leads
                else ("pgworkers run", "pgworkers hosts")
            )
            bad.append(fail(check, what, why, *fixes, schedule=one.name, overdue=one.overdue_seconds))
        elif not one.is_task_known:
            what = f"{one.full_name} makes jobs of {one.task}, which no deploy has declared"
            bad.append(
                fail(
                    check,
                    what,
                    "no host will take them",
                    shell_command("schedules remove", one.name),
                    schedule=one.name,
                )
            )
        elif one.reason == "overlap" and one.is_last_job_running:
            what = f"the last tick of {one.full_name} made no job: its job #{one.last_job} still runs (overlap=skip)"
            why = "as long as that job runs, every tick is passed by"
            fixes = shell_command("jobs stack", one.last_job), shell_command("jobs cancel", one.last_job)
            bad.append(warn(check, what, why, *fixes, schedule=one.name, job=one.last_job))
    return bad or [ok(check, f"{len(found)}, none overdue")]


def check_paused_queues(
    found: list[PausedQueue], depths: Sequence[QueueDepth], tolerance: Thresholds
) -> list[Finding]:
    """Warn about pauses longer than the threshold; fail after ten times that if jobs wait."""
    check, bad = "paused", []
    ready = {depth.queue: depth.ready for depth in depths}
    exact = all(depth.is_exact for depth in depths)
    for one in found:
        if one.seconds < tolerance.warn_after_seconds:
            continue
        waiting = ready.get(one.queue, 0)
        if one.is_paused:
            what = f"{one.queue} has been paused for {format_duration(one.seconds)}"
            fix = shell_command("queues resume", one.queue)
        else:
            what = f"{one.queue} was scaled to 0 workers {format_duration(one.seconds)} ago"
            fix = shell_command("queues scale", one.queue, 1)
        what += f"; {jobs_wait_sentence(waiting)}" if waiting else ""
        if not exact:
            what += "; jobs that hosts have claimed are not counted, because a session locks the table host"
        how = fail if waiting and one.seconds >= 10 * tolerance.warn_after_seconds else warn
        bad.append(how(check, what, "no job of it starts", fix, queue=one.queue, seconds=one.seconds))
    if bad:
        return bad
    return [
        ok(
            check,
            f"{len(found)} for less than {format_duration(tolerance.warn_after_seconds)}"
            if found
            else "no queue is",
        )
    ]
