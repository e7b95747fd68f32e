"""`pgworkers config show`: every setting, its value and where it came from.

It also warns about PGWORKERS_ variables that nothing reads, which are most likely settings with a typing error.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from operator import itemgetter
from typing import Any

import click

from pgworkers import settings
from pgworkers.cli import database, output
from pgworkers.cli.invocation import CliGroup, Invocation, invocation_of
from pgworkers.errors import AppNotLoaded
from pgworkers.settings import ENVIRONMENT_PREFIX, setting_names


@click.group(cls=CliGroup)
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
    The first row is the database that would be used, and why. Passwords are hidden. Warns about PGWORKERS_
    variables that nothing reads.

    \b
    Examples:
      pgworkers config show
      pgworkers config show --defaults
      PGWORKERS_DRAIN_TIMEOUT=1m pgworkers config show -o json
    """
    invocation = invocation_of(ctx)
    if defaults:
        output.print_rows(
            invocation,
            [_declaration(name) for name in settings.setting_names()],
            _columns("name", "default", "variable", "meaning"),
            if_empty="",
            quiet_column="name",
        )
        return
    loaded = _load_settings_with_app(invocation)
    for text in unknown_variables(os.environ):
        output.print_warning(invocation, text)
    found = [
        _database_row(invocation, loaded),
        *(
            {
                "name": name,
                "value": _show_value(name, getattr(loaded.settings, name)),
                "source": loaded.sources[name],
            }
            for name in settings.setting_names()
        ),
    ]
    output.print_rows(
        invocation,
        found,
        _columns("name", "value", "source"),
        if_empty="",
        quiet_column="name",
    )


def _columns(*names: str) -> list[output.Column]:
    return [(name, itemgetter(name)) for name in names]


def _declaration(name: str) -> dict[str, Any]:
    declared = next(f for f in fields(settings.Settings) if f.name == name)
    return {
        "name": name,
        "default": settings.format_setting(name, declared.default),
        "variable": settings.ENVIRONMENT_PREFIX + name.upper(),
        "meaning": declared.metadata["doc"],
    }


def _load_settings_with_app(invocation: Invocation) -> settings.LoadedSettings:
    """The settings with those of the app; a broken app is a warning, since the rest is still true."""
    loaded = database.load_command_settings(invocation)
    from pgworkers.supervisor.describe import describe

    try:
        app = database.find_config(invocation)
        if app is None:
            return loaded
        spec = describe(
            app, loaded.settings.import_timeout, on_slow=lambda text: output.print_note(invocation, text)
        )
    except AppNotLoaded as exc:
        output.print_warning(invocation, f"{exc}; shown without what it sets")
        return loaded
    return settings.load_settings(flags=invocation.flags(), app=spec.settings)


def _database_row(invocation: Invocation, loaded: settings.LoadedSettings) -> dict[str, str]:
    """Which database a command would use, and why: the first of the sources that names one."""
    from pgworkers.postgres.dsn import show_dsn

    chosen = database.choose_command_database(invocation, loaded)
    where = f"embedded, in {chosen.home}" if chosen.is_embedded else show_dsn(chosen.dsn)
    why = "no dsn, DATABASE_URL or PG* variable" if chosen.is_embedded else chosen.source
    return {"name": "database", "value": where, "source": why}


def _show_value(name: str, value: Any) -> str:
    if name in ("dsn", "direct_dsn") and value:
        from pgworkers.postgres.dsn import show_dsn

        return show_dsn(value)
    return settings.format_setting(name, value)


#: Read elsewhere than in the settings, or set by pgworkers itself for its processes.
_OTHER_VARIABLES = {ENVIRONMENT_PREFIX + name for name in ("CONFIG", "DEBUG", "FAULT", "TREE")}
_TEST_PREFIX = ENVIRONMENT_PREFIX + "TEST"


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each variable PGWORKERS_* that nothing reads."""
    known = {ENVIRONMENT_PREFIX + name.upper() for name in setting_names()} | _OTHER_VARIABLES
    strange = [
        name
        for name in sorted(environ)
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known and not name.startswith(_TEST_PREFIX)
    ]
    if not strange:
        return []
    known |= set(_option_variables())  # imports every command, so only when there is something to look for
    return [_unknown_variable_warning(name, sorted(known)) for name in strange if name not in known]


def _option_variables() -> Iterator[str]:
    """The variable of every option of every command."""
    from pgworkers.cli.root import walk_commands

    for _, command, ctx in walk_commands():
        for parameter in command.params:
            if isinstance(parameter.envvar, str):
                yield parameter.envvar
            if ctx.auto_envvar_prefix and parameter.name:
                yield f"{ctx.auto_envvar_prefix}_{parameter.name.upper()}"


def _unknown_variable_warning(name: str, known: list[str]) -> str:
    rest = [one.removeprefix(ENVIRONMENT_PREFIX) for one in known]
    near = difflib.get_close_matches(name.removeprefix(ENVIRONMENT_PREFIX), rest, n=1, cutoff=0.7)
    hint = (
        f"did you mean {ENVIRONMENT_PREFIX}{near[0]}?"
        if near
        else "pgworkers config show --defaults lists the settings"
    )
    return f"{name} is set, but no setting or option has this name; {hint}"
