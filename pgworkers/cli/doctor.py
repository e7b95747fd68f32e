"""`pgworkers doctor`: report problems, why they matter, and the command that fixes each."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from pgworkers import settings
from pgworkers.cli import database, output
from pgworkers.cli.error_report import ExitCode
from pgworkers.cli.formatting import plural
from pgworkers.cli.invocation import CliCommand, Invocation, OutputFormat, invocation_of
from pgworkers.errors import AppNotLoaded, DatabaseUnreachable, PermissionDenied
from pgworkers.observe.escape import shell_command
from pgworkers.units import parse_duration

if TYPE_CHECKING:
    from pgworkers.doctor.checks import DatabaseFacts
    from pgworkers.doctor.findings import Finding, Thresholds

_LEVEL_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "bright_black"}


@click.command(cls=CliCommand)
@click.option(
    "--warn-after",
    default="1m",
    metavar="DURATION",
    show_default=True,
    help="Warn about transactions, waits and pauses longer than this; fail at ten times as long.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 on warnings as well.")
@click.pass_context
def doctor(ctx: click.Context, *, warn_after: str, strict: bool) -> None:
    """Report problems, why they matter, and the command that fixes each.

    Looks at this machine, the database and the whole cluster, and changes nothing. Exit code 0: no check fails
    (with --strict: and none warns), 1: a check fails, 4: the database cannot be reached (the checks of this machine
    ran nevertheless). -q shows only problems.

    \b
    Examples:
      pgworkers doctor
      pgworkers doctor -q --strict          in a deploy script
      pgworkers doctor -o json | jq '.[] | select(.level == "fail")'
    """
    from pgworkers.doctor.findings import Level, Thresholds, worst_level

    invocation = invocation_of(ctx)
    tolerance = Thresholds(warn_after_seconds=parse_duration(warn_after, what="--warn-after"))
    found: list[Finding] = []
    reached = True
    for finding in _all_findings(invocation, tolerance):
        if finding is None:
            reached = False
            continue
        found.append(finding)
        if invocation.output == OutputFormat.NDJSON:
            output.print_json_line(finding)
        elif invocation.output == OutputFormat.TABLE:
            _print_finding(invocation, finding)
    if invocation.output == OutputFormat.JSON:
        output.print_json([output.as_record(finding) for finding in found])
    elif invocation.output == OutputFormat.TABLE:
        counts = [
            f"{sum(f.level == level for f in found)} {level}"
            for level in Level
            if any(f.level == level for f in found)
        ]
        output.print_note(invocation, f"{plural(len(found), 'finding')}: {', '.join(counts)}")
    level = worst_level(found)
    if not reached:
        ctx.exit(ExitCode.DATABASE_UNREACHABLE)
    ctx.exit(1 if level == Level.FAIL or (strict and level == Level.WARN) else 0)


def _print_finding(invocation: Invocation, finding: Finding) -> None:
    if invocation.is_quiet and finding.level in ("ok", "skip"):
        return
    output.print_text(
        f" {finding.check:<13} {finding.what}",
        head=f"{finding.level:<5}",
        colour=_LEVEL_COLOURS[finding.level],
    )
    if finding.why:
        output.print_text(f"{'':<19} why: {finding.why}")
    for line in str(finding.facts.get("traceback", "")).splitlines():
        output.print_text(f"{'':<19} | {line}")
    for fix in finding.fix if finding.level != "ok" else ():
        output.print_text(f"{'':<19} fix: {fix}")


def _all_findings(invocation: Invocation, tolerance: Thresholds) -> Iterator[Finding | None]:
    """Every finding; None: the database cannot be reached."""
    from pgworkers.doctor.findings import fail

    loaded, findings, workers = _check_app(invocation)
    yield from findings
    patient: DatabaseFacts | None = None
    lost = ""
    try:
        with database.open_database(invocation, loaded=loaded, should_check_schema=False) as db:
            patient = _database_facts(db, tolerance)
            yield from _check_machine(loaded.settings, workers, _local_master_pid(patient))
            yield from _database(patient)
            return
    except DatabaseUnreachable as error:
        lost = str(error)
    except _Lost as error:
        lost = f"the connection broke in the middle: {error}"
    if patient is None:
        yield from _check_machine(loaded.settings, workers, None)
    yield fail(
        "database",
        lost,
        "nothing can be enqueued or claimed; running jobs go on, and their ends are written when it is back",
        "pgworkers config show  # which database is meant, and why",
    )
    yield None


class _Lost(Exception):
    pass


def _database(patient: DatabaseFacts) -> Iterator[Finding]:
    from pgworkers.doctor.checks import DoctorConnectionLost, run_checks

    try:
        yield from run_checks(patient)
    except DoctorConnectionLost as error:
        raise _Lost(str(error)) from error


def _check_app(invocation: Invocation) -> tuple[settings.LoadedSettings, list[Finding], int]:
    """The settings with those of the app, findings about the app, and how many workers it wants on this host."""
    from pgworkers.doctor.findings import fail, ok, skip

    loaded = database.load_command_settings(invocation)
    try:
        config = database.find_config(invocation)
    except AppNotLoaded as error:
        return loaded, [fail("app", str(error), "commands refuse to load it")], 0
    if config is None:
        return loaded, [skip("app", "no app.py here and no --config: looked at without one")], 0
    from pgworkers.supervisor.describe import describe, threads_error

    try:
        spec = describe(
            config, loaded.settings.import_timeout, on_slow=lambda text: output.print_note(invocation, text)
        )
    except AppNotLoaded as error:
        why = "`pgworkers run` refuses to start, and a reload is refused; hosts that run go on with the old code"
        return loaded, [fail("app", str(error), why, shell_command("run", check=True, config=config))], 0
    loaded = settings.load_settings(flags=invocation.flags(), app=spec.settings)
    if spec.threads:
        what, why = threads_error(config, spec.threads), "`pgworkers run` refuses to start"
        return loaded, [fail("app", what, why, shell_command("run", check=True, config=config))], 0
    workers = sum(queue.max_workers_per_host for queue in spec.queues)
    what = f"{config}, version {spec.version}: {plural(len(spec.queues), 'queue')}, {plural(len(spec.tasks), 'task')}"
    return loaded, [ok("app", what)], workers


def _database_facts(db: database.OpenDatabase, tolerance: Thresholds) -> DatabaseFacts:
    from pgworkers.doctor.checks import DatabaseFacts
    from pgworkers.postgres import connect

    listen: Any = partial(connect.connect, db.settings, db.settings.direct_dsn or db.dsn, "doctor")
    psql = "pgworkers pg psql" if db.chosen.is_embedded else "psql"
    return DatabaseFacts(db.conn, db.schema, db.settings, listen, tolerance, psql)


def _local_master_pid(patient: DatabaseFacts) -> int | None:
    """The pid of a master of this cluster on this machine, if there is one."""
    import psycopg

    from pgworkers.doctor.machine import is_master

    try:
        here = [host.pid for host in patient.hosts if host.name == socket.gethostname() and not host.is_stale]
    except (psycopg.Error, PermissionDenied):
        return None  # no schema, or no right to read it: other checks say so
    return next((pid for pid in here if is_master(pid)), None)


def _check_machine(found: settings.Settings, workers: int, master: int | None) -> Iterator[Finding]:
    from pgworkers.doctor import machine
    from pgworkers.master.drain import max_stop_seconds

    seen = machine.read_machine(master)
    yield from machine.check_limits(seen, workers)
    yield from machine.check_oom_group(seen)
    yield from machine.check_account(seen)
    yield from machine.check_core_dumps(seen)
    yield from machine.check_stop_timeout(seen, found.service_stop_timeout, max_stop_seconds(found))
