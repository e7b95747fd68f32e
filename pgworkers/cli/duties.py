"""`pgworkers duties`: list the duties of the leader, and run one by hand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from pgworkers.cli import database, output
from pgworkers.cli.invocation import CliGroup, OutputFormat, invocation_of
from pgworkers.cli.output import Column
from pgworkers.errors import PgworkersError
from pgworkers.units import format_duration

if TYPE_CHECKING:
    from pgworkers.events import EventBus
    from pgworkers.master.connection import ReconnectingConnection
    from pgworkers.master.duties import DutyRunner
    from pgworkers.settings import Settings


@click.group(cls=CliGroup)
def duties() -> None:
    """The leader's duties; run one by hand."""


@duties.command("list")
@click.pass_context
def list_(ctx: click.Context) -> None:
    """What the leader does, and how often.

    \b
    Examples:
      pgworkers duties
    """
    from pgworkers.events import EventBus
    from pgworkers.master.connection import ReconnectingConnection

    invocation = invocation_of(ctx)
    settings = database.load_command_settings(invocation).settings
    found = _duties(ReconnectingConnection("duties", "", settings, EventBus()), EventBus(), settings)
    rows = [
        {
            "name": duty.name,
            "every": duty.interval_seconds,
            "seen": duty.is_on_demand,
            "at_once": duty.is_due_on_election,
            "doc": duty.description,
        }
        for duty in found.duties.values()
    ]
    output.print_rows(invocation, rows, _COLUMNS, if_empty="")


@duties.command("run")
@click.argument("name", metavar="DUTY")
@click.pass_context
def run_(ctx: click.Context, *, name: str) -> None:
    """Run one duty now, on any host. Running a duty twice is safe.

    \b
    Examples:
      pgworkers duties run rescue        jobs of hosts that stopped renewing
      pgworkers duties run partitions
    """
    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        count = asyncio.run(_run_duty(db.dsn, db.settings, name))
    if invocation.output == OutputFormat.TABLE:
        output.print_note(invocation, f"{name}: {count} row{'s' * (count != 1)}")
    else:
        row = {"duty": name, "rows": count}
        output.print_record(invocation, row)


async def _run_duty(dsn: str, settings: Settings, name: str) -> int:
    from pgworkers.events import DutyFailed, Event, EventBus
    from pgworkers.master.connection import ReconnectingConnection

    failures: list[str] = []

    def record_failure(event: Event) -> None:
        if isinstance(event, DutyFailed):
            failures.append(event.error)

    events = EventBus()
    events.subscribe(record_failure)
    line = ReconnectingConnection("duties", dsn, settings, events)
    try:
        count = await _duties(line, events, settings).perform_completely(name)
    finally:
        await line.close()
    if failures:
        raise PgworkersError(
            f"duty {name} failed: {failures[0]}; what it had not done is left for the next time"
        )
    return count


def _duties(line: ReconnectingConnection, events: EventBus, settings: Settings) -> DutyRunner:
    from pgworkers.job.hosts import NO_HOST_ID
    from pgworkers.master.duty_assembly import make_duties

    return make_duties(
        NO_HOST_ID, line, events, settings, may_rescue=lambda: True, database_time=lambda: None, buffers=None
    )


_COLUMNS: list[Column] = [
    ("duty", lambda duty: duty["name"]),
    ("every", lambda duty: "when due" if duty["seen"] else format_duration(duty["every"])),
    ("what", lambda duty: duty["doc"]),
]
