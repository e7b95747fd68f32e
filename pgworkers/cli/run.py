"""`pgworkers run`: read the options of a host and hand them to the master."""

from __future__ import annotations

import os
from typing import Any

import click

from pgworkers.cli import database, output
from pgworkers.cli.config import unknown_variables
from pgworkers.cli.invocation import CliCommand, invocation_of
from pgworkers.errors import UsageError


class SettingOption(click.Option):
    """An option that overrides a setting; its variable is the setting's own, read by `settings.load`."""

    def __init__(self, *args: Any, **attrs: Any) -> None:
        super().__init__(*args, **{**attrs, "allow_from_autoenv": False})
        self.help = f"{self.help}  [env var: PGWORKERS_{str(self.name).upper()}]"


@click.command(cls=CliCommand)
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
    help="Exit with 0 when no job is left that this host can run, including retries. Prints what is left and why.",
)
@click.option(
    "--drain",
    "drain_timeout",
    cls=SettingOption,
    metavar="TIME",
    help="How long running jobs may continue after SIGTERM, e.g. 25s.",
)
@click.option(
    "--metrics",
    "metrics_address",
    cls=SettingOption,
    metavar="HOST:PORT|off",
    help="Address of /metrics, /livez and /readyz.",
)
@click.option(
    "--log", "log_format", cls=SettingOption, metavar="text|json", help="Format of log lines: text or json."
)
@click.option(
    "--reload",
    is_flag=True,
    envvar="PGWORKERS_RELOAD",
    show_envvar=True,
    help="Reload the code when a Python file next to the app changes; for development.",
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
    drain_timeout: str | None,
    metrics_address: str | None,
    log_format: str | None,
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
    invocation = invocation_of(ctx)
    config = database.require_config(invocation)
    given = {"drain_timeout": drain_timeout, "metrics_address": metrics_address, "log_format": log_format}
    flags = {**invocation.flags(), **{name: value for name, value in given.items() if value is not None}}
    loaded = database.load_command_settings(invocation, flags)
    for text in unknown_variables(os.environ):
        output.print_warning(invocation, text)
    max_workers = loaded.settings.max_workers
    every = None if workers is None else parse_workers(workers, max_workers)
    only = None if queues is None else parse_queues(queues, max_workers)

    from pgworkers.master.boot import RunOptions
    from pgworkers.master.main import run as serve

    return serve(
        RunOptions(
            config=config,
            loaded_settings=loaded,
            flags=flags,
            workers=every,
            queues=only,
            is_burst=burst,
            is_check=check,
            enqueue=enqueue,
            is_quiet=invocation.is_quiet,
            should_watch_files=reload,
        )
    )


def parse_workers(text: str, max_workers: int, *, what: str = "--workers") -> int:
    """`4`, or `auto` for one per core."""
    if text.strip().lower() == "auto":
        return min(max_workers, len(os.sched_getaffinity(0)))
    try:
        count = int(text)
    except ValueError:
        raise UsageError(
            f"{what}: {text!r} is not a number; write 4, or auto for one worker per core"
        ) from None
    if not 1 <= count <= max_workers:
        raise UsageError(
            f"{what}: {count} is out of range; use 1 to {max_workers} (PGWORKERS_MAX_WORKERS raises the limit)"
        )
    return count


def parse_queues(text: str, max_workers: int) -> dict[str, int | None]:
    """`a,b:4` is a with the app's workers and b with four."""
    found: dict[str, int | None] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, count = part.partition(":")
        if not name or (colon and not count):
            raise UsageError(f"--queues: {part!r} is not a queue; write a,b:4")
        found[name] = parse_workers(count, max_workers, what=f"--queues {name}") if colon else None
    if not found:
        raise UsageError("--queues: no queue named; write a,b:4")
    return found
