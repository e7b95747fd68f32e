"""Which database an app uses: that of the settings, of the PG* variables, or the embedded server next to the app."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgworkers import settings as declared
from pgworkers.settings import LoadedSettings, Settings

if TYPE_CHECKING:
    from pgworkers.embedded.server import EmbeddedServer

_log = logging.getLogger("pgworkers.client")


#: DATABASE_URL is the framework's own variable: under its tests it names another database than the one in use.
FRAMEWORK_DSN_SOURCES = ("default", "DATABASE_URL")


class ClientDatabase:
    """The database of an app.

    The first use decides, or `use()`: the supervisor calls it before it forks workers.
    """

    def __init__(
        self,
        app_settings: Mapping[str, Any],
        app_file: Path,
        framework_dsn: Callable[[], str] | None = None,
    ) -> None:
        #: The address of the framework's database. It is used unless one is given for the queue itself.
        self._framework_dsn = framework_dsn
        self._app_settings = app_settings
        self._app_file = app_file
        self._directory = app_file.parent
        self._loaded: LoadedSettings | None = None
        self._dsn: str | None = None
        self._is_named = False  # by `use()`
        self._server: EmbeddedServer | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    @property
    def settings(self) -> Settings:
        return self._load_settings().settings

    @property
    def payload_limit(self) -> int:
        """The limit for arguments.

        Loads no other setting: `prepare()` may run before the environment is complete.
        """
        if self._loaded is not None:
            return self._loaded.settings.payload_limit
        limit: int = declared.load_one_setting("payload_limit", self._app_settings)
        return limit

    def use(self, dsn: str, settings: Settings | Mapping[str, Any] | None) -> None:
        """Use this database and these settings from now on."""
        if settings is not None:
            values = asdict(settings) if isinstance(settings, Settings) else dict(settings)
            self._loaded = LoadedSettings(Settings(**values), dict.fromkeys(values, "master"))
        self._dsn, self._is_named = dsn, True

    @property
    def is_named(self) -> bool:
        """True if `use()` has named the database, or a test file has made the app with `App(dsn=...)`."""
        from pgworkers.client.pytest_guard import is_test_file

        is_app_dsn = self._load_settings().sources.get("dsn") == "app"  # the environment takes precedence
        return self._is_named or (is_app_dsn and is_test_file(self._app_file))

    def dsn(self) -> str:
        """Return the address.

        If it is the embedded server, start that and bring its schema up to date.
        """
        if self._dsn is not None:
            return self._dsn
        with self._process_lock():
            if self._dsn is None:
                self._dsn = self._choose_dsn()
            return self._dsn

    @contextmanager
    def temporarily(self, dsn: str) -> Iterator[None]:
        """Use this database inside the `with`, and then what was used before."""
        before = self._loaded, self._dsn, self._is_named
        self.use(dsn, None)
        try:
            yield
        finally:
            self._loaded, self._dsn, self._is_named = before

    def release_embedded(self) -> None:
        """Release the embedded server. Its last user stops it."""
        with self._process_lock():
            server, self._server = self._server, None
            if server is not None:
                self._dsn = None
                server.release()

    def _process_lock(self) -> threading.Lock:
        if self._pid != os.getpid():  # the parent may have held the lock when it forked
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock

    def _load_settings(self) -> LoadedSettings:
        if self._loaded is None:
            self._loaded = declared.load_settings(app=self._app_settings)
        return self._loaded

    def _choose_dsn(self) -> str:
        from pgworkers.client.pytest_guard import refuse_unnamed_database
        from pgworkers.postgres import connect, database_choice

        loaded = self._load_settings()
        if self._framework_dsn is not None and loaded.sources.get("dsn") in FRAMEWORK_DSN_SOURCES:
            if not self._app_settings.get("dsn"):
                return self._framework_dsn()
            refuse_unnamed_database(self._app_file)
            return str(self._app_settings["dsn"])
        refuse_unnamed_database(self._app_file if loaded.sources.get("dsn") == "app" else None)
        chosen = database_choice.choose_database(loaded.settings, loaded.sources, self._directory)
        if not chosen.is_embedded:
            return chosen.dsn
        from pgworkers.embedded.server import EmbeddedServer
        from pgworkers.postgres import migrate

        database_choice.refuse_foreign_home(chosen, self._directory.stat().st_uid)

        _log.info("no database is configured: using the embedded server in %s", chosen.home)
        self._server = EmbeddedServer(chosen.home, on_message=_log.info)
        dsn = self._server.acquire()
        atexit.register(_release_at_exit, weakref.ref(self))
        with connect.connect(loaded.settings, dsn, "migrate") as conn:
            migrate.up(conn, loaded.settings.schema, on_message=_log.warning)
        return dsn


def _release_at_exit(database: weakref.ref[ClientDatabase]) -> None:
    found = database()
    if found is not None:
        found.release_embedded()
