"""`pgworkers doctor`: what is wrong, why it matters, and the command that mends it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from pgworkers import settings
from pgworkers.cli import output, place
from pgworkers.cli.failure import DATABASE
from pgworkers.cli.invocation import Command, Invocation, said
from pgworkers.cli.wording import plural
from pgworkers.clock import seconds
from pgworkers.errors import AppNotLoaded, DatabaseUnreachable, PermissionDenied
from pgworkers.observe.escape import command

if TYPE_CHECKING:
    from pgworkers.doctor.examine import Patient
    from pgworkers.doctor.finding import Finding, Tolerance

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "bright_black"}


@click.command(cls=Command)
@click.option(
    "--patience",
    default="1m",
    metavar="DURATION",
    show_default=True,
    help="From when on a transaction, a wait or a pause is a finding; ten times that is a failure.",
)
@click.option("--strict", is_flag=True, help="A warning is a failure, too.")
@click.pass_context
def doctor(ctx: click.Context, *, patience: str, strict: bool) -> None:
    """What is wrong, why it matters, and the command that mends it.

    Looks at this machine, the database and the whole cluster, and changes nothing. Exit code 0: nothing fails
    (with --strict: and nothing warns), 1: something does, 4: the database cannot be reached (this machine was
    looked at all the same). -q shows only what is wrong.

    \b
    Examples:
      pgworkers doctor
      pgworkers doctor -q --strict          in a deploy script
      pgworkers doctor -o json | jq '.[] | select(.level == "fail")'
    """
    from pgworkers.doctor.finding import Level, Tolerance, worst

    invocation = said(ctx)
    tolerance = Tolerance(patience=seconds(patience, what="--patience"))
    found: list[Finding] = []
    reached = True
    for finding in _all(invocation, tolerance):
        if finding is None:
            reached = False
            continue
        found.append(finding)
        if invocation.output == "ndjson":
            output.line(finding)
        elif invocation.output == "table":
            _tell(invocation, finding)
    if invocation.output == "json":
        output.document([output.record(finding) for finding in found])
    elif invocation.output == "table":
        counts = [
            f"{sum(f.level == level for f in found)} {level}"
            for level in Level
            if any(f.level == level for f in found)
        ]
        output.note(invocation, f"{plural(len(found), 'finding')}: {', '.join(counts)}")
    level = worst(found)
    if not reached:
        ctx.exit(DATABASE)
    ctx.exit(1 if level == Level.FAIL or (strict and level == Level.WARN) else 0)


def _tell(said: Invocation, finding: Finding) -> None:
    if said.quiet and finding.level in ("ok", "skip"):
        return
    output.say(
        f" {finding.check:<13} {finding.what}", head=f"{finding.level:<5}", colour=_COLOURS[finding.level]
    )
    if finding.why:
        output.say(f"{'':<19} why: {finding.why}")
    for line in str(finding.facts.get("traceback", "")).splitlines():
        output.say(f"{'':<19} | {line}")
    for fix in finding.fix if finding.level != "ok" else ():
        output.say(f"{'':<19} fix: {fix}")


def _all(said: Invocation, tolerance: Tolerance) -> Iterator[Finding | None]:
    """Every finding; None: the database cannot be reached."""
    from pgworkers.doctor.finding import fail

    loaded, findings, workers = _app(said)
    yield from findings
    patient: Patient | None = None
    lost = ""
    try:
        with place.database(said, loaded=loaded, check=False) as db:
            patient = _patient(db, tolerance)
            yield from _machine(loaded.settings, workers, _master(patient))
            yield from _database(patient)
            return
    except DatabaseUnreachable as error:
        lost = str(error)
    except _Lost as error:
        lost = f"the connection broke in the middle: {error}"
    if patient is None:
        yield from _machine(loaded.settings, workers, None)
    yield fail(
        "database",
        lost,
        "nothing can be enqueued or claimed; running jobs go on, and their ends are written when it is back",
        "pgworkers config show  # which database is meant, and why",
    )
    yield None


class _Lost(Exception):
    pass


def _database(patient: Patient) -> Iterator[Finding]:
    from pgworkers.doctor.examine import ConnectionLost, examine

    try:
        yield from examine(patient)
    except ConnectionLost as error:
        raise _Lost(str(error)) from error


def _app(said: Invocation) -> tuple[settings.Loaded, list[Finding], int]:
    """The settings with those of the app, what is to be said about the app, and how many workers it wants here."""
    from pgworkers.doctor.finding import fail, ok, skip

    loaded = place.load(said)
    try:
        config = place.config(said)
    except AppNotLoaded as error:
        return loaded, [fail("app", str(error), "commands refuse to load it")], 0
    if config is None:
        return loaded, [skip("app", "no app.py here and no --config: looked at without one")], 0
    from pgworkers.supervisor.ask import describe, starts_threads

    try:
        spec = describe(config, loaded.settings.boot, say=lambda text: output.note(said, text))
    except AppNotLoaded as error:
        why = "`pgworkers run` refuses to start, and a reload is refused; hosts that run go on with the old code"
        return loaded, [fail("app", str(error), why, command("run", check=True, config=config))], 0
    loaded = settings.load(flags=said.flags(), app=spec.settings)
    if spec.threads:
        what, why = starts_threads(config, spec.threads), "`pgworkers run` refuses to start"
        return loaded, [fail("app", what, why, command("run", check=True, config=config))], 0
    workers = sum(queue.here for queue in spec.queues)
    what = f"{config}, version {spec.version}: {plural(len(spec.queues), 'queue')}, {plural(len(spec.tasks), 'task')}"
    return loaded, [ok("app", what)], workers


def _patient(db: place.Database, tolerance: Tolerance) -> Patient:
    from pgworkers.doctor.examine import Patient
    from pgworkers.postgres import connect

    listen: Any = partial(connect.connect, db.settings, db.settings.direct_dsn or db.dsn, "doctor")
    psql = "pgworkers pg psql" if db.chosen.embedded else "psql"
    return Patient(db.conn, db.schema, db.settings, listen, tolerance, psql)


def _master(patient: Patient) -> int | None:
    """The pid of a master of this cluster on this machine, if there is one."""
    import psycopg

    from pgworkers.doctor.machine import is_master

    try:
        here = [host.pid for host in patient.hosts if host.name == socket.gethostname() and not host.stale]
    except (psycopg.Error, PermissionDenied):
        return None  # no schema, or no right to read it: other checks say so
    return next((pid for pid in here if is_master(pid)), None)


def _machine(found: settings.Settings, workers: int, master: int | None) -> Iterator[Finding]:
    from pgworkers.doctor import local, machine
    from pgworkers.master.drain import longest

    seen = machine.look(master)
    yield from local.limits(seen, workers)
    yield from local.oom_group(seen)
    yield from local.account(seen)
    yield from local.core_dumps(seen)
    yield from local.stopping(seen, found.stop_timeout, longest(found))
