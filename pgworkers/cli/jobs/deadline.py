"""`pgworkers jobs deadline`: move the deadline of a job, also while it runs."""

from __future__ import annotations

import click

from pgworkers.cli import database, output
from pgworkers.cli.formatting import show_duration
from pgworkers.cli.invocation import CliCommand, OutputFormat, invocation_of
from pgworkers.cli.job_changes import no_such_jobs
from pgworkers.cli.parameters import parse_job_id
from pgworkers.errors import NotFound, PgworkersError, UsageError
from pgworkers.job.model import TERMINAL_STATES, JobState
from pgworkers.units import parse_duration as seconds_of


@click.command("deadline", cls=CliCommand)
@click.argument("job", metavar="ID", type=parse_job_id)
@click.argument("when", metavar="+TIME|now")
@click.pass_context
def deadline(ctx: click.Context, *, job: int, when: str) -> None:
    """Move the deadline of a job to TIME from now.

    The deadline of the whole job is moved. If it runs, its host is notified at once, and the new deadline counts
    instead of the timeout of this attempt. `now` stops it as a timeout does; to call a job off, use jobs cancel.

    \b
    Examples:
      pgworkers jobs deadline 1042 +10m
      pgworkers jobs deadline 1042 now
    """
    from pgworkers.job.cancel import set_deadline
    from pgworkers.job.operations import make_note

    seconds = _parse_deadline(when)
    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        state = db.run(set_deadline(job, seconds, make_note()))
    if state is None:
        raise NotFound(no_such_jobs([job]))
    if JobState(state) in TERMINAL_STATES:
        raise PgworkersError(f"job #{job} is {state}; nothing was done")
    if invocation.output == OutputFormat.TABLE:
        text = "now" if seconds == 0 else f"{show_duration(seconds)} from now"
        output.print_note(invocation, f"#{job} ({state}) must end {text}")
    else:
        row = {"id": job, "state": state, "seconds": seconds}
        output.print_record(invocation, row)


def _parse_deadline(when: str) -> float:
    """`now`, or `+10m`: seconds from now."""
    if when == "now":
        return 0.0
    if not when.startswith("+"):
        raise UsageError(f"{when!r} is not a deadline: write now, or a time from now such as +10m")
    return seconds_of(when[1:], what="the deadline")
