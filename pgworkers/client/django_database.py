"""The database of a Django project, for `App(django=True)`. Django is imported by the first use.

Django opens a connection per thread and knows which of them is inside `atomic()`. A blocking enqueue there uses that
connection by itself if it is to the database of the queue. Then the job exists if and only if the transaction commits.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pgworkers.errors import UsageError

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class DjangoDatabase:
    """One alias of DATABASES."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def dsn(self) -> str:
        """The address of the database as Django uses it now. Under Django's tests that is the test database."""
        from psycopg.conninfo import make_conninfo

        return make_conninfo(**self._params())

    def dsn_for_client(self) -> str:
        """The address for a process that enqueues. Under pytest only that of Django's test database."""
        from pgworkers.client.pytest_guard import refuse_unnamed_database

        settings = self._connection().settings_dict
        test_names = {(settings.get("TEST") or {}).get("NAME")}
        if settings["NAME"] not in test_names and not str(settings["NAME"]).startswith("test_"):
            refuse_unnamed_database(None)
        return self.dsn()

    def find_current_connection(self, queue_dsn: Callable[[], str]) -> Any:
        """Django's connection if this thread is inside `atomic()` and it is the queue's database, else None."""
        conn = self._connection()
        if not conn.in_atomic_block or not self._is_database(queue_dsn()):
            return None
        return conn

    def surround(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """The handler, with what Django does before and after a request."""
        if inspect.iscoroutinefunction(inspect.unwrap(handler)):

            @functools.wraps(handler)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                from asgiref.sync import sync_to_async

                await sync_to_async(_begin_request)()
                try:
                    return await handler(*args, **kwargs)
                finally:
                    await sync_to_async(_end_request)()

            return run_async

        @functools.wraps(handler)
        def run(*args: Any, **kwargs: Any) -> Any:
            _begin_request()
            try:
                return handler(*args, **kwargs)
            finally:
                _end_request()

        return run

    def close_all(self) -> None:
        """Close what the import of the app opened: a connection must not be shared with forked processes."""
        from django.db import connections

        connections.close_all()

    def _connection(self) -> Any:
        from django.db import connections

        return connections[self.alias]

    def _params(self) -> dict[str, Any]:
        """What libpq needs to open the same connection."""
        from psycopg.pq import Conninfo

        conn = self._connection()
        if conn.vendor != "postgresql":
            raise UsageError(
                f"App(django={self.alias!r}): this database of Django is {conn.display_name}, and pgworkers needs Postgres; "
                "nothing was done; name an alias of DATABASES that is Postgres, or set PGWORKERS_DSN"
            )
        known = {option.keyword.decode() for option in Conninfo.get_defaults()}
        unwanted = {"client_encoding", "application_name"}
        return {
            name: value
            for name, value in conn.get_connection_params().items()
            if name in known - unwanted and value not in (None, "")
        }

    def _is_database(self, dsn: str) -> bool:
        from psycopg.conninfo import conninfo_to_dict

        return _place(conninfo_to_dict(dsn)) == _place(self._params())


def _place(params: Mapping[str, Any]) -> tuple[str, str, str]:
    """Server, port and database that these parameters lead to, with libpq's defaults and variables."""
    from psycopg.pq import Conninfo

    defaults = {
        option.keyword.decode(): option.val.decode()
        for option in Conninfo.get_defaults()
        if option.val is not None
    }

    def value(name: str) -> str:
        return str(params.get(name) or defaults.get(name) or "")

    host = value("host") or value("hostaddr")
    return (
        "localhost" if host in _LOCAL_HOSTS else host,
        value("port"),
        value("dbname") or value("user"),
    )


def _begin_request() -> None:
    from django.db import close_old_connections, reset_queries

    reset_queries()
    close_old_connections()


def _end_request() -> None:
    from django.db import close_old_connections

    close_old_connections()
