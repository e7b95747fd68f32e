"""`pgworkers hosts list`."""

from __future__ import annotations

import click

from pgworkers.cli import database, output
from pgworkers.cli.formatting import relative_time, utcnow
from pgworkers.cli.invocation import CliGroup, invocation_of
from pgworkers.cli.output import Column


@click.group(cls=CliGroup)
def hosts() -> None:
    """The hosts that share this database."""


@hosts.command("list")
@click.pass_context
def list_(ctx: click.Context) -> None:
    """The hosts that share this database, and when each last renewed.

    \b
    Examples:
      pgworkers hosts
      pgworkers hosts list -o json
    """
    from pgworkers.job import queries

    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        found = db.run(queries.list_hosts())
    output.print_rows(
        invocation, found, _columns(), if_empty="no hosts: start one with pgworkers run", quiet_column="id"
    )


def _columns() -> list[Column]:
    now = utcnow()
    return [
        ("name", lambda host: host.name),
        ("pid", lambda host: str(host.pid)),
        ("state", lambda host: "lost" if host.is_stale else host.state),
        ("leads", lambda host: "leader" if host.is_leader and not host.is_stale else ""),
        ("label", lambda host: host.label),
        ("app", lambda host: host.app),
        ("version", lambda host: host.version),
        ("queues", lambda host: ",".join(host.queues)),
        ("workers", lambda host: str(host.workers)),
        ("running", lambda host: str(host.running)),
        ("metrics", lambda host: host.metrics),
        ("started", lambda host: relative_time(host.started_at, now)),
        ("renewed", lambda host: relative_time(host.renewed_at, now)),
        ("id", lambda host: str(host.id)),
    ]
