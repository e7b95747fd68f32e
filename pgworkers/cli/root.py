"""`pgworkers`: the group that knows every command by name and imports one only when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import click

from pgworkers.cli.invocation import CONTEXT_SETTINGS, CliGroup, global_options

#: section -> command -> (module:attribute, the line in --help); a law test compares it with the command's.
COMMAND_SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Run": {
        "init": ("pgworkers.cli.init:init", "Write a first app.py, Procfile and .env.example."),
        "run": ("pgworkers.cli.run:run", "Start a host: one master, its supervisors and workers."),
    },
    "Jobs": {
        "enqueue": ("pgworkers.cli.enqueue:enqueue", "Enqueue one job, or a file of them."),
        "jobs": (
            "pgworkers.cli.jobs.command:jobs",
            "List, show, await, retry, cancel, discard jobs; move a deadline; look inside, suspend, resume, kill.",
        ),
    },
    "Cluster": {
        "top": (
            "pgworkers.cli.top.command:top",
            "The live tree of hosts, queues, workers and jobs, with keys.",
        ),
        "queues": (
            "pgworkers.cli.queues:queues",
            "List, pause, resume, scale, limit and empty queues; set their retention.",
        ),
        "schedules": (
            "pgworkers.cli.schedules:schedules",
            "List, run, pause, resume and remove schedules; their next ticks.",
        ),
        "tasks": ("pgworkers.cli.tasks:tasks", "The tasks of the app, and the JSON Schema of each."),
        "duties": ("pgworkers.cli.duties:duties", "The leader's duties; run one by hand."),
        "workers": ("pgworkers.cli.workers:workers", "The worker processes of all hosts."),
        "hosts": ("pgworkers.cli.hosts:hosts", "The hosts that share this database."),
        "doctor": (
            "pgworkers.cli.doctor:doctor",
            "Report problems, why they matter, and the command that fixes each.",
        ),
    },
    "Database": {
        "migrate": ("pgworkers.cli.migrate:migrate", "Create the schema or bring it up to date."),
        "grants": (
            "pgworkers.cli.grants:grants",
            "What enqueue-only roles may enqueue, and how much of it may wait.",
        ),
        "pg": ("pgworkers.cli.pg:pg", "The embedded Postgres server."),
        "bench": (
            "pgworkers.cli.bench.command:bench",
            "Measure this database for pgworkers: round trips, enqueueing, a host at work.",
        ),
    },
    "Around": {
        "export": (
            "pgworkers.cli.export:export",
            "Files for other tools: dashboards, alerts, systemd, Kubernetes, Docker.",
        ),
    },
    "About": {
        "config": ("pgworkers.cli.config:config", "Every setting, its value and where it came from."),
        "version": ("pgworkers.cli.version:version", "The versions of pgworkers and what it stands on."),
    },
}
COMMANDS = {name: entry for section in COMMAND_SECTIONS.values() for name, entry in section.items()}

HELP_EPILOG = """
Examples:

\b
  pgworkers init                             a first app.py in this directory
  pgworkers run                              serve app.py on the embedded Postgres, or on DATABASE_URL
  pgworkers enqueue render report_id=7       in a second terminal
  pgworkers enqueue render --file rows.ndjson
  pgworkers jobs list --state dead
  pgworkers jobs show 1042                   what happened to it, attempt by attempt
  pgworkers jobs retry --state dead --task render

\b
Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 database unreachable, 5 schema out of date,
6 app cannot be loaded. Global options may stand before or after the command. Every option reads a
variable: the one shown, else PGWORKERS_<COMMAND>_<OPTION>, e.g. PGWORKERS_JOBS_LIST_LIMIT.
"""


class RootGroup(CliGroup):
    """Commands by name, loaded when used; help in sections."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry[0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.Abort from None  # before click prints an empty line for it

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for section, commands in COMMAND_SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in commands.items()])


def _print_version(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value and not ctx.resilient_parsing:
        from pgworkers.cli.version import pgworkers_version

        click.echo(f"pgworkers {pgworkers_version()}")
        ctx.exit()


root = RootGroup(
    name="pgworkers",
    help="A Postgres job queue whose jobs are real processes: it starts, measures, stops and explains them.",
    epilog=HELP_EPILOG,
    context_settings=CONTEXT_SETTINGS,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            allow_from_autoenv=False,
            help="Print the version and exit.",
        )
    ],
)
root.params[1:] = global_options(is_root=True)


def walk_commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command with its full name, groups before their commands."""
    top = click.Context(root, info_name="pgworkers", **CONTEXT_SETTINGS)  # type: ignore[arg-type]
    yield "pgworkers", root, top
    for section in COMMAND_SECTIONS.values():
        for name in section:
            command = root.get_command(top, name)
            assert command is not None
            ctx = click.Context(command, info_name=name, parent=top)
            yield f"pgworkers {name}", command, ctx
            if isinstance(command, click.Group):
                for below_name in command.list_commands(ctx):
                    below = command.get_command(ctx, below_name)
                    assert below is not None
                    yield (
                        f"pgworkers {name} {below_name}",
                        below,
                        click.Context(below, info_name=below_name, parent=ctx),
                    )
