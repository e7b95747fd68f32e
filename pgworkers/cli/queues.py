"""`pgworkers queues list | pause | resume`."""

from __future__ import annotations

import click

from pgworkers.cli import output, place
from pgworkers.cli.invocation import Group, said, unknown
from pgworkers.cli.output import Column
from pgworkers.cli.wording import lasting, plain
from pgworkers.errors import NotFound


@click.group(cls=Group)
def queues() -> None:
    """List, pause and resume queues."""


@queues.command("list")
@click.pass_context
def list_(ctx: click.Context) -> None:
    """Every queue and how many jobs it holds.

    \b
    Examples:
      pgworkers queues list
      pgworkers queues list -o json
    """
    from pgworkers.job import show
    from pgworkers.postgres.statements import run

    invocation = said(ctx)
    with place.database(invocation) as db:
        found = run(db.conn, db.schema, show.queues())
    output.rows(
        invocation, found, _COLUMNS, empty="no queues yet: a host declares them when it starts", key="name"
    )


@queues.command("pause")
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True)
@click.pass_context
def pause(ctx: click.Context, *, names: tuple[str, ...]) -> None:
    """Take no more jobs from these queues; running ones finish.

    \b
    Example:
      pgworkers queues pause reports
    """
    _set(ctx, names, paused=True)


@queues.command("resume")
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True)
@click.pass_context
def resume(ctx: click.Context, *, names: tuple[str, ...]) -> None:
    """Take jobs from these queues again.

    \b
    Example:
      pgworkers queues resume reports
    """
    _set(ctx, names, paused=False)


def _set(ctx: click.Context, names: tuple[str, ...], *, paused: bool) -> None:
    """Pause or resume all of the queues, or none when one of them does not exist."""
    from pgworkers.job import queue, show
    from pgworkers.postgres.statements import run

    invocation = said(ctx)
    with place.database(invocation) as db:
        known = [found.name for found in run(db.conn, db.schema, show.queues())]
        for name in names:
            if name not in known:
                raise NotFound(unknown("queue", name, known) + "; nothing was changed")
        run(db.conn, db.schema, queue.declare(names))  # a queue that so far only its jobs have named
        for name in names:
            run(db.conn, db.schema, queue.pause(name) if paused else queue.resume(name))
    done = [{"queue": name, "paused": paused} for name in names]
    if invocation.output == "table":
        for name in names:
            click.echo(f"{plain(name)} {'paused' if paused else 'resumed'}")
    else:
        output.rows(invocation, done, [], empty="")


_COLUMNS: list[Column] = [
    ("name", lambda queue: queue.name),
    ("state", lambda queue: "paused" if queue.paused else "active"),
    ("ready", lambda queue: str(queue.ready)),
    ("scheduled", lambda queue: str(queue.scheduled)),
    ("running", lambda queue: str(queue.running)),
    ("dead", lambda queue: str(queue.dead)),
    ("oldest ready", lambda queue: lasting(queue.oldest_ready)),
]
