"""`pgworkers pg start|stop|status|psql|reset`: the embedded server by hand."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import Any

import click

from pgworkers.cli import database, output
from pgworkers.cli.formatting import terminal_safe
from pgworkers.cli.invocation import CliGroup, Invocation, OutputFormat, invocation_of
from pgworkers.embedded.server import EmbeddedServer, ServerStatus
from pgworkers.errors import NotFound, UsageError

EXIT_NOT_RUNNING = 3  # as pg_ctl and systemctl answer


@click.group(cls=CliGroup)
def pg() -> None:
    """The embedded Postgres server."""


@pg.command()
@click.pass_context
def start(ctx: click.Context) -> None:
    """Start the server and keep it running until `pg stop`.

    `pgworkers run` needs none of this: it starts the server for as long as something uses it.

    \b
    Examples:
      pgworkers pg start
      export DATABASE_URL=$(pgworkers -q pg start)
    """
    invocation = invocation_of(ctx)
    dsn = _server(invocation).start()
    if invocation.output == OutputFormat.TABLE:
        output.print_text(dsn)
    else:
        output.print_record(invocation, {"dsn": dsn})


@pg.command()
@click.option(
    "--force", is_flag=True, help="Stop it although it is in use; its users lose their connections."
)
@click.pass_context
def stop(ctx: click.Context, force: bool) -> None:
    """Stop the server. Refused while something uses it.

    \b
    Examples:
      pgworkers pg stop
      pgworkers pg stop --force
    """
    invocation = invocation_of(ctx)
    stopped = _server(invocation).stop(force=force)
    output.print_note(invocation, "stopped" if stopped else "it was not running")


@pg.command()
@click.pass_context
def status(ctx: click.Context) -> None:
    """Whether it runs, where its data is and who uses it. Exit code 3 when it does not run.

    \b
    Examples:
      pgworkers pg status
      pgworkers pg status -o json
    """
    invocation = invocation_of(ctx)
    found = _server(invocation).status()
    if invocation.output != OutputFormat.TABLE:
        output.print_record(invocation, _status_record(found))
    else:
        for name, value in _status_lines(found):
            output.print_text(f"{name:9}{value}")
    if found.pid is None:
        ctx.exit(EXIT_NOT_RUNNING)


@pg.command(
    cls=click.Command,  # all that follows is for psql, -c too
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def psql(ctx: click.Context, args: tuple[str, ...]) -> None:
    """Open psql on the server's database. What follows is passed to psql.

    \b
    Examples:
      pgworkers pg psql
      pgworkers pg psql -c 'SELECT * FROM pgworkers.jobs'
    """
    server = _server(invocation_of(ctx))
    dsn = server.acquire()
    try:
        program = server.binaries().program("psql")
        found = str(program) if program.is_file() else shutil.which("psql")
        if found is None:
            raise NotFound(
                f"there is no psql in {program.parent} nor on PATH; any other client can use {dsn}"
            )
        with subprocess.Popen([found, *args, dsn]) as running:
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for psql: it ends a query
            try:
                ctx.exit(running.wait())
            finally:
                signal.signal(signal.SIGINT, before)
    finally:
        server.release()


@pg.command()
@click.pass_context
def reset(ctx: click.Context) -> None:
    """Stop the server and delete its data: every job, finished or not.

    It asks first, and is refused while something uses the server.

    \b
    Examples:
      pgworkers pg reset
      pgworkers -y pg reset
    """
    invocation = invocation_of(ctx)
    server = _server(invocation)
    found = server.status()
    if not found.has_data:
        output.print_note(invocation, f"nothing to delete: there is no data in {found.home}")
        return
    if not invocation.is_confirmed:
        if not sys.stdin.isatty():
            raise UsageError(f"this deletes all jobs in {found.data}; nothing was deleted. Say so with --yes")
        click.confirm(terminal_safe(f"Delete all jobs in {found.data}?"), abort=True, err=True)
    server.reset()
    output.print_note(invocation, f"deleted {found.data}")


def _server(invocation: Invocation) -> EmbeddedServer:
    home = database.embedded_home(invocation, database.load_command_settings(invocation).settings)
    return EmbeddedServer(home, on_message=lambda text: output.print_note(invocation, text))


def _status_record(found: ServerStatus) -> dict[str, Any]:
    return {
        "home": found.home,
        "data": found.data,
        "exists": found.has_data,
        "version": found.major_version,
        "pid": found.pid,
        "ready": found.is_ready,
        "dsn": found.dsn,
        "users": found.user_pids,
        "kept": found.is_kept_running,
        "log": found.log,
    }


def _status_lines(found: ServerStatus) -> list[tuple[str, str]]:
    state = "stopped" if found.pid is None else "running" if found.is_ready else "starting"
    if found.is_kept_running:
        state += ", until pgworkers pg stop"
    lines = [("server", state), ("data", str(found.data) if found.has_data else f"none yet in {found.data}")]
    if found.major_version is not None:
        lines.append(("version", f"Postgres {found.major_version}"))
    if found.pid is not None:
        lines += [("pid", str(found.pid)), ("dsn", found.dsn or "")]
        lines.append(("used by", ", ".join(map(_show_process, found.user_pids)) or "no process"))
        lines.append(("log", str(found.log)))
    return lines


def _show_process(pid: int) -> str:
    """The number of a process and its command line."""
    import psutil

    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return str(pid)
    words[:1] = [os.path.basename(word) for word in words[:1]]
    return f"{pid} ({' '.join(words)[:60]})"
