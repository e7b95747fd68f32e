"""`pgworkers jobs`: list, show and await jobs; changing them is in `bulk`."""

from __future__ import annotations

from typing import Any

import click

from pgworkers.cli import bulk, inside, output, place
from pgworkers.cli.choosing import filters, states
from pgworkers.cli.invocation import Group, Invocation, said
from pgworkers.cli.output import Column
from pgworkers.cli.values import duration, job_id
from pgworkers.cli.wording import ago, arguments, lasting, short, utcnow
from pgworkers.clock import seconds as seconds_of
from pgworkers.errors import NotFound, PgworkersError, UsageError
from pgworkers.job.state import HELD, TERMINAL, State


@click.group(cls=Group)
def jobs() -> None:
    """List, show, await, retry, cancel, discard jobs; move a deadline; look inside, suspend, resume, kill."""


@jobs.command("list")
@filters
@click.option(
    "--limit",
    metavar="N",
    default=20,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="At most this many.",
)
@click.option("--before", metavar="ID", type=job_id, help="Only jobs with smaller ids: the next page.")
@click.pass_context
def list_(
    ctx: click.Context,
    *,
    state: tuple[str, ...],
    queue: tuple[str, ...],
    task: tuple[str, ...],
    limit: int,
    before: int | None,
) -> None:
    """Jobs, the newest first.

    A job that is `claimed` belongs to a host, and no worker is known to have it: it waits there, or began a moment ago.
    `--state running` leaves it out; `--state claimed --state running` is all that hosts hold.

    A search looks at up to a million jobs. If there are more, it says where it ended, and --before continues there.

    \b
    Examples:
      pgworkers jobs list
      pgworkers jobs list --state dead --state cancelled --queue reports
      pgworkers jobs list --state running -o json
      pgworkers jobs list --state dead -q          only the ids
    """
    from pgworkers.job import show
    from pgworkers.postgres.statements import run

    invocation = said(ctx)
    chosen = show.Filter(states=states(state), queues=queue, tasks=task, limit=limit + 1, before=before)
    with place.database(invocation) as db:
        searched = show.find(lambda query: run(db.conn, db.schema, query), chosen)
        found = searched.jobs
        some_run = any(job.state == State.RUNNING for job in found)
        workers = run(db.conn, db.schema, show.workers()) if some_run else []
    still = {(worker.host, worker.job_id) for worker in workers if worker.state == "suspended"}
    listed = [{**output.record(job), "suspended": (job.host, job.id) in still} for job in found[:limit]]
    output.rows(invocation, listed, _columns(), empty="no jobs", key="id")
    if len(found) > limit and invocation.output == "table":
        output.note(
            invocation,
            f"there are more: --limit shows more than {limit}, --before {found[limit - 1].id} the next ones,"
            " --state --queue --task narrow it",
        )
    elif searched.before is not None and len(found) <= limit and invocation.output == "table":
        output.note(
            invocation,
            f"looked at the newest {show.MAX_LOOKED:,} jobs: --before {searched.before} continues there",
        )
    if searched.is_partial:
        output.note(
            invocation,
            f"hosts hold {show.MAX_HELD:,} jobs or more, and this search did not look at all of them",
        )


@jobs.command("show")
@click.argument("number", metavar="ID", type=job_id)
@click.pass_context
def show_(ctx: click.Context, *, number: int) -> None:
    """One job as a story: how it stands and why, attempt by attempt.

    \b
    Examples:
      pgworkers jobs show 1042
      pgworkers jobs show 1042 -o json
    """
    from pgworkers.cli.story import tell
    from pgworkers.job import show
    from pgworkers.job.operation import operations
    from pgworkers.job.standing import standing
    from pgworkers.postgres.statements import run

    invocation = said(ctx)
    with place.database(invocation) as db:
        job = run(db.conn, db.schema, show.get(number))
        if job is None:
            raise NotFound(missing([number]))
        attempts = run(db.conn, db.schema, show.attempts(number))
        around = run(db.conn, db.schema, standing(number))
        done = run(db.conn, db.schema, operations(number))
    if invocation.output == "table":
        output.say("\n".join(tell(job, attempts, utcnow(), around, done)), lines=True)
        return
    told = {
        **output.record(job),
        "host_name": around.host,
        "worker": around.worker,
        "pid": around.pid,
        "suspended": around.suspended,
        "waits_for": [int(one.split(" ", 1)[0]) for one in around.named],
        "waits_for_batch": around.batch,
        "operations": [output.record(operation) for operation in done],
        "attempts": [output.record(attempt) for attempt in attempts],
    }
    if invocation.output == "json":
        output.document(told)
    else:
        output.line(told)


@jobs.command("wait")
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, type=job_id)
@click.option(
    "--timeout", metavar="TIME", type=duration, help="Give up after this long, e.g. 30s; the jobs go on."
)
@click.pass_context
def wait(ctx: click.Context, *, job_ids: tuple[int, ...], timeout: float | None) -> int:
    """Wait until jobs have ended; exit code 1 unless all succeeded.

    \b
    Examples:
      pgworkers jobs wait 1042
      pgworkers jobs wait --timeout 5m 1042 1043 && echo both succeeded
    """
    from pgworkers.cli.waiting import until_ended

    invocation = said(ctx)
    with place.database(invocation) as db:
        ended = until_ended(db, job_ids, timeout)
    return tell_ends(invocation, ended)


@jobs.command("deadline")
@click.argument("job", metavar="ID", type=job_id)
@click.argument("when", metavar="+TIME|now")
@click.pass_context
def deadline(ctx: click.Context, *, job: int, when: str) -> None:
    """Give a job more or less time: it must end within TIME from now.

    The deadline of the whole job is moved. If it runs, its host hears of it at once, and the new deadline counts
    instead of the timeout of this attempt. `now` stops it as a timeout does; to call a job off, use jobs cancel.

    \b
    Examples:
      pgworkers jobs deadline 1042 +10m
      pgworkers jobs deadline 1042 now
    """
    from pgworkers.job.deadline import set_deadline
    from pgworkers.job.operation import note
    from pgworkers.postgres.statements import run

    seconds = _within(when)
    invocation = said(ctx)
    with place.database(invocation) as db:
        state = run(db.conn, db.schema, set_deadline(job, seconds, note()))
    if state is None:
        raise NotFound(missing([job]))
    if State(state) in TERMINAL:
        raise PgworkersError(f"job #{job} is {state}; nothing was done")
    if invocation.output == "table":
        text = "now" if seconds == 0 else f"{lasting(seconds)} from now"
        output.note(invocation, f"#{job} ({state}) must end {text}")
    else:
        row = {"id": job, "state": state, "seconds": seconds}
        output.document(row) if invocation.output == "json" else output.line(row)


def _within(when: str) -> float:
    """`now`, or `+10m`: seconds from now."""
    if when == "now":
        return 0.0
    if not when.startswith("+"):
        raise UsageError(f"{when!r} is no deadline: write now, or a time from now such as +10m")
    return seconds_of(when[1:], what="the deadline")


def tell_ends(invocation: Invocation, ended: list[Any]) -> int:
    """Print how jobs ended; 0 when all of them succeeded."""
    output.rows(invocation, ended, _ENDS, empty="", key="id")
    return 0 if all(job.state == State.SUCCEEDED for job in ended) else 1


def missing(ids: list[int]) -> str:
    """The text for jobs that are not there."""
    listed = ", ".join(f"#{one}" for one in ids[:10]) + (", …" if len(ids) > 10 else "")
    return f"there is no job {listed}; pgworkers jobs list shows what there is"


def _columns() -> list[Column]:
    now = utcnow()
    return [
        ("id", lambda job: str(job["id"])),
        ("state", lambda job: "suspended" if job["suspended"] else str(job["state"])),
        ("queue", lambda job: job["queue"]),
        ("task", lambda job: job["task"]),
        ("arguments", lambda job: short(arguments(job["args"]))),
        ("attempt", lambda job: f"{job['attempt']}/{job['max_attempts']}"),
        ("created", lambda job: ago(job["created_at"], now)),
        ("ran", lambda job: _ran(job, now)),
        # of a job that runs again, how the run before ended is the story's (`jobs show`)
        ("error", lambda job: "" if job["state"] in HELD else short(job["error"] or "")),
    ]


def _ran(job: dict[str, Any], now: Any) -> str:
    """How long it ran, since when it runs, or when it will."""
    if job["state"] == State.RUNNING and job["started_at"] is not None:
        return "for " + lasting(max(0.0, (now - job["started_at"]).total_seconds()))
    if job["state"] == State.SCHEDULED:
        return ago(job["run_at"], now)
    return lasting(job["duration"])


_ENDS: list[Column] = [
    ("id", lambda job: str(job.id)),
    ("state", lambda job: str(job.state)),
    ("task", lambda job: job.task),
    ("ran", lambda job: lasting(job.duration)),
    ("result", lambda job: short(_result(job))),
]


def _result(job: Any) -> str:
    from pgworkers.cli.wording import compact

    return compact(job.result) if job.state == State.SUCCEEDED else (job.error or job.verdict or "")


for _verb in (
    bulk.retry,
    bulk.cancel,
    bulk.discard,
    inside.stack,
    inside.suspend,
    inside.resume,
    inside.kill,
):
    jobs.add_command(_verb)
