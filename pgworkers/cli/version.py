"""`pgworkers version`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import click

from pgworkers.cli import output
from pgworkers.cli.invocation import CliCommand, OutputFormat, invocation_of


def pgworkers_version() -> str:
    """The version of the installed package."""
    try:
        return installed("pgworkers")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"


@click.command(cls=CliCommand)
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
        "pgworkers": pgworkers_version(),
        "python": platform.python_version(),
        "psycopg": installed("psycopg"),
        "libpq": _show_libpq_version(psycopg.pq.version()),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    invocation = invocation_of(ctx)
    if invocation.output == OutputFormat.TABLE:
        for name, value in facts.items():
            output.print_text(f"{name:<10}{value}")
    else:
        output.print_record(invocation, facts)


def _show_libpq_version(version_num: int) -> str:
    """160004 is 16.4."""
    return f"{version_num // 10000}.{version_num % 10000}"
