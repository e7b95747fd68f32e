"""`pgworkers queues purge | drain`: empty a queue at once, or wait until its workers have."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from pgworkers.cli import output, place
from pgworkers.cli.bulk import REASON, Verb, change_by_filter
from pgworkers.cli.invocation import Command, Invocation, said, unknown
from pgworkers.cli.progress import counted
from pgworkers.cli.values import duration
from pgworkers.cli.wording import plain, plural
from pgworkers.clock import show_seconds
from pgworkers.errors import NotFound, ResultTimeout
from pgworkers.job.state import State

if TYPE_CHECKING:
    from pgworkers.job.operation import Note

LOOK = 0.5


def _forget(db: place.Database, ids: list[int], note: Note) -> list[tuple[int, str | None]]:
    from pgworkers.job.purge import purge
    from pgworkers.postgres.statements import run

    gone = run(db.conn, db.schema, purge(ids, note))
    return [(one, "purged" if one in gone else "kept") for one in ids]


def _cancel_waiting(db: place.Database, ids: list[int], note: Note) -> list[tuple[int, str | None]]:
    from pgworkers.job.purge import purge_waiting
    from pgworkers.postgres.statements import run

    found = run(db.conn, db.schema, purge_waiting(ids, note))
    return [(one, found[one]) for one in ids]


_WAITING = (State.SCHEDULED, State.READY)
PURGE = Verb("cancel", "cancelled", _WAITING, _WAITING, frozenset({"cancelled"}), _cancel_waiting)
PURGE_DEAD = Verb("purge", "purged", (State.DEAD,), (State.DEAD,), frozenset({"purged"}), _forget)


@click.command("purge", cls=Command)
@click.argument("name", metavar="QUEUE")
@click.option("--dead", is_flag=True, help="Delete the records of its dead jobs instead.")
@REASON
@click.pass_context
def purge(ctx: click.Context, *, name: str, dead: bool, reason: str | None) -> int:
    """Cancel everything that waits in a queue. Shows the count and asks.

    Waiting jobs are cancelled without running, and jobs that wait for them hear of it. Running ones go on. With --dead the
    dead jobs of the queue are deleted for good, with their post-mortems; those that another job waits for are kept.

    \b
    Examples:
      pgworkers queues purge reports
      pgworkers queues purge reports --dead -y
    """
    from pgworkers.job.operation import note
    from pgworkers.job.show import Filter

    noted = note(reason)
    invocation = said(ctx)
    verb = PURGE_DEAD if dead else PURGE
    with place.database(invocation) as db:
        _known(db, (name,))
        return change_by_filter(invocation, db, verb, Filter(states=list(verb.meant), queues=(name,)), noted)


@click.command("drain", cls=Command)
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True)
@click.option(
    "--timeout", type=duration, metavar="DURATION", help="Give up after this long, with exit code 1."
)
@click.pass_context
def drain(ctx: click.Context, *, names: tuple[str, ...], timeout: float | None) -> int:
    """Wait until queues are empty. Nothing is ready, scheduled or running then.

    \b
    Examples:
      pgworkers queues drain reports
      pgworkers queues drain reports api --timeout 10m && deploy
    """
    invocation = said(ctx)
    with place.database(invocation) as db:
        _known(db, names)
        return _until_empty(invocation, db, names, timeout)


def _until_empty(
    invocation: Invocation, db: place.Database, names: tuple[str, ...], timeout: float | None
) -> int:
    began = time.monotonic()
    left = first = _left(db, names)
    with counted(invocation, "done", first) as done:
        while left:
            if timeout is not None and time.monotonic() - began >= timeout:
                be, goes = ("is", "it goes") if left == 1 else ("are", "they go")
                where, waited = ", ".join(map(plain, names)), show_seconds(timeout)
                raise ResultTimeout(f"{plural(left, 'job')} {be} left in {where} after {waited}; {goes} on")
            time.sleep(LOOK if timeout is None else min(LOOK, max(0.0, timeout - (time.monotonic() - began))))
            left = _left(db, names)
            first = max(first, left)
            done(first - left)
    if invocation.output == "table":
        output.note(invocation, f"{', '.join(names)}: empty")
    else:
        output.rows(invocation, [{"queue": name, "jobs": 0} for name in names], [], empty="")
    return 0


def _left(db: place.Database, names: tuple[str, ...]) -> int:
    from pgworkers.job.depth import MOST, depth
    from pgworkers.postgres.statements import run

    seen = [one for one in run(db.conn, db.schema, depth(MOST)) if one.queue in names]
    return sum(one.ready + one.scheduled + one.running for one in seen)


def _known(db: place.Database, names: tuple[str, ...]) -> None:
    from pgworkers.job import show
    from pgworkers.postgres.statements import run

    there = [found.name for found in run(db.conn, db.schema, show.queues())]
    for name in names:
        if name not in there:
            raise NotFound(unknown("queue", name, there) + "; nothing was changed")
