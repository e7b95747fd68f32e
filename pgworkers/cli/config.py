"""`pgworkers config show`: every setting, its value and where it came from."""

from __future__ import annotations

import os
from dataclasses import fields
from operator import itemgetter
from typing import Any

import click

from pgworkers import settings
from pgworkers.cli import output, place
from pgworkers.cli.invocation import Group, Invocation, said
from pgworkers.cli.variables import unknown_variables
from pgworkers.errors import AppNotLoaded


@click.group(cls=Group)
def config() -> None:
    """Every setting, its value and where it came from."""


@config.command("show")
@click.option(
    "--defaults", is_flag=True, help="The declarations: defaults and what each setting does, nothing read."
)
@click.pass_context
def show(ctx: click.Context, defaults: bool) -> None:
    """Every setting, its value and where it came from.

    A value comes from the command line, else from its variable, else from the app, else it is the default.
    The first row is the database that would be used, and why. Passwords are hidden. Variables that look like ours and
    mean nothing are named on stderr.

    \b
    Examples:
      pgworkers config show
      pgworkers config show --defaults
      PGWORKERS_DRAIN=1m pgworkers config show -o json
    """
    invocation = said(ctx)
    if defaults:
        output.rows(
            invocation,
            [_declared(name) for name in settings.names()],
            _columns("name", "default", "variable", "meaning"),
            empty="",
            key="name",
        )
        return
    loaded = _loaded(invocation)
    for text in unknown_variables(os.environ):
        output.warn(invocation, text)
    found = [
        _database(invocation, loaded),
        *(
            {
                "name": name,
                "value": _shown(name, getattr(loaded.settings, name)),
                "source": loaded.sources[name],
            }
            for name in settings.names()
        ),
    ]
    output.rows(
        invocation,
        found,
        _columns("name", "value", "source"),
        empty="",
        key="name",
    )


def _columns(*names: str) -> list[output.Column]:
    return [(name, itemgetter(name)) for name in names]


def _declared(name: str) -> dict[str, Any]:
    declared = next(f for f in fields(settings.Settings) if f.name == name)
    return {
        "name": name,
        "default": settings.show(name, declared.default),
        "variable": settings.PREFIX + name.upper(),
        "meaning": declared.metadata["doc"],
    }


def _loaded(said: Invocation) -> settings.Loaded:
    """The settings with those of the app; a broken app is a warning, since the rest is still true."""
    loaded = place.load(said)
    from pgworkers.supervisor.ask import describe

    try:
        app = place.config(said)
        if app is None:
            return loaded
        spec = describe(app, loaded.settings.boot, say=lambda text: output.note(said, text))
    except AppNotLoaded as exc:
        output.warn(said, f"{exc}; shown without what it sets")
        return loaded
    return settings.load(flags=said.flags(), app=spec.settings)


def _database(said: Invocation, loaded: settings.Loaded) -> dict[str, str]:
    """Which database a command would use, and why: the first of the sources that names one."""
    from pgworkers.postgres.dsn import shown

    chosen = place.choose(said, loaded)
    where = f"embedded, in {chosen.home}" if chosen.embedded else shown(chosen.dsn)
    why = "no dsn, DATABASE_URL or PG* variable" if chosen.embedded else chosen.source
    return {"name": "database", "value": where, "source": why}


def _shown(name: str, value: Any) -> str:
    if name in ("dsn", "direct_dsn") and value:
        from pgworkers.postgres.dsn import shown

        return shown(value)
    return settings.show(name, value)
