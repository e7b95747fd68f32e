"""`pgworkers top`: the live tree over all hosts, and keys that reach into it.

`top_model` is what is shown; `top_screen` how it looks, made of `top_rows`, made of `top_cells`; `top_keys` what keys mean;
those are pure. `top_terminal` has the terminal, `top_database` the threads that ask, and in `top_loop` they meet.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import click

from pgworkers.cli import output, place
from pgworkers.cli.invocation import Command, said
from pgworkers.cli.place import Database
from pgworkers.cli.values import duration
from pgworkers.errors import UsageError

SHORTEST = 0.1
#: The width of a frame in a pipe.
PIPE = 160


@click.command(cls=Command)
@click.option(
    "--interval",
    metavar="TIME",
    default="1s",
    type=duration,
    show_default=True,
    help="How often it refreshes.",
)
@click.option("--queue", metavar="NAME", help="Only this queue.")
@click.option("--once", is_flag=True, help="Print one frame and end; -o json prints it as data.")
@click.pass_context
def top(ctx: click.Context, *, interval: float, queue: str | None, once: bool) -> int:
    """The live tree of hosts, queues, workers and jobs, with keys.

    Shows for every worker its pid, job, task, CPU, memory, progress, time, what is left until its deadline, and
    whether it is stalled, suspended or being stopped. Keys cancel, suspend, resume and kill jobs, show their stacks
    and pause queues; ? lists them.

    \b
    Examples:
      pgworkers top
      pgworkers top --queue reports --interval 5s
      pgworkers top --once
      pgworkers top -o json | jq '.hosts[].queues[].workers[] | select(.stalled)'
    """
    invocation = said(ctx)
    if interval < SHORTEST:
        raise UsageError(
            f"--interval: {interval:g}s is shorter than {SHORTEST:g}s; every refresh asks the database"
        )
    once = once or invocation.output != "table"
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top needs a terminal; --once prints one frame, -o json prints it as data")
    with place.database(invocation) as db:
        if once:
            _print(db, invocation.output, queue)
            return 0
        from pgworkers.cli.top_loop import Top

        return Top(db, interval, queue, yes=invocation.yes).run()


def _print(db: Database, how: str, queue: str | None) -> None:
    from pgworkers.cli import top_model, top_screen
    from pgworkers.cli.top_database import look

    picture, wish = look(db, tell=False), top_model.Wish(queue=queue)
    if how == "json":
        output.document(top_model.document(picture, wish))
    elif how == "ndjson":
        for row in top_model.rows(picture, replace(wish, tree=False)):
            assert row.worker is not None
            output.line({"host_name": row.host.name, **output.record(row.worker)})
    else:
        width = os.get_terminal_size().columns if sys.stdout.isatty() else PIPE
        scene = top_screen.Scene(wish)
        output.say(
            "\n".join(top_screen.text(picture, top_model.rows(picture, wish), scene, width)), lines=True
        )
