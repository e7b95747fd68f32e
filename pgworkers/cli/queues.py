"""`pgworkers queues list | pause | resume | scale | retention | limit | limits | purge | drain`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from pgworkers.bounds import MAX_DURATION_SECONDS
from pgworkers.cli import database, output
from pgworkers.cli.formatting import plural, show_duration, terminal_safe
from pgworkers.cli.invocation import CliCommand, CliGroup, Invocation, OutputFormat, invocation_of, no_such
from pgworkers.cli.job_changes import JobChange, change_by_filter, reason_option
from pgworkers.cli.output import Column, show_progress
from pgworkers.cli.parameters import WAITING_STATES, parse_duration
from pgworkers.errors import NotFound, ResultTimeout, UsageError
from pgworkers.job.model import JobState
from pgworkers.units import format_duration

if TYPE_CHECKING:
    from pgworkers.job.operations import OperationNote
    from pgworkers.job.queries import QueueView


@click.group(cls=CliGroup)
def queues() -> None:
    """List, pause, resume, scale, limit and empty queues; set their retention."""


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
    from pgworkers.job import queries

    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        found = db.run(queries.list_queues())
    output.print_rows(
        invocation,
        found,
        _QUEUE_COLUMNS,
        if_empty="no queues yet: a host declares them when it starts",
        quiet_column="name",
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
    _set_paused(ctx, names, paused=True)


@queues.command("resume")
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True)
@click.pass_context
def resume(ctx: click.Context, *, names: tuple[str, ...]) -> None:
    """Take jobs from these queues again.

    \b
    Examples:
      pgworkers queues resume reports
    """
    _set_paused(ctx, names, paused=False)


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
    from pgworkers.job.queues import scale_queue

    if (workers is not None) + (cluster is not None) + as_declared != 1:
        raise UsageError("say one of: N, --cluster N, --default; nothing was changed")
    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        _require_queues(db, (name,))
        db.run(scale_queue(name, workers=workers, cluster=cluster))
    if invocation.output != OutputFormat.TABLE:
        output.print_rows(
            invocation, [{"queue": name, "workers": workers, "cluster": cluster}], [], if_empty=""
        )
    elif workers is not None:
        output.print_text(f"{name}: {workers} workers on each host")
    elif cluster is not None:
        output.print_text(f"{name}: {cluster} workers over all hosts")
    else:
        output.print_text(f"{name}: as many workers as the app says")


@queues.command("retention")
@click.argument("name", metavar="QUEUE")
@click.argument("keep", metavar="[TIME]", type=parse_duration, required=False)
@click.option("--default", "as_declared", is_flag=True, help="As long as the app or the setting says.")
@click.pass_context
def retention(ctx: click.Context, *, name: str, keep: float | None, as_declared: bool) -> None:
    """Set how long a queue keeps its finished jobs.

    Shorter or longer than the setting `retention`; dead jobs are kept for `dead_retention` at least. A deploy does not
    undo it.

    \b
    Examples:
      pgworkers queues retention audit 365d
      pgworkers queues retention mail 1h
      pgworkers queues retention mail --default
    """
    from pgworkers.job.queues import set_retention

    if (keep is None) != as_declared:
        raise UsageError("say one of: TIME, --default; nothing was changed")
    if keep is not None and not 0 <= keep <= MAX_DURATION_SECONDS:
        raise UsageError("TIME: use 0s to 36500d; nothing was changed")
    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        _require_queues(db, (name,))
        db.run(set_retention(name, keep))
    if invocation.output != OutputFormat.TABLE:
        output.print_rows(invocation, [{"queue": name, "retention": keep}], [], if_empty="")
    elif keep is None:
        output.print_text(
            f"{terminal_safe(name)}: finished jobs are kept as long as the app or the setting says"
        )
    else:
        output.print_text(f"{terminal_safe(name)}: finished jobs are kept for {format_duration(keep)}")


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
    from pgworkers.limits import concurrency

    if (slots is None) != as_declared or (task is None) == (key is None):
        raise UsageError("say N or --default, and --task TASK or --key KEY; nothing was changed")
    kind, name = ("task", task) if task is not None else ("key", key)
    if not name or len(name.encode()) > 1000:
        raise UsageError(f"--{kind}: a name has 1 to 1000 bytes; nothing was changed")
    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        db.run(concurrency.set_limit(kind, name, slots))
    if invocation.output != OutputFormat.TABLE:
        output.print_rows(invocation, [{"kind": kind, "name": name, "slots": slots}], [], if_empty="")
    elif slots is None:
        output.print_text(f"{kind} {name}: as the app says")
    else:
        output.print_text(f"{kind} {name}: {slots} at once")


@queues.command("limits")
@click.pass_context
def limits(ctx: click.Context) -> None:
    """Every concurrency limit, and how many jobs run under it.

    \b
    Examples:
      pgworkers queues limits
    """
    from pgworkers.limits import concurrency

    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        found = db.run(concurrency.list_limits())
    output.print_rows(invocation, found, _LIMIT_COLUMNS, if_empty="no limits", quiet_column="name")


def _require_queues(db: database.OpenDatabase, names: tuple[str, ...]) -> None:
    """Refuse unknown queues. Create rows for queues that only jobs have named so far."""
    from pgworkers.job import queries
    from pgworkers.job.queues import declare_queues

    known = [found.name for found in db.run(queries.list_queues())]
    for name in names:
        if name not in known:
            raise NotFound(no_such("queue", name, known) + "; nothing was changed")
    db.run(declare_queues(names))


def _set_paused(ctx: click.Context, names: tuple[str, ...], *, paused: bool) -> None:
    """Pause or resume all of the queues, or none when one of them does not exist."""
    from pgworkers.job.queues import pause_queue, resume_queue

    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        _require_queues(db, names)
        for name in names:
            db.run(pause_queue(name) if paused else resume_queue(name))
    done = [{"queue": name, "paused": paused} for name in names]
    if invocation.output == OutputFormat.TABLE:
        for name in names:
            output.print_text(f"{name} {'paused' if paused else 'resumed'}")
    else:
        output.print_rows(invocation, done, [], if_empty="")


def _show_state(queue: QueueView) -> str:
    if queue.paused:
        return "paused"
    return f"cools down for {show_duration(queue.throttled)}" if queue.throttled else "active"


def _show_workers(queue: QueueView) -> str:
    """The effective number of workers: the operator's, else the app's; a number per host is multiplied by living hosts."""
    if queue.cluster_workers is not None:
        return f"{queue.cluster_workers} over all hosts (scaled)"
    if queue.workers is not None:
        return f"{queue.workers} a host (scaled)"
    if queue.declared_cluster_workers is not None:
        return f"{queue.declared_cluster_workers} over all hosts"
    return f"{queue.present} on {plural(queue.hosts, 'host')}" if queue.hosts else "no host"


def _show_count(queue: Any, column: str) -> str:
    """`12`, or `10000+` for a count that was not finished."""
    return f"{getattr(queue, column)}{'+' if column in queue.capped else ''}"


_QUEUE_COLUMNS: list[Column] = [
    ("name", lambda queue: queue.name),
    ("state", _show_state),
    ("workers", _show_workers),
    ("ready", lambda queue: _show_count(queue, "ready")),
    ("scheduled", lambda queue: _show_count(queue, "scheduled")),
    ("running", lambda queue: _show_count(queue, "running")),
    ("dead", lambda queue: _show_count(queue, "dead")),
    ("oldest ready", lambda queue: show_duration(queue.oldest_ready)),
    ("keeps", lambda queue: "" if queue.retention is None else format_duration(queue.retention)),
]
_LIMIT_COLUMNS: list[Column] = [
    ("kind", lambda limit: limit.kind),
    ("name", lambda limit: terminal_safe(limit.name)),
    ("at once", lambda limit: str(limit.slots)),
    ("running", lambda limit: str(limit.running)),
    ("set by", lambda limit: limit.set_by),
]


QUEUE_DRAIN_POLL_SECONDS = 0.5


def _delete_dead(
    db: database.OpenDatabase, ids: list[int], note: OperationNote
) -> list[tuple[int, str | None]]:
    from pgworkers.job.cancel import purge_dead

    gone = db.run(purge_dead(ids, note))
    return [(one, "purged" if one in gone else "kept") for one in ids]


def _cancel_waiting(
    db: database.OpenDatabase, ids: list[int], note: OperationNote
) -> list[tuple[int, str | None]]:
    from pgworkers.job.cancel import purge_waiting

    found = db.run(purge_waiting(ids, note))
    return [(one, found[one]) for one in ids]


PURGE_WAITING = JobChange(
    "cancel", "cancelled", WAITING_STATES, WAITING_STATES, frozenset({"cancelled"}), _cancel_waiting
)
PURGE_DEAD = JobChange(
    "purge", "purged", (JobState.DEAD,), (JobState.DEAD,), frozenset({"purged"}), _delete_dead
)


@click.command("purge", cls=CliCommand)
@click.argument("name", metavar="QUEUE")
@click.option("--dead", is_flag=True, help="Delete the records of its dead jobs instead.")
@reason_option
@click.pass_context
def purge(ctx: click.Context, *, name: str, dead: bool, reason: str | None) -> int:
    """Cancel everything that waits in a queue. Shows the count and asks.

    Waiting jobs are cancelled without running; jobs that wait for them end or run as their after= says. Running jobs
    continue. With --dead the dead jobs of the queue are deleted, with their post-mortems; those that another job waits
    for are kept.

    \b
    Examples:
      pgworkers queues purge reports
      pgworkers queues purge reports --dead -y
    """
    from pgworkers.job.operations import make_note
    from pgworkers.job.queries import JobFilter

    noted = make_note(reason)
    invocation = invocation_of(ctx)
    verb = PURGE_DEAD if dead else PURGE_WAITING
    with database.open_database(invocation) as db:
        _require_known_queues(db, (name,))
        return change_by_filter(
            invocation, db, verb, JobFilter(states=list(verb.default_states), queues=(name,)), noted
        )


@click.command("drain", cls=CliCommand)
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True)
@click.option(
    "--timeout", type=parse_duration, metavar="DURATION", help="Give up after this long, with exit code 1."
)
@click.pass_context
def drain(ctx: click.Context, *, names: tuple[str, ...], timeout: float | None) -> int:
    """Wait until queues are empty. Nothing is ready, scheduled or running then.

    \b
    Examples:
      pgworkers queues drain reports
      pgworkers queues drain reports api --timeout 10m && deploy
    """
    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        _require_known_queues(db, names)
        return _wait_until_empty(invocation, db, names, timeout)


def _wait_until_empty(
    invocation: Invocation, db: database.OpenDatabase, names: tuple[str, ...], timeout: float | None
) -> int:
    began = time.monotonic()
    left = first = _count_unfinished(db, names)
    with show_progress(invocation, "done", first) as done:
        while left:
            if timeout is not None and time.monotonic() - began >= timeout:
                be, goes = ("is", "it goes") if left == 1 else ("are", "they go")
                where, waited = ", ".join(map(terminal_safe, names)), format_duration(timeout)
                raise ResultTimeout(f"{plural(left, 'job')} {be} left in {where} after {waited}; {goes} on")
            time.sleep(
                QUEUE_DRAIN_POLL_SECONDS
                if timeout is None
                else min(QUEUE_DRAIN_POLL_SECONDS, max(0.0, timeout - (time.monotonic() - began)))
            )
            left = _count_unfinished(db, names)
            first = max(first, left)
            done(first - left)
    if invocation.output == OutputFormat.TABLE:
        output.print_note(invocation, f"{', '.join(names)}: empty")
    else:
        output.print_rows(invocation, [{"queue": name, "jobs": 0} for name in names], [], if_empty="")
    return 0


def _count_unfinished(db: database.OpenDatabase, names: tuple[str, ...]) -> int:
    from pgworkers.job.gauges import MAX_COUNTED_DEPTH, count_depth

    seen = [one for one in db.run(count_depth(MAX_COUNTED_DEPTH)) if one.queue in names]
    return sum(one.ready + one.scheduled + one.running for one in seen)


def _require_known_queues(db: database.OpenDatabase, names: tuple[str, ...]) -> None:
    from pgworkers.job import queries

    there = [found.name for found in db.run(queries.list_queues())]
    for name in names:
        if name not in there:
            raise NotFound(no_such("queue", name, there) + "; nothing was changed")


queues.add_command(purge)
queues.add_command(drain)
