"""The global options, and the click classes that accept them before and after the name of a command.

`pgworkers -o json jobs list` and `pgworkers jobs list -o json` mean the same: every command takes the global
options, only the root shows them. The variable of a global option is read at the root alone, so the word nearest to
the command wins and the environment always loses to what was typed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import click
from click.core import ParameterSource

CONTEXT_SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 110,
    "auto_envvar_prefix": "PGWORKERS",
}
F = TypeVar("F", bound=Callable[..., Any])


class OutputFormat(StrEnum):
    """The values of `-o`."""

    TABLE = "table"  #: for people
    JSON = "json"  #: one document
    NDJSON = "ndjson"  #: one line per row


@dataclass(slots=True)
class Invocation:
    """The global options of one command line."""

    config: str | None = None
    dsn: str | None = None
    dsn_file: str | None = None
    schema: str | None = None
    output: str = OutputFormat.TABLE
    is_quiet: bool = False
    is_verbose: bool = False
    is_confirmed: bool = False

    def set_option(self, name: str, value: Any) -> None:
        setattr(self, _FIELD_OF_OPTION.get(name, name), value)

    def flags(self) -> dict[str, Any]:
        """The global options that are settings, as `settings.load` takes them."""
        return {name: value for name in ("dsn", "schema") if (value := getattr(self, name)) is not None}


#: Where the field of a flag has another name than the flag.
_FIELD_OF_OPTION = {"quiet": "is_quiet", "verbose": "is_verbose", "yes": "is_confirmed"}


def _store_option(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    name = str(param.name)
    typed = ctx.get_parameter_source(name)
    if value is None or typed not in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
        return
    if name == "dsn" and not value.strip():
        # Most often a variable that is not set: "$DATABASE_URL". It does not mean the embedded server.
        raise click.UsageError(
            "--dsn is empty; give an address, or leave the option away for DATABASE_URL, PG* or the embedded server",
            ctx,
        )
    invocation = ctx.find_object(Invocation)
    if invocation is None:
        return
    if name in ("dsn", "dsn_file"):
        other = "dsn" if invocation.dsn_file is None else "dsn_file"
        if invocation.dsn is not None and other != name:
            raise click.UsageError("--dsn and --dsn-file exclude each other", ctx)
    if name == "dsn_file":
        from pgworkers.settings import read_dsn_file

        # Read now and only once: the file may be a pipe, as in --dsn-file <(vault read ...).
        invocation.dsn_file, invocation.dsn = value, read_dsn_file(value)
    else:
        invocation.set_option(name, value)


def global_options(*, is_root: bool = False) -> list[click.Parameter]:
    """The global options; below the root they are accepted but not listed again."""

    def option(*names: str, variable: str, **attrs: Any) -> click.Option:
        # dsn and schema are settings: settings.load reads their variables and knows where a value came from.
        setting = names[-1] in ("--dsn", "--dsn-file", "--schema")
        if is_root and setting:
            attrs["help"] += f"  [env var: {variable}]"
        return click.Option(
            names,
            expose_value=False,
            callback=_store_option,
            hidden=not is_root,
            envvar=variable if is_root and not setting else None,
            allow_from_autoenv=False,
            show_envvar=is_root and not setting,
            is_eager=True,  # so that an error in a later option already knows about -v
            **attrs,
        )

    return [
        option(
            "-c",
            "--config",
            variable="PGWORKERS_CONFIG",
            metavar="APP",
            help="The app: app.py, dir/app.py:name, pkg.mod:name. By default app.py in this directory.",
        ),
        option(
            "--dsn",
            variable="PGWORKERS_DSN",
            metavar="DSN",
            help="Postgres to use; DATABASE_URL and PG* count too.",
        ),
        option(
            "--dsn-file",
            variable="PGWORKERS_DSN_FILE",
            metavar="FILE",
            help="A file with the address: a password in it shows in no list of processes.",
        ),
        option(
            "--schema", variable="PGWORKERS_SCHEMA", metavar="NAME", help="The schema that holds the tables."
        ),
        option(
            "-o",
            "--output",
            variable="PGWORKERS_OUTPUT",
            type=click.Choice([str(format) for format in OutputFormat]),
            help="table for people, json for one document, ndjson for a line a row.",
        ),
        option(
            "-q",
            "--quiet",
            variable="PGWORKERS_QUIET",
            is_flag=True,
            default=None,
            help="Print only the requested data, for example ids.",
        ),
        option(
            "-v",
            "--verbose",
            variable="PGWORKERS_VERBOSE",
            is_flag=True,
            default=None,
            help="Tracebacks with errors.",
        ),
        option(
            "-y",
            "--yes",
            variable="PGWORKERS_YES",
            is_flag=True,
            default=None,
            help="Do not ask before bulk changes.",
        ),
    ]


class CliCommand(click.Command):
    """A command that takes the global options as well."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(global_options())


class CliGroup(click.Group):
    """A group whose commands take the global options as well; named alone it lists, or shows its help."""

    command_class = CliCommand

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "invoke_without_command": True})
        self.params.extend(global_options())
        self.callback = self.run_without_command

    def run_without_command(self) -> Any:
        """What the group does when no command follows."""
        ctx = click.get_current_context()
        if ctx.invoked_subcommand is not None:
            return None
        listing = self.commands.get("list")
        if listing is None:
            click.echo(ctx.get_help())
            return None
        with listing.make_context("list", [], parent=ctx) as below:
            return listing.invoke(below)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            raise click.UsageError(no_such("command", name, self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)


def no_such(what: str, name: str, known: list[str]) -> str:
    """`there is no task 'rendr'; did you mean render?`"""
    import difflib

    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"there is no {what} {name!r}; did you mean {' or '.join(near)}?"
    if not known:
        return f"there is no {what} {name!r}, and no other {what} either"
    listed = ", ".join(sorted(known)[:12]) + (", …" if len(known) > 12 else "")
    return f"there is no {what} {name!r}; there are: {listed}"


def invocation_of(ctx: click.Context) -> Invocation:
    """The global options of this command line."""
    found = ctx.find_object(Invocation)
    if found is None:  # a command called without the root, as tests of click do
        found = ctx.obj = Invocation()
    return found
