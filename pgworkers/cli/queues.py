"""`pgworkers queues list | pause | resume | scale | retention | limit | limits | purge | drain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pgworkers.bounds import DURATION_MAX_SECONDS
from pgworkers.cli import emptying, output, place
from pgworkers.cli.invocation import Group, said, unknown
from pgworkers.cli.output import Column
from pgworkers.cli.values import duration
from pgworkers.cli.wording import lasting, plain, plural
from pgworkers.clock import show_seconds
from pgworkers.errors import NotFound, UsageError

if TYPE_CHECKING:
    from pgworkers.job.show import QueueView


@click.group(cls=Group)
def queues() -> None:
    """List, pause, resume, scale, limit, keep and empty queues."""


@queues.command("list")
@click.pass_context
def list_(ctx: click.Context) -> None:
    """Every queue, its workers and how many jobs it holds.

    A count ends at 10,000 and is then shown as 10000+; in JSON, `capped` names it.

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
    Examples:
      pgworkers queues pause reports
    """
    _set(ctx, names, paused=True)


@queues.command("resume")
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True)
@click.pass_context
def resume(ctx: click.Context, *, names: tuple[str, ...]) -> None:
    """Take jobs from these queues again.

    \b
    Examples:
      pgworkers queues resume reports
    """
    _set(ctx, names, paused=False)


@queues.command("scale")
@click.argument("name", metavar="QUEUE")
@click.argument("workers", metavar="[N]", type=click.IntRange(0, 1024), required=False)
@click.option("--cluster", metavar="N", type=click.IntRange(0, 100_000), help="N workers over all hosts.")
@click.option("--default", "as_declared", is_flag=True, help="As many as the app says.")
@click.pass_context
def scale(
    ctx: click.Context, *, name: str, workers: int | None, cluster: int | None, as_declared: bool
) -> None:
    """Set how many workers a queue has, while it runs.

    N workers on each host, or with --cluster over all hosts. Running jobs finish; a deploy does not undo it.

    \b
    Examples:
      pgworkers queues scale reports 8
      pgworkers queues scale reports --cluster 12
      pgworkers queues scale reports --default
    """
    from pgworkers.job import queue
    from pgworkers.postgres.statements import run

    if (workers is not None) + (cluster is not None) + as_declared != 1:
        raise UsageError("say one of: N, --cluster N, --default; nothing was changed")
    invocation = said(ctx)
    with place.database(invocation) as db:
        _existing(db, (name,))
        run(db.conn, db.schema, queue.scale(name, workers=workers, cluster=cluster))
    if invocation.output != "table":
        output.rows(invocation, [{"queue": name, "workers": workers, "cluster": cluster}], [], empty="")
    elif workers is not None:
        output.say(f"{name}: {workers} workers on each host")
    elif cluster is not None:
        output.say(f"{name}: {cluster} workers over all hosts")
    else:
        output.say(f"{name}: as many workers as the app says")


@queues.command("retention")
@click.argument("name", metavar="QUEUE")
@click.argument("keep", metavar="[TIME]", type=duration, required=False)
@click.option("--default", "as_declared", is_flag=True, help="As long as the app or the setting says.")
@click.pass_context
def retention(ctx: click.Context, *, name: str, keep: float | None, as_declared: bool) -> None:
    """Set how long a queue keeps its finished jobs.

    Shorter or longer than the setting `retention`; dead jobs are kept for `retention_dead` at least. A deploy does not
    undo it.

    \b
    Examples:
      pgworkers queues retention audit 365d
      pgworkers queues retention mail 1h
      pgworkers queues retention mail --default
    """
    from pgworkers.job import queue
    from pgworkers.postgres.statements import run

    if (keep is None) != as_declared:
        raise UsageError("say one of: TIME, --default; nothing was changed")
    if keep is not None and not 0 <= keep <= DURATION_MAX_SECONDS:
        raise UsageError("TIME: use 0s to 36500d; nothing was changed")
    invocation = said(ctx)
    with place.database(invocation) as db:
        _existing(db, (name,))
        run(db.conn, db.schema, queue.retain(name, keep))
    if invocation.output != "table":
        output.rows(invocation, [{"queue": name, "retention": keep}], [], empty="")
    elif keep is None:
        output.say(f"{plain(name)}: finished jobs are kept as long as the app or the setting says")
    else:
        output.say(f"{plain(name)}: finished jobs are kept for {show_seconds(keep)}")


@queues.command("limit")
@click.argument("slots", metavar="[N]", type=click.IntRange(0, 1_000_000), required=False)
@click.option("--task", metavar="TASK", help="At most N jobs of this task at once.")
@click.option("--key", metavar="KEY", help="At most N jobs with this concurrency key at once.")
@click.option("--default", "as_declared", is_flag=True, help="As the app says.")
@click.pass_context
def limit(
    ctx: click.Context, *, slots: int | None, task: str | None, key: str | None, as_declared: bool
) -> None:
    """Limit how many jobs of a task or a key run at once.

    Over all hosts. 0 stops them: nothing more of that task or key starts. Running jobs finish.

    \b
    Examples:
      pgworkers queues limit --task render 4
      pgworkers queues limit --key tenant:7 0
      pgworkers queues limit --task render --default
    """
    from pgworkers.job import queue
    from pgworkers.postgres.statements import run

    if (slots is None) != as_declared or (task is None) == (key is None):
        raise UsageError("say N or --default, and --task TASK or --key KEY; nothing was changed")
    kind, name = ("task", task) if task is not None else ("key", key)
    if not name or len(name.encode()) > 1000:
        raise UsageError(f"--{kind}: a name has 1 to 1000 bytes; nothing was changed")
    invocation = said(ctx)
    with place.database(invocation) as db:
        run(db.conn, db.schema, queue.limit(kind, name, slots))
    if invocation.output != "table":
        output.rows(invocation, [{"kind": kind, "name": name, "slots": slots}], [], empty="")
    elif slots is None:
        output.say(f"{kind} {name}: as the app says")
    else:
        output.say(f"{kind} {name}: {slots} at once")


@queues.command("limits")
@click.pass_context
def limits(ctx: click.Context) -> None:
    """Every concurrency limit, and how many jobs run under it.

    \b
    Examples:
      pgworkers queues limits
    """
    from pgworkers.job import queue
    from pgworkers.postgres.statements import run

    invocation = said(ctx)
    with place.database(invocation) as db:
        found = run(db.conn, db.schema, queue.limits())
    output.rows(invocation, found, _LIMITS, empty="no limits", key="name")


def _existing(db: place.Database, names: tuple[str, ...]) -> None:
    """Refuse unknown queues; make the rows of those that so far only their jobs have named."""
    from pgworkers.job import queue, show
    from pgworkers.postgres.statements import run

    known = [found.name for found in run(db.conn, db.schema, show.queues())]
    for name in names:
        if name not in known:
            raise NotFound(unknown("queue", name, known) + "; nothing was changed")
    run(db.conn, db.schema, queue.declare(names))


def _set(ctx: click.Context, names: tuple[str, ...], *, paused: bool) -> None:
    """Pause or resume all of the queues, or none when one of them does not exist."""
    from pgworkers.job import queue
    from pgworkers.postgres.statements import run

    invocation = said(ctx)
    with place.database(invocation) as db:
        _existing(db, names)
        for name in names:
            run(db.conn, db.schema, queue.pause(name) if paused else queue.resume(name))
    done = [{"queue": name, "paused": paused} for name in names]
    if invocation.output == "table":
        for name in names:
            output.say(f"{name} {'paused' if paused else 'resumed'}")
    else:
        output.rows(invocation, done, [], empty="")


def _state(queue: QueueView) -> str:
    if queue.paused:
        return "paused"
    return f"cools down for {lasting(queue.throttled)}" if queue.throttled else "active"


def _workers(queue: QueueView) -> str:
    """What holds: an operator's word, else the app's; of a number for each host, what the hosts that live make of it."""
    if queue.cluster_workers is not None:
        return f"{queue.cluster_workers} over all hosts (scaled)"
    if queue.workers is not None:
        return f"{queue.workers} a host (scaled)"
    if queue.declared_cluster is not None:
        return f"{queue.declared_cluster} over all hosts"
    return f"{queue.present} on {plural(queue.hosts, 'host')}" if queue.hosts else "no host"


def _count(queue: Any, column: str) -> str:
    """`12`, or `10000+` for a count that was not finished."""
    return f"{getattr(queue, column)}{'+' if column in queue.capped else ''}"


_COLUMNS: list[Column] = [
    ("name", lambda queue: queue.name),
    ("state", _state),
    ("workers", _workers),
    ("ready", lambda queue: _count(queue, "ready")),
    ("scheduled", lambda queue: _count(queue, "scheduled")),
    ("running", lambda queue: _count(queue, "running")),
    ("dead", lambda queue: _count(queue, "dead")),
    ("oldest ready", lambda queue: lasting(queue.oldest_ready)),
    ("keeps", lambda queue: "" if queue.retention is None else show_seconds(queue.retention)),
]
_LIMITS: list[Column] = [
    ("kind", lambda limit: limit.kind),
    ("name", lambda limit: plain(limit.name)),
    ("at once", lambda limit: str(limit.slots)),
    ("running", lambda limit: str(limit.running)),
    ("said by", lambda limit: limit.said_by),
]

queues.add_command(emptying.purge)
queues.add_command(emptying.drain)
