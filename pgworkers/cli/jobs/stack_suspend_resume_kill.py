"""`pgworkers jobs stack | suspend | resume | kill`: act on the process of a running job, on any host."""

from __future__ import annotations

import click

from pgworkers.cli import database, output
from pgworkers.cli.invocation import CliCommand, OutputFormat, invocation_of
from pgworkers.cli.parameters import parse_job_id
from pgworkers.errors import PgworkersError


def _send_request(ctx: click.Context, kind: str, number: int) -> None:
    from pgworkers.cli import host_requests
    from pgworkers.job.requests import RequestKind

    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        answer = host_requests.request_for_job(db, RequestKind(kind), number)
    if answer.is_done is None:
        raise PgworkersError(
            f"job #{number}: its host did not answer; pgworkers hosts shows whether it lives"
        )
    if not answer.is_done:
        raise PgworkersError(f"job #{number}: {answer.text}")
    if invocation.output == OutputFormat.TABLE:
        if kind == "stack":
            output.print_text(answer.text or "", should_keep_lines=True)
        else:
            output.print_text(f"#{number} {answer.text}")
    else:
        output.print_json({"id": number, kind: answer.text})


@click.command("stack", cls=CliCommand)
@click.argument("number", metavar="ID", type=parse_job_id)
@click.pass_context
def stack(ctx: click.Context, *, number: int) -> None:
    """The Python stack of a running job, now, without stopping it.

    Works on any host, also while C code holds the interpreter's lock. It is done by a signal: Python's own calls go
    on where they were, but C code that does not begin an interrupted call again (EINTR) may end a wait early.

    \b
    Examples:
      pgworkers jobs stack 1042
    """
    _send_request(ctx, "stack", number)


@click.command("suspend", cls=CliCommand)
@click.argument("number", metavar="ID", type=parse_job_id)
@click.pass_context
def suspend(ctx: click.Context, *, number: int) -> None:
    """Suspend a running job (SIGSTOP). It keeps its lease, and its deadline is paused.

    \b
    Examples:
      pgworkers jobs suspend 1042
      pgworkers jobs resume 1042
    """
    _send_request(ctx, "suspend", number)


@click.command("resume", cls=CliCommand)
@click.argument("number", metavar="ID", type=parse_job_id)
@click.pass_context
def resume(ctx: click.Context, *, number: int) -> None:
    """Resume a suspended job.

    \b
    Examples:
      pgworkers jobs resume 1042
    """
    _send_request(ctx, "resume", number)


@click.command("kill", cls=CliCommand)
@click.argument("number", metavar="ID", type=parse_job_id)
@click.pass_context
def kill(ctx: click.Context, *, number: int) -> None:
    """Kill the process of a running job. The job is released and runs again.

    SIGKILL: the handler is not asked and nothing of it is left; its stack is kept with the attempt, which costs nothing.

    \b
    Examples:
      pgworkers jobs kill 1042
      pgworkers jobs cancel 1042      to end it for good
    """
    _send_request(ctx, "kill", number)
