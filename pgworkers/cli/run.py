"""`pgworkers run`: read the options of a host and hand them to the master."""

from __future__ import annotations

import os
from typing import Any

import click

from pgworkers.cli import output, place
from pgworkers.cli.invocation import Command, said
from pgworkers.cli.variables import unknown_variables
from pgworkers.errors import UsageError


class Setting(click.Option):
    """An option that overrides a setting; its variable is the setting's own, read by `settings.load`."""

    def __init__(self, *args: Any, **attrs: Any) -> None:
        super().__init__(*args, **{**attrs, "allow_from_autoenv": False})
        self.help = f"{self.help}  [env var: PGWORKERS_{str(self.name).upper()}]"


@click.command(cls=Command)
@click.option(
    "-w",
    "--workers",
    metavar="N|auto",
    envvar="PGWORKERS_WORKERS",
    show_envvar=True,
    help="Workers of every queue, whatever the app says; auto is one per core.",
)
@click.option(
    "-Q",
    "--queues",
    metavar="A,B:4",
    envvar="PGWORKERS_QUEUES",
    show_envvar=True,
    help="Serve only these queues; :4 gives a queue four workers.",
)
@click.option(
    "--burst",
    is_flag=True,
    envvar="PGWORKERS_BURST",
    show_envvar=True,
    help="End with 0 when nothing is left that this host could run, retries included; says what stays and why.",
)
@click.option(
    "--drain", cls=Setting, metavar="TIME", help="How long running jobs may go on after SIGTERM, e.g. 25s."
)
@click.option(
    "--metrics", cls=Setting, metavar="HOST:PORT|off", help="Address of /metrics, /livez and /readyz."
)
@click.option("--log", cls=Setting, metavar="text|json", help="How log lines look.")
@click.option(
    "--reload",
    is_flag=True,
    envvar="PGWORKERS_RELOAD",
    show_envvar=True,
    help="Reload the code when a Python file beside the app changes; for development.",
)
@click.option(
    "--check",
    is_flag=True,
    envvar="PGWORKERS_CHECK",
    show_envvar=True,
    help="Try app, database and schema, say so and exit.",
)
@click.option(
    "--enqueue",
    metavar="TASK",
    multiple=True,
    help="Enqueue this task once at the start, without arguments; may be repeated.",
)
@click.pass_context
def run(
    ctx: click.Context,
    *,
    workers: str | None,
    queues: str | None,
    burst: bool,
    drain: str | None,
    metrics: str | None,
    log: str | None,
    reload: bool,
    check: bool,
    enqueue: tuple[str, ...],
) -> int:
    """Start a host: one master, its supervisors and workers.

    It runs in the foreground until SIGTERM or Ctrl-C: then it takes nothing new and lets running jobs finish
    for the drain time; a second Ctrl-C stops them now. Any number of hosts may share one database.

    \b
    Examples:
      pgworkers run                              app.py here, embedded Postgres unless DATABASE_URL is set
      pgworkers run -c shop.jobs:app -w auto     one worker per core for every queue
      pgworkers run -Q reports:4,mail            only these queues
      pgworkers run --burst                      work off what is there and end
      pgworkers run --check                      would it start?
    """
    invocation = said(ctx)
    config = place.required_config(invocation)
    given = {"drain": drain, "metrics": metrics, "log": log}
    flags = {**invocation.flags(), **{name: value for name, value in given.items() if value is not None}}
    loaded = place.load(invocation, flags)
    for text in unknown_variables(os.environ):
        output.warn(invocation, text)
    most = loaded.settings.max_workers
    every = None if workers is None else parse_workers(workers, most)
    only = None if queues is None else parse_queues(queues, most)

    from pgworkers.master.main import run as serve
    from pgworkers.master.options import RunOptions

    return serve(
        RunOptions(
            config=config,
            loaded=loaded,
            flags=flags,
            workers=every,
            queues=only,
            burst=burst,
            check=check,
            enqueue=enqueue,
            quiet=invocation.quiet,
            reload=reload,
        )
    )


def parse_workers(text: str, most: int, *, what: str = "--workers") -> int:
    """`4`, or `auto` for one per core."""
    if text.strip().lower() == "auto":
        return min(most, len(os.sched_getaffinity(0)))
    try:
        count = int(text)
    except ValueError:
        raise UsageError(
            f"{what}: {text!r} is not a number; write 4, or auto for one worker per core"
        ) from None
    if not 1 <= count <= most:
        raise UsageError(
            f"{what}: {count} is out of range; use 1 to {most} (PGWORKERS_MAX_WORKERS raises the limit)"
        )
    return count


def parse_queues(text: str, most: int) -> dict[str, int | None]:
    """`a,b:4` is a with the app's workers and b with four."""
    found: dict[str, int | None] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, count = part.partition(":")
        if not name or (colon and not count):
            raise UsageError(f"--queues: {part!r} is not a queue; write a,b:4")
        found[name] = parse_workers(count, most, what=f"--queues {name}") if colon else None
    if not found:
        raise UsageError("--queues: no queue named; write a,b:4")
    return found
