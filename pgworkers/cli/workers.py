"""`pgworkers workers list | stack | stop`."""

from __future__ import annotations

import click

from pgworkers.cli import inside, output, place
from pgworkers.cli.invocation import Group, said
from pgworkers.cli.output import Column
from pgworkers.cli.wording import lasting


@click.group(cls=Group)
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
    from pgworkers.job import show
    from pgworkers.postgres.statements import run

    invocation = said(ctx)
    with place.database(invocation) as db:
        found = run(db.conn, db.schema, show.workers())
    output.rows(
        invocation, found, _COLUMNS, empty="no workers: no host has told of any yet; pgworkers run starts one"
    )


_COLUMNS: list[Column] = [
    ("host", lambda worker: worker.host_name),
    ("master", lambda worker: str(worker.host_pid)),
    ("label", lambda worker: worker.label),
    ("worker", lambda worker: f"{worker.queue}/{worker.slot}"),
    ("pid", lambda worker: str(worker.pid or "")),
    ("state", lambda worker: worker.state or ""),
    ("job", lambda worker: f"#{worker.job_id}" if worker.job_id else ""),
    ("task", lambda worker: worker.task or ""),
    ("for", lambda worker: lasting(worker.since)),
    ("jobs", lambda worker: "" if worker.jobs is None else str(worker.jobs)),
]

workers.add_command(inside.workers_stack)
workers.add_command(inside.workers_stop)
