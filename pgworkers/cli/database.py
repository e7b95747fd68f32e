"""Find the app, the settings and the database of a command, and open a connection.

A command that needs only the database works without an app. The app may name the dsn or the schema, so it is described in
a child process; it is never imported here. When both are known from the command line or the environment, this is skipped.
When the app cannot be loaded but the dsn is known, the command only warns.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pgworkers import settings
from pgworkers.cli.invocation import Invocation
from pgworkers.cli.output import print_note, print_warning
from pgworkers.client import pytest_guard
from pgworkers.errors import AppNotLoaded, DatabaseUnreachable
from pgworkers.postgres.database_choice import reason_to_distrust

if TYPE_CHECKING:
    import psycopg

    from pgworkers.postgres.database_choice import DatabaseChoice
    from pgworkers.postgres.statements import Query

T = TypeVar("T")
DEFAULT_CONFIG = "app.py"


@dataclass(frozen=True, slots=True)
class OpenDatabase:
    """An open connection, and the names that belong to it."""

    conn: psycopg.Connection[Any]
    schema: str
    settings: settings.Settings
    chosen: DatabaseChoice
    dsn: str

    def run(self, query: Query[T]) -> T:
        """Run a query on the connection."""
        from pgworkers.postgres.statements import run

        return run(self.conn, self.schema, query)


def find_config(invocation: Invocation) -> str | None:
    """The app to use: the one given, else app.py in this directory if it exists.

    What is found and may be another user's doing is refused: AppNotLoaded.
    """
    found = _named_or_default_config(invocation)
    why = None if invocation.config or found is None else reason_to_distrust(Path(found).absolute())
    if why is not None:
        raise AppNotLoaded(
            f"{Path.cwd() / DEFAULT_CONFIG} {why}, so it is not loaded by itself; nothing was done. "
            f"If you trust it, name it: --config {DEFAULT_CONFIG}"
        )
    return found


def _named_or_default_config(invocation: Invocation) -> str | None:
    if invocation.config:
        return invocation.config
    return DEFAULT_CONFIG if Path(DEFAULT_CONFIG).is_file() else None


def require_config(invocation: Invocation) -> str:
    found = find_config(invocation)
    if found is None:
        raise AppNotLoaded(
            f"no app: there is no {DEFAULT_CONFIG} in {Path.cwd()}; "
            "give one with --config, or write one with pgworkers init"
        )
    return found


def load_command_settings(
    invocation: Invocation, extra: dict[str, Any] | None = None
) -> settings.LoadedSettings:
    """The settings without asking the app."""
    return settings.load_settings(flags={**invocation.flags(), **(extra or {})})


def load_settings_with_app(invocation: Invocation) -> settings.LoadedSettings:
    """The settings, with those of the app if the dsn or the schema is not set elsewhere."""
    loaded = load_command_settings(invocation)
    known = {name for name in ("dsn", "schema") if loaded.sources[name] != "default"}
    if known == {"dsn", "schema"}:
        return loaded
    from pgworkers.supervisor.describe import describe

    try:
        app = find_config(invocation)
        if app is None:
            return loaded
        spec = describe(
            app, loaded.settings.import_timeout, on_slow=lambda text: print_note(invocation, text)
        )
    except AppNotLoaded as exc:
        if "dsn" not in known:
            raise
        print_warning(invocation, f"{exc}; going on without what it says about the schema")
        return loaded
    return settings.load_settings(flags=invocation.flags(), app=spec.settings)


def choose_command_database(invocation: Invocation, loaded: settings.LoadedSettings) -> DatabaseChoice:
    from pgworkers.postgres import database_choice

    return database_choice.choose_database(
        loaded.settings, loaded.sources, database_choice.app_directory(_named_or_default_config(invocation))
    )


@contextmanager
def open_database(
    invocation: Invocation,
    *,
    loaded: settings.LoadedSettings | None = None,
    should_create_embedded: bool = False,
    should_check_schema: bool = True,
) -> Iterator[OpenDatabase]:
    """Open a connection to the database of a command. An embedded server runs at least that long.

    `should_create_embedded` allows making an embedded server that does not exist yet; `should_check_schema` refuses a
    schema that this code does not speak.
    """
    from pgworkers.postgres import connect, database_choice, migrate

    loaded = loaded or load_settings_with_app(invocation)
    chosen = choose_command_database(invocation, loaded)
    if invocation.dsn is None or invocation.dsn == os.environ.get("PGWORKERS_DSN"):  # not written by a test
        pytest_guard.refuse_unnamed_database()
    server = None
    dsn = chosen.dsn
    if chosen.is_embedded:
        from pgworkers.embedded.server import EmbeddedServer

        database_choice.refuse_foreign_home(chosen, database_choice.app_owner(invocation.config))
        server = EmbeddedServer(chosen.home, on_message=lambda text: print_note(invocation, text))
        if not should_create_embedded and not server.status().has_data:
            raise DatabaseUnreachable(
                f"no database: none is configured, and there is no embedded server in {chosen.home}; "
                "give --dsn, set DATABASE_URL, or start one with pgworkers run"
            )
        dsn = server.acquire()
    try:
        # Closed, not left: leaving would roll back, and after a Ctrl-C between a query and its answer say that it cannot.
        with closing(connect.connect(loaded.settings, dsn, "cli")) as conn:
            if should_check_schema:
                migrate.check_schema(conn, loaded.settings.schema)
            yield OpenDatabase(
                conn=conn, schema=loaded.settings.schema, settings=loaded.settings, chosen=chosen, dsn=dsn
            )
    finally:
        if server is not None:
            server.release()


def embedded_home(invocation: Invocation, found: settings.Settings) -> Path:
    """The directory of this app's embedded server, even if another database is used."""
    from pgworkers.postgres import database_choice

    chosen = database_choice.choose_database(
        found, {}, database_choice.app_directory(_named_or_default_config(invocation))
    )
    database_choice.refuse_foreign_home(chosen, database_choice.app_owner(invocation.config))
    return chosen.home
