"""`pgworkers tasks`: the tasks that the app declares, and the JSON Schema of their arguments and results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pgworkers.cli import database, output
from pgworkers.cli.invocation import CliGroup, Invocation, invocation_of, no_such
from pgworkers.cli.output import Column
from pgworkers.errors import NotFound, UsageError
from pgworkers.specs import TaskSpec
from pgworkers.units import format_duration

if TYPE_CHECKING:
    from pgworkers.app import App


@click.group(cls=CliGroup)
def tasks() -> None:
    """The tasks of the app, and the JSON Schema of each."""


@tasks.command("list")
@click.pass_context
def list_tasks(ctx: click.Context) -> None:
    """The tasks of the app: queue, limits, parameters. Needs no database.

    \b
    Examples:
      pgworkers tasks
      pgworkers tasks list -o json
    """
    invocation = invocation_of(ctx)
    app = _load_app(invocation)
    found = sorted((task.to_spec() for task in app.tasks.values()), key=lambda spec: spec.name)
    output.print_rows(
        invocation, [_row(spec) for spec in found], _COLUMNS, if_empty="no tasks", quiet_column="name"
    )


@tasks.command("schema")
@click.argument("names", metavar="[TASK]...", nargs=-1)
@click.pass_context
def print_schema(ctx: click.Context, *, names: tuple[str, ...]) -> None:
    """The JSON Schema of arguments and results. Needs no database.

    The schema describes what is stored, which is also what SQL and other languages enqueue. Secret arguments have
    "writeOnly": true.

    \b
    Examples:
      pgworkers tasks schema > tasks.json
      pgworkers tasks schema render
    """
    app = _load_app(invocation_of(ctx))
    for name in names:
        if name not in app.tasks:
            raise NotFound(no_such("task", name, list(app.tasks)))
    output.print_json({name: app.tasks[name].json_schema() for name in sorted(names or app.tasks)})


def _load_app(invocation: Invocation) -> App:
    from pgworkers.cli.enqueue_job import import_app_in_time

    config = database.find_config(invocation)
    if config is None:
        raise UsageError("there is no app: give it with -c app.py, or run this where app.py is")
    return import_app_in_time(
        invocation,
        config,
        database.load_command_settings(invocation).settings.import_timeout,
        not_done="nothing was printed",
    )


def _row(spec: TaskSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "queue": spec.queue,
        "attempts": spec.max_attempts,
        "timeout": spec.timeout,
        "memory": spec.memory,
        "secret": list(spec.secret),
        "signature": spec.signature,
        "doc": spec.doc,
    }


_COLUMNS: list[Column] = [
    ("name", lambda row: row["name"]),
    ("queue", lambda row: row["queue"]),
    ("attempts", lambda row: str(row["attempts"])),
    ("timeout", lambda row: "" if row["timeout"] is None else format_duration(row["timeout"])),
    ("arguments", lambda row: row["signature"]),
    ("meaning", lambda row: row["doc"]),
]
