"""`pgworkers version`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import click

from pgworkers.cli import output
from pgworkers.cli.invocation import Command, said


def own() -> str:
    """The version of the installed package."""
    try:
        return installed("pgworkers")
    except PackageNotFoundError:  # run from a source tree that nobody installed
        return "unknown"


@click.command(cls=Command)
@click.pass_context
def version(ctx: click.Context) -> None:
    """The versions of pgworkers and what it stands on.

    \b
    Examples:
      pgworkers version
      pgworkers version -o json
    """
    import psycopg

    facts = {
        "pgworkers": own(),
        "python": platform.python_version(),
        "psycopg": installed("psycopg"),
        "libpq": _number(psycopg.pq.version()),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    invocation = said(ctx)
    if invocation.output == "table":
        for name, value in facts.items():
            output.say(f"{name:<10}{value}")
    elif invocation.output == "json":
        output.document(facts)
    else:
        output.line(facts)


def _number(version_num: int) -> str:
    """160004 is 16.4."""
    return f"{version_num // 10000}.{version_num % 10000}"
