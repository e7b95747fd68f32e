"""`pgworkers schedules list | next | run | pause | resume | remove`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from pgworkers.cli import output, place
from pgworkers.cli.invocation import Group, Invocation, said, unknown
from pgworkers.cli.output import Column
from pgworkers.cli.wording import ago, lasting, plural, short
from pgworkers.errors import NotFound, PgworkersError, UsageError

if TYPE_CHECKING:
    from pgworkers.schedule.show import ScheduleView

TRIES = 5


@click.group(cls=Group)
def schedules() -> None:
    """List, run, pause, resume and remove schedules; their next ticks."""


def _scope(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--scope", metavar="SCOPE", help="Only this scope of a scoped schedule.")(command)


@schedules.command("list")
@click.option(
    "--limit",
    metavar="N",
    default=200,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="At most this many.",
)
@click.pass_context
def list_(ctx: click.Context, *, limit: int) -> None:
    """Every schedule. When it fires next, what became of its last tick, and whether it can.

    \b
    Examples:
      pgworkers schedules list
      pgworkers schedules list -o json
    """
    from pgworkers.postgres.statements import run
    from pgworkers.schedule import show

    invocation = said(ctx)
    with place.database(invocation) as db:
        found = run(db.conn, db.schema, show.schedules(limit=limit + 1))
    empty = "no schedules yet: a host declares them when it starts"
    if invocation.output == "table" and not invocation.quiet:
        output.rows(invocation, found[:limit], _COLUMNS, empty=empty)
    else:
        output.rows(invocation, [_told(view) for view in found[:limit]], [], empty=empty, key="name")
    if len(found) > limit and invocation.output == "table":
        output.note(invocation, f"there are more: --limit shows more than {limit}")


@schedules.command("next")
@click.argument("name", metavar="NAME")
@_scope
@click.option(
    "-n",
    "--count",
    metavar="N",
    default=5,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="How many.",
)
@click.pass_context
def next_(ctx: click.Context, *, name: str, scope: str | None, count: int) -> None:
    """The next ticks of a schedule, in its own time zone.

    \b
    Examples:
      pgworkers schedules next nightly
      pgworkers schedules next nightly -n 20 -o ndjson
    """
    from pgworkers.schedule.zones import zone_of

    invocation = said(ctx)
    with place.database(invocation) as db:
        view = _views(db, name, scope)[0]  # all scopes have the same calendar
    if view.trouble is not None:
        raise PgworkersError(f"schedule {name} cannot fire: {view.trouble}")
    zone = zone_of(view.tz)
    found = [{"at": at.astimezone(zone).isoformat(), "in": ago(at, view.now)} for at in view.upcoming(count)]
    columns: list[Column] = [("at", lambda row: row["at"]), ("in", lambda row: row["in"])]
    output.rows(invocation, found, columns, empty="no tick will come: the schedule has ended", key="at")
    if view.paused:
        output.warn(invocation, f"{name} is paused: none of them fires until it is resumed")


@schedules.command("run")
@click.argument("name", metavar="NAME")
@_scope
@click.pass_context
def run_(ctx: click.Context, *, name: str, scope: str | None) -> int:
    """Enqueue the job of a schedule now, out of turn. Also when it is paused; its calendar does not move.

    \b
    Examples:
      pgworkers schedules run nightly
      pgworkers jobs wait $(pgworkers schedules run nightly -q)
    """
    from pgworkers.postgres.statements import run
    from pgworkers.schedule import operate

    invocation = said(ctx)
    with place.database(invocation) as db:
        for _ in range(TRIES):
            view = _to_run(_views(db, name, scope), name)
            fired = run(db.conn, db.schema, operate.run_now(view))
            if fired.ticks:
                break
        else:
            raise PgworkersError(
                f"schedule {name} is being changed by somebody else; nothing was enqueued; try again"
            )
    (tick,) = fired.ticks
    told = {"schedule": name, "scope": view.scope, "job": tick.job, "reason": tick.reason}
    if tick.job is None:
        raise PgworkersError(
            f"the last job of schedule {name} is still live and its overlap is skip; nothing was enqueued"
        )
    if invocation.output == "table":
        output.say(str(tick.job) if invocation.quiet else f"#{tick.job} {view.task} enqueued")
    else:
        output.rows(invocation, [told], [], empty="")
    return 0


@schedules.command("pause")
@click.argument("name", metavar="NAME")
@_scope
@click.pass_context
def pause(ctx: click.Context, *, name: str, scope: str | None) -> None:
    """Pause a schedule. Its jobs go on, and a deploy does not resume it.

    \b
    Examples:
      pgworkers schedules pause nightly
      pgworkers schedules pause nightly --scope acme
    """
    from pgworkers.schedule import operate

    _change(ctx, name, scope, operate.pause, "paused")


@schedules.command("resume")
@click.argument("name", metavar="NAME")
@_scope
@click.pass_context
def resume(ctx: click.Context, *, name: str, scope: str | None) -> None:
    """Resume a schedule. Runs missed while it was paused are skipped.

    \b
    Examples:
      pgworkers schedules resume nightly
    """
    from pgworkers.schedule import operate

    _change(ctx, name, scope, operate.resume, "resumed")


@schedules.command("remove")
@click.argument("name", metavar="NAME")
@_scope
@click.pass_context
def remove(ctx: click.Context, *, name: str, scope: str | None) -> None:
    """Forget a schedule; its jobs and ticks stay. Take it out of the app first, or the next start brings it back.

    \b
    Examples:
      pgworkers schedules remove nightly
      pgworkers schedules remove nightly --scope acme
    """
    from pgworkers.schedule import operate

    _change(ctx, name, scope, operate.remove, "removed")


def _change(ctx: click.Context, name: str, scope: str | None, verb: Callable[..., Any], done: str) -> None:
    from pgworkers.postgres.statements import run

    invocation = said(ctx)
    with place.database(invocation) as db:
        _views(db, name, scope)
        changed = run(db.conn, db.schema, verb(name, scope))
    _say(invocation, name, scope, changed, done)


def _say(
    invocation: Invocation, name: str, scope: str | None, changed: list[tuple[str, str]], done: str
) -> None:
    if invocation.output != "table":
        output.rows(
            invocation,
            [{"schedule": one, "scope": its, "change": done} for one, its in changed],
            [],
            empty="",
        )
        return
    what = name + (f" ({scope})" if scope else "")
    scopes = sum(1 for _, its in changed if its)
    with_scopes = f" with {plural(scopes, 'scope')}" if scopes and not scope else ""
    output.say(f"{what} {done}{with_scopes}" if changed else f"{what} was {done} already")


def _views(db: place.Database, name: str, scope: str | None) -> list[ScheduleView]:
    """The rows that are meant; NotFound when there are none."""
    from pgworkers.postgres.statements import run
    from pgworkers.schedule import show

    found = run(db.conn, db.schema, show.schedules(name, scope))
    if found:
        return found
    known = run(db.conn, db.schema, show.names())
    if name in known:
        raise NotFound(f"schedule {name} has no scope {scope!r}; nothing was changed")
    raise NotFound(unknown("schedule", name, known) + "; nothing was changed")


def _to_run(found: list[ScheduleView], name: str) -> ScheduleView:
    firing = [view for view in found if not view.template]
    if not firing:
        raise UsageError(f"schedule {name} is scoped and has no scope yet; nothing was enqueued")
    if len(firing) > 1:
        scopes = ", ".join(view.scope for view in firing[:10]) + (", …" if len(firing) > 10 else "")
        raise UsageError(
            f"schedule {name} has several scopes: say --scope, one of {scopes}; nothing was enqueued"
        )
    return firing[0]


def _told(view: ScheduleView) -> dict[str, Any]:
    """A schedule as JSON: its row, and what follows from it."""
    row = output.record(view)
    return {"state": view.state, "when": view.when, "next_at": view.next_at, **row, "error": view.trouble}


def _last(view: ScheduleView) -> str:
    if view.last_at is None:
        return ""
    what = view.last_error_code or view.last_outcome or ""
    took = f" {lasting(view.last_duration)}" if view.last_duration is not None else ""
    return f"{ago(view.last_at, view.now)} {what}{took}"


_COLUMNS: list[Column] = [
    ("name", lambda view: view.name),
    ("scope", lambda view: view.scope),
    ("state", lambda view: view.state),
    ("when", lambda view: view.when),
    ("task", lambda view: view.task),
    ("next", lambda view: ago(view.next_at, view.now)),
    ("last", _last),
    ("error", lambda view: short(view.trouble or "")),
]
