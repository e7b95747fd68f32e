"""`pgworkers grants list | add | remove`: what enqueue-only roles may enqueue."""

from __future__ import annotations

import click

from pgworkers.cli import database, output
from pgworkers.cli.formatting import terminal_safe
from pgworkers.cli.invocation import CliGroup, OutputFormat, invocation_of
from pgworkers.cli.output import Column
from pgworkers.errors import NotFound, UsageError


@click.group(cls=CliGroup)
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
    from pgworkers.job import enqueue_grants

    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        found = db.run(enqueue_grants.list_grants())
    output.print_rows(
        invocation,
        found,
        _COLUMNS,
        if_empty="no grants: every enqueue-only role may enqueue each task in each queue",
        quiet_column="id",
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
    from pgworkers.job import enqueue_grants

    for what, name, limit in (("ROLE", role, 63), ("--queue", queue, 200), ("--task", task, 500)):
        if not name or len(name.encode()) > limit:
            raise UsageError(f"{what}: a name has 1 to {limit} bytes; nothing was changed")
    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        number, exists = db.run(
            enqueue_grants.add_grant(
                role, queue=queue, task=task, max_waiting=max_waiting, may_replace=may_replace
            ),
        )
    if invocation.output != OutputFormat.TABLE:
        output.print_rows(
            invocation,
            [{"id": number, "role": role, "queue": queue, "task": task}],
            [],
            if_empty="",
            quiet_column="id",
        )
    else:
        output.print_text(f"{number}: {terminal_safe(role)} may enqueue {_grant_sentence(task, queue)}")
    if not exists:
        output.print_note(
            invocation, f"there is no role {terminal_safe(role)} yet; the grant holds when there is one"
        )


@grants.command("remove")
@click.argument("ids", metavar="ID...", type=click.IntRange(1, 2**31 - 1), nargs=-1, required=True)
@click.pass_context
def remove(ctx: click.Context, *, ids: tuple[int, ...]) -> None:
    """Remove grants, by their numbers. A role without grants may enqueue everything.

    \b
    Examples:
      pgworkers grants remove 3
    """
    from pgworkers.job import enqueue_grants

    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        gone = db.run(enqueue_grants.remove_grants(ids))
        left = {one.role for one in db.run(enqueue_grants.list_grants())}
    missing = sorted(set(ids) - set(gone))
    if invocation.output != OutputFormat.TABLE:
        output.print_rows(invocation, [{"id": number} for number in gone], [], if_empty="", quiet_column="id")
    else:
        for number in gone:
            output.print_text(f"{number} removed")
        if not left:
            output.print_note(
                invocation, "no grants are left: every enqueue-only role may enqueue everything"
            )
    if missing:
        raise NotFound(f"there is no grant {', '.join(map(str, missing))}; pgworkers grants list shows them")


def _grant_sentence(task: str, queue: str) -> str:
    which = "each task" if task == "*" else f"task {terminal_safe(task)}"
    return f"{which} in " + ("each queue" if queue == "*" else f"queue {terminal_safe(queue)}")


_COLUMNS: list[Column] = [
    ("id", lambda grant: str(grant.id)),
    ("role", lambda grant: terminal_safe(grant.role) + ("" if grant.has_role else " (no such role)")),
    ("queue", lambda grant: terminal_safe(grant.queue)),
    ("task", lambda grant: terminal_safe(grant.task)),
    ("waiting", lambda grant: "" if grant.max_waiting is None else f"{grant.waiting}/{grant.max_waiting}"),
    ("replaces", lambda grant: "others' jobs" if grant.may_replace else "its own"),
    ("granted by", lambda grant: terminal_safe(grant.granted_by)),
]
