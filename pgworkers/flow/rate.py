"""`Rate`: what `app.rate(...)` and `ctx.rate(...)` give a caller. Cluster-wide, because the bucket is a row.

It knows no connection: whoever makes it hands in something that runs queries (the client of the app). Waiting is a sleep
until the reserved token is due, in steps, so that a handler notices that it should stop; what it held then goes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pgworkers.clock import monotonic, show_seconds
from pgworkers.errors import RateTimeout
from pgworkers.flow.limit import Limit
from pgworkers.flow.stock import Stock

if TYPE_CHECKING:
    from pgworkers.flow.bucket import Taken
    from pgworkers.postgres.statements import Query

T = TypeVar("T")
STEP = 0.1  # how long a waiting handler may not notice that it should stop


class Runs(Protocol):
    """Runs queries: the client of an app. It may send one twice after a broken connection: a token is lost, no more."""

    def run(self, query: Query[T]) -> T: ...

    async def arun(self, query: Query[T]) -> T: ...


class Unlimited:
    """Runs nothing and grants everything: for a handler that is called as a plain function."""

    def run(self, query: Query[Any]) -> Any:
        return query.read([(query.params.get("want", 0), float("inf"))])

    async def arun(self, query: Query[Any]) -> Any:
        return self.run(query)


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens of one scope. `acquire` before each call of the limited service; `drain` when it said no all the same."""

    limit: Limit
    stock: Stock
    runs: Runs
    stop_point: Callable[[], None] = _nothing

    def acquire(self, timeout: float | None = None) -> None:
        """Wait for a token; RateTimeout, and no token is used, when there is none within `timeout` seconds."""
        due = self._held(timeout)
        if due is None:
            due = self._granted(self.runs.run(self._ask(timeout)), timeout)
        try:
            while (wait := due - monotonic()) > 0:
                self.stop_point()
                time.sleep(min(wait, STEP))
        except BaseException:
            self.stock.put([due])
            raise

    async def aacquire(self, timeout: float | None = None) -> None:
        """`acquire` for asyncio."""
        due = self._held(timeout)
        if due is None:
            due = self._granted(await self.runs.arun(self._ask(timeout)), timeout)
        try:
            while (wait := due - monotonic()) > 0:
                self.stop_point()
                from asyncio import sleep

                await sleep(min(wait, STEP))
        except BaseException:
            self.stock.put([due])
            raise

    def try_acquire(self) -> bool:
        """Use a token if there is one now; False: there is none."""
        if self._held(0.0) is not None:
            return True
        return self._kept(self.runs.run(self._ask(0.0))) is not None

    async def atry_acquire(self) -> bool:
        """`try_acquire` for asyncio."""
        if self._held(0.0) is not None:
            return True
        return self._kept(await self.runs.arun(self._ask(0.0))) is not None

    def drain(self, retry_after: float = 1.0) -> None:
        """A real 429: nobody, on any host, gets a token for `retry_after` seconds (between 1 and 60)."""
        from pgworkers.flow import bucket

        self.stock.empty()
        self.runs.run(bucket.drain(self.limit, retry_after))

    async def adrain(self, retry_after: float = 1.0) -> None:
        """`drain` for asyncio."""
        from pgworkers.flow import bucket

        self.stock.empty()
        await self.runs.arun(bucket.drain(self.limit, retry_after))

    def give_back(self) -> int:
        """Return the tokens that were taken ahead and not used, and how many they were; a worker does it after each job."""
        from pgworkers.flow import bucket

        count = self.stock.empty()
        if count:
            self.runs.run(bucket.give(self.limit.scope, count))
        return count

    async def agive_back(self) -> int:
        """`give_back` for asyncio."""
        from pgworkers.flow import bucket

        count = self.stock.empty()
        if count:
            await self.runs.arun(bucket.give(self.limit.scope, count))
        return count

    def stopping(self, stop_point: Callable[[], None]) -> Rate:
        """The same tokens for a handler: waiting ends when it should stop."""
        return replace(self, stop_point=stop_point)

    def _held(self, timeout: float | None) -> float | None:
        return self.stock.use(None if timeout is None else monotonic() + timeout)

    def _ask(self, timeout: float | None) -> Query[Taken]:
        from pgworkers.flow import bucket

        return bucket.take(self.limit, self.stock.want(monotonic()), timeout)

    def _kept(self, taken: Taken) -> float | None:
        """Use the first token of an answer and keep the others."""
        now = monotonic()
        dues = [now + wait for wait in taken.waits(self.limit.rate)]
        if not dues:
            return None
        self.stock.put(dues[1:])
        return dues[0]

    def _granted(self, taken: Taken, timeout: float | None) -> float:
        due = self._kept(taken)
        if due is None:
            wait = (1 - taken.had) / self.limit.rate
            raise RateTimeout(
                f"rate {self.limit.scope!r}: the next token is due in {show_seconds(wait)}, later than the timeout of "
                f"{show_seconds(timeout or 0.0)}; none was used"
            )
        return due

    def __enter__(self) -> Rate:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.give_back()
