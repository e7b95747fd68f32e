"""`pgworkers grants list | add | remove`: what enqueue-only roles may enqueue."""

from __future__ import annotations

import click

from pgworkers.cli import output, place
from pgworkers.cli.invocation import Group, said
from pgworkers.cli.output import Column
from pgworkers.cli.wording import plain
from pgworkers.errors import NotFound, UsageError


@click.group(cls=Group)
def grants() -> None:
    """What enqueue-only roles may enqueue, and how much of it may wait."""


@grants.command("list")
@click.pass_context
def list_(ctx: click.Context) -> None:
    """Every grant. A role without one may enqueue each task in each queue.

    \b
    Examples:
      pgworkers grants list
      pgworkers grants list -o json
    """
    from pgworkers.job import grant
    from pgworkers.postgres.statements import run

    invocation = said(ctx)
    with place.database(invocation) as db:
        found = run(db.conn, db.schema, grant.grants())
    output.rows(
        invocation,
        found,
        _COLUMNS,
        empty="no grants: every enqueue-only role may enqueue each task in each queue",
        key="id",
    )


@grants.command("add")
@click.argument("role", metavar="ROLE")
@click.option("--queue", metavar="QUEUE", default="*", help="Only in this queue.")
@click.option("--task", metavar="TASK", default="*", help="Only this task.")
@click.option(
    "--max-waiting",
    metavar="N",
    type=click.IntRange(0, 1_000_000),
    help="At most N of its jobs wait at once; each enqueue counts them.",
)
@click.option(
    "--replace", "may_replace", is_flag=True, help="Also replace the arguments of jobs that others enqueued."
)
@click.pass_context
def add(
    ctx: click.Context, *, role: str, queue: str, task: str, max_waiting: int | None, may_replace: bool
) -> None:
    """Let a role enqueue this, and nothing without a grant.

    ROLE is a login, or a role that logins are members of. A grant that is there takes the new bound. Hosts,
    operators and the owner are not bound by grants.

    \b
    Examples:
      pgworkers grants add web --queue mail --max-waiting 10000
      pgworkers grants add web --queue reports --task render
      pgworkers grants add importer --replace
    """
    from pgworkers.job import grant
    from pgworkers.postgres.statements import run

    for what, name, limit in (("ROLE", role, 63), ("--queue", queue, 200), ("--task", task, 500)):
        if not name or len(name.encode()) > limit:
            raise UsageError(f"{what}: a name has 1 to {limit} bytes; nothing was changed")
    invocation = said(ctx)
    with place.database(invocation) as db:
        number, exists = run(
            db.conn,
            db.schema,
            grant.add(role, queue=queue, task=task, max_waiting=max_waiting, may_replace=may_replace),
        )
    if invocation.output != "table":
        output.rows(
            invocation, [{"id": number, "role": role, "queue": queue, "task": task}], [], empty="", key="id"
        )
    else:
        output.say(f"{number}: {plain(role)} may enqueue {_what(task, queue)}")
    if not exists:
        output.note(invocation, f"there is no role {plain(role)} yet; the grant holds when there is one")


@grants.command("remove")
@click.argument("ids", metavar="ID...", type=click.IntRange(1, 2**31 - 1), nargs=-1, required=True)
@click.pass_context
def remove(ctx: click.Context, *, ids: tuple[int, ...]) -> None:
    """Take grants back, by their numbers. A role without any left may enqueue everything.

    \b
    Examples:
      pgworkers grants remove 3
    """
    from pgworkers.job import grant
    from pgworkers.postgres.statements import run

    invocation = said(ctx)
    with place.database(invocation) as db:
        gone = run(db.conn, db.schema, grant.remove(ids))
        left = {one.role for one in run(db.conn, db.schema, grant.grants())}
    missing = sorted(set(ids) - set(gone))
    if invocation.output != "table":
        output.rows(invocation, [{"id": number} for number in gone], [], empty="", key="id")
    else:
        for number in gone:
            output.say(f"{number} removed")
        if not left:
            output.note(invocation, "no grants are left: every enqueue-only role may enqueue everything")
    if missing:
        raise NotFound(f"there is no grant {', '.join(map(str, missing))}; pgworkers grants list shows them")


def _what(task: str, queue: str) -> str:
    which = "each task" if task == "*" else f"task {plain(task)}"
    return f"{which} in " + ("each queue" if queue == "*" else f"queue {plain(queue)}")


_COLUMNS: list[Column] = [
    ("id", lambda grant: str(grant.id)),
    ("role", lambda grant: plain(grant.role) + ("" if grant.exists else " (no such role)")),
    ("queue", lambda grant: plain(grant.queue)),
    ("task", lambda grant: plain(grant.task)),
    ("waiting", lambda grant: "" if grant.max_waiting is None else f"{grant.waiting}/{grant.max_waiting}"),
    ("replaces", lambda grant: "others' jobs" if grant.may_replace else "its own"),
    ("granted by", lambda grant: plain(grant.granted_by)),
]
