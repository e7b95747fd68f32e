"""Which database an app enqueues into: settings, PG* variables, or the embedded server beside the app."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgworkers import settings as declared
from pgworkers.settings import Loaded, Settings

if TYPE_CHECKING:
    from pgworkers.postgres.embedded import EmbeddedServer

_log = logging.getLogger("pgworkers.client")


class Address:
    """Chosen by the first use; the worker binds it instead."""

    def __init__(self, given: Mapping[str, Any], directory: Path) -> None:
        self._given = given
        self._directory = directory
        self._loaded: Loaded | None = None
        self._dsn: str | None = None
        self._server: EmbeddedServer | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    @property
    def settings(self) -> Settings:
        return self._settings().settings

    @property
    def payload_limit(self) -> int:
        """Read without deciding on the other settings: `prepare()` may come before the environment is complete."""
        if self._loaded is not None:
            return self._loaded.settings.payload_limit
        limit: int = declared.one("payload_limit", self._given)
        return limit

    def bind(self, dsn: str, settings: Settings | Mapping[str, Any] | None) -> None:
        """Use this database and these settings from now on."""
        if settings is not None:
            values = asdict(settings) if isinstance(settings, Settings) else dict(settings)
            self._loaded = Loaded(Settings(**values), dict.fromkeys(values, "master"))
        self._dsn = dsn

    def dsn(self) -> str:
        """The address. When it is the embedded server, that is started and its schema brought up to date."""
        if self._dsn is not None:
            return self._dsn
        with self._guard():
            if self._dsn is None:
                self._dsn = self._choose()
            return self._dsn

    def release(self) -> None:
        """Let the embedded server go; its last user stops it."""
        with self._guard():
            server, self._server = self._server, None
            if server is not None:
                self._dsn = None
                server.release()

    def _guard(self) -> threading.Lock:
        if self._pid != os.getpid():  # the parent may have held the lock when it forked
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock

    def _settings(self) -> Loaded:
        if self._loaded is None:
            self._loaded = declared.load(app=self._given)
        return self._loaded

    def _choose(self) -> str:
        from pgworkers.postgres import connect

        loaded = self._settings()
        chosen = connect.choose(loaded.settings, loaded.sources, self._directory)
        if not chosen.embedded:
            return chosen.dsn
        from pgworkers.postgres import migrate
        from pgworkers.postgres.embedded import EmbeddedServer

        connect.refuse_foreign_home(chosen, self._directory.stat().st_uid)

        _log.info("no database is configured: using the embedded server in %s", chosen.home)
        self._server = EmbeddedServer(chosen.home, say=_log.info)
        dsn = self._server.acquire()
        atexit.register(_release_at_exit, weakref.ref(self))
        with connect.connect(loaded.settings, dsn, "migrate") as conn:
            migrate.up(conn, loaded.settings.schema, say=_log.warning)
        return dsn


def _release_at_exit(address: weakref.ref[Address]) -> None:
    found = address()
    if found is not None:
        found.release()
