"""`pgworkers workers list | stack | stop`."""

from __future__ import annotations

import click

from pgworkers.cli import database, output
from pgworkers.cli.formatting import show_duration
from pgworkers.cli.invocation import CliCommand, CliGroup, OutputFormat, invocation_of
from pgworkers.cli.output import Column
from pgworkers.errors import NotFound, UsageError


@click.group(cls=CliGroup)
def workers() -> None:
    """The worker processes of all hosts."""


@workers.command("list")
@click.pass_context
def list_(ctx: click.Context) -> None:
    """The worker processes of all hosts, as of each host's last renewal.

    \b
    Examples:
      pgworkers workers
      pgworkers workers list -o ndjson
    """
    from pgworkers.job import queries

    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        found = db.run(queries.list_workers())
    output.print_rows(
        invocation,
        found,
        _WORKER_COLUMNS,
        if_empty="no workers: no host has reported any yet; pgworkers run starts one",
    )


_WORKER_COLUMNS: list[Column] = [
    ("host", lambda worker: worker.host_name),
    ("master", lambda worker: str(worker.host_pid)),
    ("label", lambda worker: worker.label),
    ("worker", lambda worker: f"{worker.queue}/{worker.slot}"),
    ("pid", lambda worker: str(worker.pid or "")),
    ("state", lambda worker: worker.state or ""),
    ("job", lambda worker: f"#{worker.job_id}" if worker.job_id else ""),
    ("task", lambda worker: worker.task or ""),
    ("for", lambda worker: show_duration(worker.since)),
    ("jobs", lambda worker: "" if worker.jobs is None else str(worker.jobs)),
]


@click.command("stack", cls=CliCommand)
@click.argument("worker", metavar="[QUEUE[/SLOT]]", required=False)
@click.pass_context
def stack(ctx: click.Context, *, worker: str | None) -> int:
    """The Python stacks of workers, now. Of all of them, those of a queue, or one.

    Exit code 1 when one of them gives no answer within 10 s.

    \b
    Examples:
      pgworkers workers stack
      pgworkers workers stack render
      pgworkers workers stack render/0
    """
    from pgworkers.cli import host_requests
    from pgworkers.job.requests import RequestKind

    invocation = invocation_of(ctx)
    queue, slot = parse_worker(worker or "")
    with database.open_database(invocation) as db:
        found = host_requests.request_for_workers(db, RequestKind.STACK, queue, slot)
    if worker and not found:
        raise _no_such_worker(worker)
    rows = [
        {"host": one.host, "worker": f"{one.queue}/{one.slot}", "stack": one.text or "no answer"}
        for one in found
    ]
    if invocation.output == OutputFormat.JSON:
        output.print_json(rows)
    elif invocation.output == OutputFormat.NDJSON:
        for row in rows:
            output.print_json_line(row)
    else:
        for row in rows:
            output.print_text(f"{row['worker']} on {row['host']}")
            output.print_text(f"{row['stack']}\n", should_keep_lines=True)
        if not rows:
            output.print_note(
                invocation, "no workers: no host has reported any yet; pgworkers run starts one"
            )
    return 0 if all(one.is_done for one in found) else 1


@click.command("stop", cls=CliCommand)
@click.argument("worker", metavar="QUEUE[/SLOT]")
@click.pass_context
def stop(ctx: click.Context, *, worker: str) -> int:
    """Stop workers after their current job. Their supervisor starts new ones.

    For a worker that has grown large or holds something stale. Running jobs finish; to stop a job, cancel or kill it.
    To have fewer workers, scale the queue.

    \b
    Examples:
      pgworkers workers stop render/0
      pgworkers workers stop render         all of the queue, on every host
    """
    from pgworkers.cli import host_requests
    from pgworkers.job.requests import RequestKind

    invocation = invocation_of(ctx)
    queue, slot = parse_worker(worker)
    with database.open_database(invocation) as db:
        found = host_requests.request_for_workers(db, RequestKind.LEAVE, queue, slot)
    if not found:
        raise _no_such_worker(worker)
    rows = [
        {"host": one.host, "worker": f"{one.queue}/{one.slot}", "outcome": one.text or "no answer"}
        for one in found
    ]
    if invocation.output != OutputFormat.TABLE:
        output.print_rows(invocation, rows, [], if_empty="")
    else:
        for row in rows:
            output.print_text(f"{row['worker']} on {row['host']}: {row['outcome']}")
    return 0 if all(one.is_done for one in found) else 1


def _no_such_worker(worker: str) -> NotFound:
    return NotFound(f"there is no worker {worker!r}; pgworkers workers shows those there are")


def parse_worker(text: str) -> tuple[str | None, int | None]:
    """`QUEUE` or `QUEUE/SLOT`; the slot follows the last slash."""
    if not text:
        return None, None
    queue, stroke, slot = text.rpartition("/")
    if not stroke:
        return text, None
    if not (slot.isascii() and slot.isdigit() and len(slot) < 10):
        raise UsageError(
            f"{text!r} is not a worker; write QUEUE or QUEUE/SLOT, as pgworkers workers shows them"
        )
    return queue, int(slot)


workers.add_command(stack)
workers.add_command(stop)
