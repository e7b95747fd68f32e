"""What stands behind a context: its worker, or nobody, when a handler is called as a plain function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pgworkers.errors import UsageError
from pgworkers.flow.limit import Limit
from pgworkers.flow.rate import Rate, Unlimited
from pgworkers.flow.stock import Stock

if TYPE_CHECKING:
    import psycopg


class Feed(Protocol):
    """What the worker tells a context."""

    def cancelled(self) -> bool: ...

    def remaining(self) -> float | None: ...

    def reason(self) -> str: ...

    def extend(self, seconds: float) -> None: ...


class Connections(Protocol):
    """Who opens database sessions for a handler."""

    def connect(self, **options: Any) -> psycopg.Connection[Any]: ...

    async def aconnect(self, **options: Any) -> psycopg.AsyncConnection[Any]: ...


class Plain:
    """Sessions of a handler that is called as a plain function: those of the dsn it was given."""

    def __init__(self, dsn: str | None) -> None:
        self._dsn = dsn

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        import psycopg

        return psycopg.connect(self._known(), **options)

    async def aconnect(self, **options: Any) -> psycopg.AsyncConnection[Any]:
        import psycopg

        return await psycopg.AsyncConnection.connect(self._known(), **options)

    def _known(self) -> str:
        if self._dsn is None:
            raise UsageError("this context has no database; write Ctx.for_test(dsn=...). Nothing was opened")
        return self._dsn


def unlimited(
    scope: str, rate: float | None = None, per: float | str = "1s", burst: float | None = None
) -> Rate:
    """The rate of a handler that is called as a plain function: it never waits."""
    return Rate(Limit(scope, 1.0, 1.0), Stock(1.0), Unlimited())


class Detached:
    """The feed of a handler that is called as a plain function."""

    def cancelled(self) -> bool:
        return False

    def remaining(self) -> float | None:
        return None

    def reason(self) -> str:
        return "cancel"

    def extend(self, seconds: float) -> None:
        pass
