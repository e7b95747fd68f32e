"""What is stuck, and what waits and why. Judgements are pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgworkers.clock import show_seconds
from pgworkers.doctor.finding import Finding, Tolerance, fail, ok, wait, warn
from pgworkers.observe.escape import command, printable
from pgworkers.postgres.statements import Query, Statement
from pgworkers.sightings import QueueDepth

_RUNNING = Statement.beside(__file__, "running")
_CREW = Statement.beside(__file__, "crew")
_PACE = Statement.beside(__file__, "pace")

#: A job is strange when it runs so many times longer than its kind, and so many times the patience.
UNUSUAL = 10.0
AT_LEAST = 5.0
#: Without anything to compare with: so many times the patience.
LONG = 60.0
_LOOK = 10_000


@dataclass(frozen=True, slots=True)
class Running:
    """A job in a worker of a living host. Seconds; `over`: past its deadline or timeout, `cancelled`: since the wish."""

    id: int
    queue: str
    task: str
    host: str
    worker: str
    pid: int
    state: str
    stalled: bool
    since: float
    usual: float | None = None
    over: float | None = None
    cancelled: float | None = None


@dataclass(frozen=True, slots=True)
class Crew:
    """Workers of a queue in the same state, with the same task."""

    queue: str
    state: str
    task: str | None
    count: int
    longest: float


@dataclass(frozen=True, slots=True)
class Pace:
    """The last five minutes of a queue: attempts that ended, jobs that came and still wait."""

    queue: str
    ended: int
    came: int


def running() -> Query[list[Running]]:
    return Query(_RUNNING, {}, lambda rows: [Running(*row) for row in rows])


def crews() -> Query[list[Crew]]:
    return Query(_CREW, {}, lambda rows: [Crew(*row) for row in rows])


def paces() -> Query[list[Pace]]:
    return Query(_PACE, {"look": _LOOK}, lambda rows: [Pace(*row) for row in rows])


def stuck(found: list[Running], graces: float, tolerance: Tolerance) -> list[Finding]:
    """`graces`: how long after a wish or a deadline a job may still be there."""
    bad = [finding for job in found if (finding := _odd(job, graces, tolerance)) is not None]
    longest = max((job.since for job in found), default=0.0)
    what = f"{len(found)} running" + (f", the longest for {show_seconds(longest)}" if found else "")
    return bad or [ok("stuck", what, running=len(found), longest=longest)]


def _late(graces: float) -> str:
    causes = "it is stopped, has no CPU, or waits for processes of the job that do not die"
    return f"its supervisor should have ended it within {show_seconds(graces)}: {causes}; the log of the host says which"


def _odd(job: Running, graces: float, tolerance: Tolerance) -> Finding | None:
    who = f"#{job.id} {job.task} on {job.host} {job.worker} pid {job.pid}"
    look, stop = command("jobs stack", job.id), command("jobs cancel", job.id)
    facts = {"job": job.id, "pid": job.pid, "seconds": job.since}
    if job.cancelled is not None and job.cancelled > graces:
        what = f"{who} was cancelled {show_seconds(job.cancelled)} ago and is still there"
        why = _late(graces)
        return fail(
            "stuck",
            what,
            why,
            command("jobs kill", job.id),
            f"kill -9 {job.pid}  # on {printable(job.host)}",
            **facts,
        )
    if job.state == "suspended":
        if job.since < tolerance.patience:
            return None
        what, why = (
            f"{who} has been suspended for {show_seconds(job.since)}",
            "it keeps its worker, and its deadline waits",
        )
        return warn("stuck", what, why, command("jobs resume", job.id), stop, **facts)
    if job.over is not None and job.over > graces:
        what = f"{who} is {show_seconds(job.over)} past its deadline"
        why = _late(graces)
        return fail("stuck", what, why, look, command("jobs kill", job.id), **facts)
    if job.stalled:
        what = f"{who} is stalled: it neither beats nor uses CPU, after {show_seconds(job.since)}"
        why = "its process is stopped, or waits in the kernel (a dead network share); without stall_timeout= it stays"
        return warn("stuck", what, why, look, stop, **facts)
    limit = AT_LEAST * tolerance.patience if job.usual else LONG * tolerance.patience
    if job.since > limit and job.since > UNUSUAL * (job.usual or 0.0):
        usually = f"; its kind usually takes {show_seconds(job.usual)}" if job.usual else ""
        what = f"{who} has run for {show_seconds(job.since)}{usually}"
        why = "it hangs, or has far more to do; it keeps its worker from everything else, and no timeout= ends it"
        return warn("stuck", what, why, look, stop, f"@app.task(timeout=…) on {job.task}", **facts)
    return None


def backlog(
    depths: Sequence[QueueDepth], crew: list[Crew], pace: list[Pace], tolerance: Tolerance
) -> list[Finding]:
    """Queues whose oldest ready job waits longer than the patience, with what their workers are busy with."""
    check, bad = "backlog", []
    paces = {one.queue: one for one in pace}
    for depth in depths:
        oldest = depth.oldest
        if not depth.ready or oldest < tolerance.patience:
            continue
        members = [one for one in crew if one.queue == depth.queue]
        recent = paces.get(depth.queue, Pace(depth.queue, 0, 0))
        growing = recent.came > recent.ended
        what = f"{wait(depth.ready)} in {depth.queue}, the oldest for {show_seconds(oldest)}"
        what += f"; in 5m {recent.ended:,} ended and {recent.came:,} more came" if growing else ""
        why, *fixes = reason(depth, members)
        how = fail if oldest >= 10 * tolerance.patience and not depth.paused else warn
        bad.append(how(check, what, why, *fixes, queue=depth.queue, ready=depth.ready, oldest=oldest))
    most = max((depth.oldest for depth in depths if depth.ready), default=0.0)
    return bad or [
        ok(check, f"the oldest ready job has waited for {show_seconds(most)}" if most else "nothing waits")
    ]


def reason(depth: QueueDepth, members: list[Crew]) -> tuple[str, ...]:
    """Why a queue does not move, and what to do."""
    name = depth.queue
    if depth.paused:
        return "the queue is paused", command("queues resume", name)
    if depth.throttled:
        return (
            "the queue cools down: a handler raised Throttled",
            "pgworkers queues list  # says for how long; it goes on by itself",
        )
    total = sum(one.count for one in members)
    busy = [one for one in members if one.state in ("busy", "stalled", "suspended")]
    if not total:
        return "the queue has no worker", command("run", Q=name)
    if sum(one.count for one in busy) < total:
        idle = total - sum(one.count for one in busy)
        who = (
            "its only worker does"
            if total == 1
            else f"{idle} of its {total} workers {'does' if idle == 1 else 'do'}"
        )
        return (
            f"{who} nothing: its jobs stand behind a concurrency limit, are of a task nobody "
            "knows, or its hosts cannot claim",
            "pgworkers queues limits",
            command("jobs list", queue=name, state="ready"),
        )
    doing = ", ".join(f"{one.count}x {one.task} (up to {show_seconds(one.longest)})" for one in busy[:3])
    return (
        f"{f'all its {total} workers are' if total > 1 else 'its only worker is'} busy: {doing}",
        "pgworkers top",
        command("queues scale", name, 2 * total),
        f"{command('run', Q=name)}  # on another machine",
    )
