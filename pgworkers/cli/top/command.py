"""`pgworkers top`: the live tree over all hosts, and keys that reach into it.

`model` holds what is shown. `screen` draws it from `rows`, which are made of `cells`; `keys` says what keys mean. These are
pure. `terminal` owns the terminal, `database` has the threads that query, and `loop` connects them.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import click

from pgworkers.cli import database, output
from pgworkers.cli.database import OpenDatabase
from pgworkers.cli.invocation import CliCommand, OutputFormat, invocation_of
from pgworkers.cli.parameters import parse_duration
from pgworkers.errors import UsageError

MIN_INTERVAL_SECONDS = 0.1
#: The width of a frame in a pipe.
PIPE_WIDTH_CHARACTERS = 160


@click.command(cls=CliCommand)
@click.option(
    "--interval",
    metavar="TIME",
    default="1s",
    type=parse_duration,
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
      pgworkers top -o json | jq '.hosts[].queues[].workers[] | select(.is_stalled)'
    """
    invocation = invocation_of(ctx)
    if interval < MIN_INTERVAL_SECONDS:
        raise UsageError(
            f"--interval: {interval:g}s is shorter than {MIN_INTERVAL_SECONDS:g}s; every refresh asks the database"
        )
    once = once or invocation.output != OutputFormat.TABLE
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top needs a terminal; --once prints one frame, -o json prints it as data")
    with database.open_database(invocation) as db:
        if once:
            _print_once(db, invocation.output, queue)
            return 0
        from pgworkers.cli.top.loop import TopLoop

        return TopLoop(db, interval, queue, yes=invocation.is_confirmed).run()


def _print_once(db: OpenDatabase, how: str, queue: str | None) -> None:
    from pgworkers.cli.top import model, screen
    from pgworkers.cli.top.database import read_snapshot

    picture, options = read_snapshot(db, should_notify_hosts=False), model.ViewOptions(queue=queue)
    if how == "json":
        output.print_json(model.as_document(picture, options))
    elif how == "ndjson":
        for row in model.tree_rows(picture, replace(options, is_tree=False)):
            assert row.worker is not None
            output.print_json_line({"host_name": row.host.name, **output.as_record(row.worker)})
    else:
        width = os.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH_CHARACTERS
        scene = screen.ScreenContent(options)
        output.print_text(
            "\n".join(screen.render_text(picture, model.tree_rows(picture, options), scene, width)),
            should_keep_lines=True,
        )
