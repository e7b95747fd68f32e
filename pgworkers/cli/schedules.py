"""`pgworkers schedules list | next | run | pause | resume | remove`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from pgworkers.cli import database, output
from pgworkers.cli.formatting import plural, relative_time, shorten, show_duration
from pgworkers.cli.invocation import CliGroup, Invocation, OutputFormat, invocation_of, no_such
from pgworkers.cli.output import Column
from pgworkers.errors import NotFound, PgworkersError, UsageError

if TYPE_CHECKING:
    from pgworkers.schedule.definitions import ScheduleView

MAX_RUN_ATTEMPTS = 5


@click.group(cls=CliGroup)
def schedules() -> None:
    """List, run, pause, resume and remove schedules; their next ticks."""


def _scope_option(command: Callable[..., Any]) -> Callable[..., Any]:
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
    from pgworkers.schedule import definitions

    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        found = db.run(definitions.list_schedules(limit=limit + 1))
    empty = "no schedules yet: a host declares them when it starts"
    if invocation.output == OutputFormat.TABLE and not invocation.is_quiet:
        output.print_rows(invocation, found[:limit], _SCHEDULE_COLUMNS, if_empty=empty)
    else:
        output.print_rows(
            invocation, [_as_json(view) for view in found[:limit]], [], if_empty=empty, quiet_column="name"
        )
    if len(found) > limit and invocation.output == OutputFormat.TABLE:
        output.print_note(invocation, f"there are more: --limit shows more than {limit}")


@schedules.command("next")
@click.argument("name", metavar="NAME")
@_scope_option
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
    from pgworkers.schedule.zones import load_zone

    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        view = _require_schedules(db, name, scope)[0]  # all scopes have the same calendar
    if view.failure is not None:
        raise PgworkersError(f"schedule {name} cannot fire: {view.failure}")
    zone = load_zone(view.tz)
    found = [
        {"at": at.astimezone(zone).isoformat(), "in": relative_time(at, view.now)}
        for at in view.upcoming(count)
    ]
    columns: list[Column] = [("at", lambda row: row["at"]), ("in", lambda row: row["in"])]
    output.print_rows(
        invocation, found, columns, if_empty="no tick will come: the schedule has ended", quiet_column="at"
    )
    if view.is_paused:
        output.print_warning(invocation, f"{name} is paused: none of them fires until it is resumed")


@schedules.command("run")
@click.argument("name", metavar="NAME")
@_scope_option
@click.pass_context
def run_(ctx: click.Context, *, name: str, scope: str | None) -> int:
    """Enqueue the job of a schedule now. Also when it is paused; its calendar does not move.

    \b
    Examples:
      pgworkers schedules run nightly
      pgworkers jobs wait $(pgworkers schedules run nightly -q)
    """
    from pgworkers.schedule import definitions

    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        for _ in range(MAX_RUN_ATTEMPTS):
            view = _schedule_to_run(_require_schedules(db, name, scope), name)
            fired = db.run(definitions.run_now(view))
            if fired.ticks:
                break
        else:
            raise PgworkersError(
                f"schedule {name} is being changed by another session; nothing was enqueued; try again"
            )
    (tick,) = fired.ticks
    row = {"schedule": name, "scope": view.scope, "job": tick.job_id, "reason": tick.reason}
    if tick.job_id is None:
        raise PgworkersError(
            f"the last job of schedule {name} is still live and its overlap is skip; nothing was enqueued"
        )
    if invocation.output == OutputFormat.TABLE:
        output.print_text(str(tick.job_id) if invocation.is_quiet else f"#{tick.job_id} {view.task} enqueued")
    else:
        output.print_rows(invocation, [row], [], if_empty="")
    return 0


@schedules.command("pause")
@click.argument("name", metavar="NAME")
@_scope_option
@click.pass_context
def pause(ctx: click.Context, *, name: str, scope: str | None) -> None:
    """Pause a schedule. Its jobs go on, and a deploy does not resume it.

    \b
    Examples:
      pgworkers schedules pause nightly
      pgworkers schedules pause nightly --scope acme
    """
    from pgworkers.schedule import definitions

    _change(ctx, name, scope, definitions.pause_schedule, "paused")


@schedules.command("resume")
@click.argument("name", metavar="NAME")
@_scope_option
@click.pass_context
def resume(ctx: click.Context, *, name: str, scope: str | None) -> None:
    """Resume a schedule. Runs missed while it was paused are skipped.

    \b
    Examples:
      pgworkers schedules resume nightly
    """
    from pgworkers.schedule import definitions

    _change(ctx, name, scope, definitions.resume_schedule, "resumed")


@schedules.command("remove")
@click.argument("name", metavar="NAME")
@_scope_option
@click.pass_context
def remove(ctx: click.Context, *, name: str, scope: str | None) -> None:
    """Forget a schedule; its jobs and ticks stay. Take it out of the app first, or the next start brings it back.

    \b
    Examples:
      pgworkers schedules remove nightly
      pgworkers schedules remove nightly --scope acme
    """
    from pgworkers.schedule import definitions

    _change(ctx, name, scope, definitions.remove_schedule, "removed")


def _change(ctx: click.Context, name: str, scope: str | None, verb: Callable[..., Any], done: str) -> None:

    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        _require_schedules(db, name, scope)
        changed = db.run(verb(name, scope))
    _print_changed(invocation, name, scope, changed, done)


def _print_changed(
    invocation: Invocation, name: str, scope: str | None, changed: list[tuple[str, str]], done: str
) -> None:
    if invocation.output != OutputFormat.TABLE:
        output.print_rows(
            invocation,
            [{"schedule": one, "scope": its, "change": done} for one, its in changed],
            [],
            if_empty="",
        )
        return
    what = name + (f" ({scope})" if scope else "")
    scopes = sum(1 for _, its in changed if its)
    with_scopes = f" with {plural(scopes, 'scope')}" if scopes and not scope else ""
    output.print_text(f"{what} {done}{with_scopes}" if changed else f"{what} was {done} already")


def _require_schedules(db: database.OpenDatabase, name: str, scope: str | None) -> list[ScheduleView]:
    """The rows that are meant; NotFound when there are none."""
    from pgworkers.schedule import definitions

    found = db.run(definitions.list_schedules(name, scope))
    if found:
        return found
    known = db.run(definitions.schedule_names())
    if name in known:
        raise NotFound(f"schedule {name} has no scope {scope!r}; nothing was changed")
    raise NotFound(no_such("schedule", name, known) + "; nothing was changed")


def _schedule_to_run(found: list[ScheduleView], name: str) -> ScheduleView:
    firing = [view for view in found if not view.is_template]
    if not firing:
        raise UsageError(f"schedule {name} is scoped and has no scope yet; nothing was enqueued")
    if len(firing) > 1:
        scopes = ", ".join(view.scope for view in firing[:10]) + (", …" if len(firing) > 10 else "")
        raise UsageError(
            f"schedule {name} has several scopes: say --scope, one of {scopes}; nothing was enqueued"
        )
    return firing[0]


def _as_json(view: ScheduleView) -> dict[str, Any]:
    """A schedule as JSON: its row, and what follows from it."""
    row = output.as_record(view)
    return {
        "state": view.state,
        "when": view.timing_text,
        "next_at": view.next_at,
        **row,
        "error": view.failure,
    }


def _show_last_tick(view: ScheduleView) -> str:
    if view.last_at is None:
        return ""
    what = view.last_error_code or view.last_outcome or ""
    took = f" {show_duration(view.last_duration)}" if view.last_duration is not None else ""
    return f"{relative_time(view.last_at, view.now)} {what}{took}"


_SCHEDULE_COLUMNS: list[Column] = [
    ("name", lambda view: view.name),
    ("scope", lambda view: view.scope),
    ("state", lambda view: view.state),
    ("when", lambda view: view.timing_text),
    ("task", lambda view: view.task),
    ("next", lambda view: relative_time(view.next_at, view.now)),
    ("last", _show_last_tick),
    ("error", lambda view: shorten(view.failure or "")),
]
