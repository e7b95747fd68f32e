"""`pgworkers duties`: what the leader does for the whole cluster, and one of them by hand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from pgworkers.cli import output, place
from pgworkers.cli.invocation import Group, said
from pgworkers.cli.output import Column
from pgworkers.clock import show_seconds
from pgworkers.errors import PgworkersError

if TYPE_CHECKING:
    from pgworkers.facts import Facts
    from pgworkers.master.duties import Duties
    from pgworkers.master.line import Line
    from pgworkers.settings import Settings


@click.group(cls=Group)
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
    from pgworkers.facts import Facts
    from pgworkers.master.line import Line

    invocation = said(ctx)
    settings = place.load(invocation).settings
    found = _duties(Line("operator", "", settings, Facts()), Facts(), settings)
    told = [
        {"name": duty.name, "every": duty.every, "seen": duty.seen, "at_once": duty.at_once, "doc": duty.doc}
        for duty in found.all.values()
    ]
    output.rows(invocation, told, _COLUMNS, empty="")


@duties.command("run")
@click.argument("name", metavar="DUTY")
@click.pass_context
def run_(ctx: click.Context, *, name: str) -> None:
    """Perform one duty now, whoever leads; each is safe to perform twice.

    \b
    Examples:
      pgworkers duties run rescue        jobs of hosts that stopped renewing
      pgworkers duties run partitions
    """
    invocation = said(ctx)
    with place.database(invocation) as db:
        count = asyncio.run(_perform(db.dsn, db.settings, name))
    if invocation.output == "table":
        output.note(invocation, f"{name}: {count} row{'s' * (count != 1)}")
    else:
        row = {"duty": name, "rows": count}
        output.document(row) if invocation.output == "json" else output.line(row)


async def _perform(dsn: str, settings: Settings, name: str) -> int:
    from pgworkers.events import DutyFailed, Fact
    from pgworkers.facts import Facts
    from pgworkers.master.line import Line

    failures: list[str] = []

    def hear(fact: Fact) -> None:
        if isinstance(fact, DutyFailed):
            failures.append(fact.error)

    facts = Facts()
    facts.listen(hear)
    line = Line("operator", dsn, settings, facts)
    try:
        count = await _duties(line, facts, settings).perform_whole(name)
    finally:
        await line.close()
    if failures:
        raise PgworkersError(
            f"duty {name} failed: {failures[0]}; what it had not done is left for the next time"
        )
    return count


def _duties(line: Line, facts: Facts, settings: Settings) -> Duties:
    from pgworkers.job.host import NO_HOST
    from pgworkers.master.all_duties import all_duties

    return all_duties(
        NO_HOST, line, facts, settings, may_rescue=lambda: True, reckoned=lambda: None, desks=None
    )


_COLUMNS: list[Column] = [
    ("duty", lambda duty: duty["name"]),
    ("every", lambda duty: "when due" if duty["seen"] else show_seconds(duty["every"])),
    ("what", lambda duty: duty["doc"]),
]
