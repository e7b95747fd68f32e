"""`pgworkers init`: the files a new project needs, written once and never overwritten."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from pgworkers.cli import output
from pgworkers.cli.invocation import CliCommand, OutputFormat, invocation_of
from pgworkers.deploy.template_files import project_files


@click.command(cls=CliCommand)
@click.argument("directory", default=".", type=click.Path(file_okay=False, path_type=Path))
@click.pass_context
def init(ctx: click.Context, directory: Path) -> None:
    """Write a first app.py, Procfile and .env.example.

    A file that is already there is left as it is, and named.

    \b
    Examples:
      pgworkers init
      pgworkers init jobs && cd jobs && pgworkers run
    """
    directory.mkdir(parents=True, exist_ok=True)
    made = {name: _create_file(directory / name, text) for name, text in project_files().items()}
    invocation = invocation_of(ctx)
    found = [{"file": str(directory / name), "written": written} for name, written in made.items()]
    if invocation.output != OutputFormat.TABLE:
        output.print_rows(invocation, found, [], if_empty="")
        return
    for row in found:
        output.print_text(
            f"{'wrote  ' if row['written'] else 'skipped'} {row['file']}"
            + ("" if row["written"] else " (it exists)")
        )
    where = "" if directory == Path(".") else f"cd {shlex.quote(str(directory))} && "
    output.print_note(invocation, f"next: {where}pgworkers run")


def _create_file(path: Path, text: str) -> bool:
    """Create the file; False when something of that name is already there."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    return True
