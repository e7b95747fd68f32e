"""Rate limits, the same for all hosts, because a bucket of tokens is a row.

`Rate` is what `app.rate(...)` and `ctx.rate(...)` return. It has no connection: its maker passes an object that runs queries
(the client of the app). `acquire` sleeps until the reserved token is due, in steps, so that a handler notices that it should
stop; tokens that it held then go back.

`TokenStock` decides how many tokens to take at once, which one to use next and which to return. A caller that asks again
soon takes twice as many the next time, up to what the bucket refills in a tenth of a second, and at most 64. A slow caller
takes one at a time. So a fast loop does not pay a round trip per token, and a slow one holds no tokens that others wait for.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pgworkers.clock import monotonic
from pgworkers.errors import RateTimeout
from pgworkers.units import format_duration

if TYPE_CHECKING:
    from pgworkers.limits.rate_bucket import TakenTokens
    from pgworkers.postgres.statements import Query


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`tokens_per_second` tokens a second; up to `burst` may lie in the bucket."""

    scope: str
    tokens_per_second: float
    burst: float


#: Asking again within this time is asking fast; never more is taken ahead than the bucket refills in it.
FAST_CALLER_SECONDS = 0.1
MAX_TOKENS_AHEAD = 64


class TokenStock:
    """The tokens one process holds of one bucket, each with the moment (of the monotonic clock) when it is due."""

    def __init__(self, rate: float) -> None:
        self._most = max(1, min(MAX_TOKENS_AHEAD, int(rate * FAST_CALLER_SECONDS)))
        self._want = 1
        self._asked: float | None = None
        self._due: deque[float] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._due)

    def take_due(self, latest: float | None = None) -> float | None:
        """Take the next token that is due by `latest`; the moment it is due, or None: ask the bucket."""
        with self._lock:
            if self._due and (latest is None or self._due[0] <= latest):
                return self._due.popleft()
            return None

    def tokens_to_ask(self, now: float) -> int:
        """How many to ask for now."""
        with self._lock:
            fast = self._asked is not None and now - self._asked <= FAST_CALLER_SECONDS
            self._want = min(self._want * 2, self._most) if fast else 1
            self._asked = now
            return self._want

    def put_back(self, dues: list[float]) -> None:
        with self._lock:
            self._due = deque(sorted([*self._due, *dues]))

    def clear(self) -> int:
        """Forget every token; how many there were."""
        with self._lock:
            count = len(self._due)
            self._due.clear()
            self._want = 1
            return count


T = TypeVar("T")
STOP_CHECK_INTERVAL_SECONDS = 0.1  # how long a waiting handler may not notice that it should stop


class QueryRunner(Protocol):
    """Runs queries: the client of an app. It may send one twice after a broken connection: a token is lost, no more."""

    def run(self, query: Query[T]) -> T: ...

    async def arun(self, query: Query[T]) -> T: ...


class UnlimitedRunner:
    """Runs nothing and grants everything: for a handler that is called as a plain function."""

    def run(self, query: Query[Any]) -> Any:
        return query.read([(query.params.get("want", 0), float("inf"))])

    async def arun(self, query: Query[Any]) -> Any:
        return self.run(query)


def _no_stop_point() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens of one scope. `acquire` before each call of the limited service; `drain` if the service refused anyway."""

    limit: RateLimit
    stock: TokenStock
    runner: QueryRunner
    stop_point: Callable[[], None] = _no_stop_point

    def acquire(self, timeout: float | None = None) -> None:
        """Wait for a token; RateTimeout, and no token is used, when there is none within `timeout` seconds."""
        due = self._take_stocked(timeout)
        if due is None:
            due = self._first_due(self.runner.run(self._take_query(timeout)), timeout)
        try:
            while (wait := due - monotonic()) > 0:
                self.stop_point()
                time.sleep(min(wait, STOP_CHECK_INTERVAL_SECONDS))
        except BaseException:
            self.stock.put_back([due])
            raise

    async def aacquire(self, timeout: float | None = None) -> None:
        """`acquire` for asyncio."""
        due = self._take_stocked(timeout)
        if due is None:
            due = self._first_due(await self.runner.arun(self._take_query(timeout)), timeout)
        try:
            while (wait := due - monotonic()) > 0:
                self.stop_point()
                from asyncio import sleep

                await sleep(min(wait, STOP_CHECK_INTERVAL_SECONDS))
        except BaseException:
            self.stock.put_back([due])
            raise

    def try_acquire(self) -> bool:
        """Use a token if there is one now; False: there is none."""
        if self._take_stocked(0.0) is not None:
            return True
        return self._keep_rest(self.runner.run(self._take_query(0.0))) is not None

    async def atry_acquire(self) -> bool:
        """`try_acquire` for asyncio."""
        if self._take_stocked(0.0) is not None:
            return True
        return self._keep_rest(await self.runner.arun(self._take_query(0.0))) is not None

    def drain(self, retry_after: float = 1.0) -> None:
        """After a 429: no caller on any host gets a token for `retry_after` seconds (between 1 and 60)."""
        from pgworkers.limits import rate_bucket

        self.stock.clear()
        self.runner.run(rate_bucket.drain_bucket(self.limit, retry_after))

    async def adrain(self, retry_after: float = 1.0) -> None:
        """`drain` for asyncio."""
        from pgworkers.limits import rate_bucket

        self.stock.clear()
        await self.runner.arun(rate_bucket.drain_bucket(self.limit, retry_after))

    def give_back(self) -> int:
        """Return the tokens that were taken ahead and not used, and how many they were; a worker does it after each job."""
        from pgworkers.limits import rate_bucket

        count = self.stock.clear()
        if count:
            self.runner.run(rate_bucket.return_tokens(self.limit.scope, count))
        return count

    async def agive_back(self) -> int:
        """`give_back` for asyncio."""
        from pgworkers.limits import rate_bucket

        count = self.stock.clear()
        if count:
            await self.runner.arun(rate_bucket.return_tokens(self.limit.scope, count))
        return count

    def with_stop_point(self, stop_point: Callable[[], None]) -> Rate:
        """The same tokens for a handler: waiting ends when it should stop."""
        return replace(self, stop_point=stop_point)

    def _take_stocked(self, timeout: float | None) -> float | None:
        return self.stock.take_due(None if timeout is None else monotonic() + timeout)

    def _take_query(self, timeout: float | None) -> Query[TakenTokens]:
        from pgworkers.limits import rate_bucket

        return rate_bucket.take_tokens(self.limit, self.stock.tokens_to_ask(monotonic()), timeout)

    def _keep_rest(self, taken: TakenTokens) -> float | None:
        """Use the first token of an answer and keep the others."""
        now = monotonic()
        dues = [now + wait for wait in taken.wait_seconds(self.limit.tokens_per_second)]
        if not dues:
            return None
        self.stock.put_back(dues[1:])
        return dues[0]

    def _first_due(self, taken: TakenTokens, timeout: float | None) -> float:
        due = self._keep_rest(taken)
        if due is None:
            wait = (1 - taken.tokens_before) / self.limit.tokens_per_second
            raise RateTimeout(
                f"rate {self.limit.scope!r}: the next token is due in {format_duration(wait)}, later than the timeout of "
                f"{format_duration(timeout or 0.0)}; none was used"
            )
        return due

    def __enter__(self) -> Rate:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.give_back()
