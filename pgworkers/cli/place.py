"""Where a command works: which app, which settings, which database.

A command that needs only the database works without an app. The app is asked (by a `describe` child, never
imported here) because it may name the dsn or the schema; when both are known from the command line or the
environment nobody asks it, and when it cannot be loaded but the dsn is known, that is only a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgworkers import settings
from pgworkers.cli.invocation import Invocation
from pgworkers.cli.output import note, warn
from pgworkers.errors import AppNotLoaded, DatabaseUnreachable
from pgworkers.postgres.ownership import reason_to_distrust

if TYPE_CHECKING:
    import psycopg

    from pgworkers.postgres.connect import Chosen

DEFAULT_CONFIG = "app.py"


@dataclass(frozen=True, slots=True)
class Database:
    """An open connection, and the names that belong to it."""

    conn: psycopg.Connection[Any]
    schema: str
    settings: settings.Settings
    chosen: Chosen
    dsn: str


def config(said: Invocation) -> str | None:
    """The app that is meant: the one given, else app.py in this directory if there is one.

    What is found and may be another user's doing is refused: AppNotLoaded.
    """
    found = _config(said)
    why = None if said.config or found is None else reason_to_distrust(Path(found).absolute())
    if why is not None:
        raise AppNotLoaded(
            f"{Path.cwd() / DEFAULT_CONFIG} {why}, so it is not loaded by itself; nothing was done. "
            f"If you trust it, name it: --config {DEFAULT_CONFIG}"
        )
    return found


def _config(said: Invocation) -> str | None:
    if said.config:
        return said.config
    return DEFAULT_CONFIG if Path(DEFAULT_CONFIG).is_file() else None


def required_config(said: Invocation) -> str:
    found = config(said)
    if found is None:
        raise AppNotLoaded(
            f"no app: there is no {DEFAULT_CONFIG} in {Path.cwd()}; "
            "give one with --config, or write one with pgworkers init"
        )
    return found


def load(said: Invocation, extra: dict[str, Any] | None = None) -> settings.Loaded:
    """The settings without asking the app."""
    return settings.load(flags={**said.flags(), **(extra or {})})


def load_with_app(said: Invocation) -> settings.Loaded:
    """The settings, with those of the app when something about the database is still open."""
    loaded = load(said)
    known = {name for name in ("dsn", "schema") if loaded.sources[name] != "default"}
    if known == {"dsn", "schema"}:
        return loaded
    from pgworkers.supervisor.ask import describe

    try:
        app = config(said)
        if app is None:
            return loaded
        spec = describe(app, loaded.settings.boot, say=lambda text: note(said, text))
    except AppNotLoaded as exc:
        if "dsn" not in known:
            raise
        warn(said, f"{exc}; going on without what it says about the schema")
        return loaded
    return settings.load(flags=said.flags(), app=spec.settings)


def choose(said: Invocation, loaded: settings.Loaded) -> Chosen:
    from pgworkers.postgres import connect

    return connect.choose(loaded.settings, loaded.sources, connect.beside(_config(said)))


@contextmanager
def database(
    said: Invocation, *, loaded: settings.Loaded | None = None, create: bool = False, check: bool = True
) -> Iterator[Database]:
    """A connection to the database that is meant; an embedded server is started for as long as it takes.

    `create` allows making an embedded server that does not exist yet; `check` refuses a schema that this code
    does not speak.
    """
    from pgworkers.postgres import connect, migrate

    loaded = loaded or load_with_app(said)
    chosen = choose(said, loaded)
    server = None
    dsn = chosen.dsn
    if chosen.embedded:
        from pgworkers.postgres.embedded import EmbeddedServer

        connect.refuse_foreign_home(chosen, connect.owner_of(said.config))
        server = EmbeddedServer(chosen.home, say=lambda text: note(said, text))
        if not create and not server.status().exists:
            raise DatabaseUnreachable(
                f"no database: none is configured, and there is no embedded server in {chosen.home}; "
                "give --dsn, set DATABASE_URL, or start one with pgworkers run"
            )
        dsn = server.acquire()
    try:
        # Closed, not left: leaving would roll back, and after a Ctrl-C between a query and its answer say that it cannot.
        with closing(connect.connect(loaded.settings, dsn, "cli")) as conn:
            if check:
                migrate.check(conn, loaded.settings.schema)
            yield Database(conn, loaded.settings.schema, loaded.settings, chosen, dsn)
    finally:
        if server is not None:
            server.release()


def embedded_home(said: Invocation, found: settings.Settings) -> Path:
    """Where the embedded server of this app keeps its data, whether it is the one that is meant or not."""
    from pgworkers.postgres import connect

    chosen = connect.choose(found, {}, connect.beside(_config(said)))
    connect.refuse_foreign_home(chosen, connect.owner_of(said.config))
    return chosen.home
