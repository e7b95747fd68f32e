"""`pgworkers jobs list`: the newest jobs, filtered by state, queue and task.

A search reads a bounded number of rows, so that it stays cheap on a large table. The command says where it ended.
"""

from __future__ import annotations

from typing import Any

import click

from pgworkers.cli import database, output
from pgworkers.cli.formatting import relative_time, shorten, show_arguments, show_duration, utcnow
from pgworkers.cli.invocation import CliCommand, OutputFormat, invocation_of
from pgworkers.cli.output import Column
from pgworkers.cli.parameters import job_filter_options, parse_job_id, parse_states
from pgworkers.job.model import HELD_STATES, JobState


@click.command("list", cls=CliCommand)
@job_filter_options
@click.option(
    "--limit",
    metavar="N",
    default=20,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="At most this many.",
)
@click.option("--before", metavar="ID", type=parse_job_id, help="Only jobs with smaller ids: the next page.")
@click.pass_context
def list_jobs(
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
    from pgworkers.job import queries

    invocation = invocation_of(ctx)
    chosen = queries.JobFilter(
        states=parse_states(state), queues=queue, tasks=task, limit=limit + 1, before_id=before
    )
    with database.open_database(invocation) as db:
        searched = queries.find_jobs(db.run, chosen)
        found = searched.jobs
        some_run = any(job.state == JobState.RUNNING for job in found)
        workers = db.run(queries.list_workers()) if some_run else []
    still = {(worker.host, worker.job_id) for worker in workers if worker.state == "suspended"}
    listed = [{**output.as_record(job), "suspended": (job.host, job.id) in still} for job in found[:limit]]
    output.print_rows(invocation, listed, _columns(), if_empty="no jobs", quiet_column="id")
    if len(found) > limit and invocation.output == OutputFormat.TABLE:
        output.print_note(
            invocation,
            f"there are more: --limit shows more than {limit}, --before {found[limit - 1].id} the next ones,"
            " --state --queue --task narrow it",
        )
    elif searched.before_id is not None and len(found) <= limit and invocation.output == OutputFormat.TABLE:
        output.print_note(
            invocation,
            f"looked at the newest {queries.MAX_SEARCHED_ROWS:,} jobs: --before {searched.before_id} continues there",
        )
    if searched.is_partial:
        output.print_note(
            invocation,
            f"hosts hold {queries.MAX_HELD_JOBS:,} jobs or more, and this search did not look at all of them",
        )


def _columns() -> list[Column]:
    now = utcnow()
    return [
        ("id", lambda job: str(job["id"])),
        ("state", lambda job: "suspended" if job["suspended"] else str(job["state"])),
        ("queue", lambda job: job["queue"]),
        ("task", lambda job: job["task"]),
        ("arguments", lambda job: shorten(show_arguments(job["args"]))),
        ("attempt", lambda job: f"{job['attempt']}/{job['max_attempts']}"),
        ("created", lambda job: relative_time(job["created_at"], now)),
        ("ran", lambda job: _show_run_time(job, now)),
        # of a job that runs again, how the run before ended is the story's (`jobs show`)
        ("error", lambda job: "" if job["state"] in HELD_STATES else shorten(job["error"] or "")),
    ]


def _show_run_time(job: dict[str, Any], now: Any) -> str:
    """How long it ran, since when it runs, or when it will."""
    if job["state"] == JobState.RUNNING and job["started_at"] is not None:
        return "for " + show_duration(max(0.0, (now - job["started_at"]).total_seconds()))
    if job["state"] == JobState.SCHEDULED:
        return relative_time(job["run_at"], now)
    return show_duration(job["duration"])
