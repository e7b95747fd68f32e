"""`pgworkers init`: the files a new project needs, written once and never overwritten."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from pgworkers.cli import output
from pgworkers.cli.invocation import CliCommand, invocation_of
from pgworkers.deploy.template_files import render_procfile

APP = '''"""Run with `pgworkers run`; in a second terminal: `pgworkers enqueue count_primes below=200000`."""

from pgworkers import App, Ctx

app = App()  # DATABASE_URL, else PG* variables, else an embedded Postgres in .pgworkers/
app.queue("default", workers=2)


@app.task(timeout="5m", retries=3)
def count_primes(ctx: Ctx, below: int = 100_000) -> dict[str, int]:
    """Counts primes the slow way, to have something for a core to do."""
    found = 0
    for n in ctx.track(range(2, below)):  # shows progress, and ends here when the job is cancelled
        if all(n % d for d in range(2, int(n**0.5) + 1)):
            found += 1
    return {"primes": found}
'''


ENV = """# Copy to .env and load it the way you start the app. Every setting: pgworkers config show --defaults
# DATABASE_URL=postgresql://user:password@localhost:5432/app
# PGWORKERS_DRAIN_TIMEOUT=25s
# PGWORKERS_METRICS_ADDRESS=127.0.0.1:9911
# PGWORKERS_LOG_FORMAT=json
"""

FILES = {"app.py": APP, "Procfile": render_procfile("app.py"), ".env.example": ENV}


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
    made = {name: _create_file(directory / name, text) for name, text in FILES.items()}
    invocation = invocation_of(ctx)
    found = [{"file": str(directory / name), "written": written} for name, written in made.items()]
    if invocation.output != "table":
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
