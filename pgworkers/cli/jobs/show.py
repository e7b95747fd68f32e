"""`pgworkers jobs show`: one job with its attempts, what it waits for, and what operators did to it.

For people it is a text (`story`). With `-o json` it is one document.
"""

from __future__ import annotations

import click

from pgworkers.cli import database, output
from pgworkers.cli.formatting import utcnow
from pgworkers.cli.invocation import CliCommand, OutputFormat, invocation_of
from pgworkers.cli.job_changes import no_such_jobs
from pgworkers.cli.parameters import parse_job_id
from pgworkers.errors import NotFound


@click.command("show", cls=CliCommand)
@click.argument("number", metavar="ID", type=parse_job_id)
@click.pass_context
def show_job(ctx: click.Context, *, number: int) -> None:
    """One job as a story: how it stands and why, attempt by attempt.

    \b
    Examples:
      pgworkers jobs show 1042
      pgworkers jobs show 1042 -o json
    """
    from pgworkers.cli.jobs.story import tell_story
    from pgworkers.job import queries
    from pgworkers.job.operations import operations_of_job
    from pgworkers.job.queries import job_situation

    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        job = db.run(queries.get_job(number))
        if job is None:
            raise NotFound(no_such_jobs([number]))
        attempts = db.run(queries.job_attempts(number))
        around = db.run(job_situation(number))
        done = db.run(operations_of_job(number))
    if invocation.output == OutputFormat.TABLE:
        output.print_text(
            "\n".join(tell_story(job, attempts, utcnow(), around, done)), should_keep_lines=True
        )
        return
    document = {
        **output.as_record(job),
        "host_name": around.host,
        "worker": around.worker,
        "pid": around.pid,
        "suspended": around.is_suspended,
        "waits_for": [int(one.split(" ", 1)[0]) for one in around.first_parents],
        "waits_for_batch": around.batch_id,
        "operations": [output.as_record(operation) for operation in done],
        "attempts": [output.as_record(attempt) for attempt in attempts],
    }
    output.print_record(invocation, document)
