"""`pgworkers hosts list`."""

from __future__ import annotations

import click

from pgworkers.cli import output, place
from pgworkers.cli.invocation import Group, said
from pgworkers.cli.output import Column
from pgworkers.cli.wording import ago, utcnow


@click.group(cls=Group)
def hosts() -> None:
    """The hosts that share this database."""


@hosts.command("list")
@click.pass_context
def list_(ctx: click.Context) -> None:
    """The hosts that share this database, and when each was last heard of.

    \b
    Examples:
      pgworkers hosts
      pgworkers hosts list -o json
    """
    from pgworkers.job import show
    from pgworkers.postgres.statements import run

    invocation = said(ctx)
    with place.database(invocation) as db:
        found = run(db.conn, db.schema, show.hosts())
    output.rows(invocation, found, _columns(), empty="no hosts: start one with pgworkers run", key="id")


def _columns() -> list[Column]:
    now = utcnow()
    return [
        ("name", lambda host: host.name),
        ("pid", lambda host: str(host.pid)),
        ("state", lambda host: "lost" if host.stale else host.state),
        ("leads", lambda host: "leader" if host.leader and not host.stale else ""),
        ("label", lambda host: host.label),
        ("app", lambda host: host.app),
        ("version", lambda host: host.version),
        ("queues", lambda host: ",".join(host.queues)),
        ("workers", lambda host: str(host.workers)),
        ("running", lambda host: str(host.running)),
        ("metrics", lambda host: host.metrics),
        ("started", lambda host: ago(host.started_at, now)),
        ("renewed", lambda host: ago(host.renewed_at, now)),
        ("id", lambda host: str(host.id)),
    ]
