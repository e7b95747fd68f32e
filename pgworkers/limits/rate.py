"""Rate limits, the same for all hosts, because a bucket of tokens is a row.

`Rate` is what `app.rate(...)` and `ctx.rate(...)` return. Each operation is written once, as steps (`postgres/steps`). The
client of the app runs them, with blocking calls or in an event loop. `acquire` sleeps in short intervals until the reserved
token is due, so that a handler notices that it should stop. Then the token goes back to the stock.

`TokenStock` decides how many tokens to take at once, which one to use next and which to return. A caller that asks again
soon takes twice as many the next time, up to what the bucket refills in a tenth of a second, and at most 64. A slow caller
takes one at a time. So a fast loop does not pay a round trip per token, and a slow one holds no tokens that others wait for.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pgworkers.clock import monotonic
from pgworkers.errors import RateTimeout
from pgworkers.postgres.steps import BlockingRunner, Sleep, Steps, ask
from pgworkers.units import format_duration

if TYPE_CHECKING:
    from pgworkers.limits.rate_bucket import TakenTokens
    from pgworkers.postgres.statements import Query


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A bucket that refills by `tokens_per_second` and holds at most `burst` tokens."""

    scope: str
    tokens_per_second: float
    burst: float


#: A caller that asks again within this time is fast. It takes ahead at most what the bucket refills in this time.
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
        """Take the next token that is due by `latest`. Returns when it is due; None: ask the bucket."""
        with self._lock:
            if self._due and (latest is None or self._due[0] <= latest):
                return self._due.popleft()
            return None

    def tokens_to_ask(self, now: float) -> int:
        """Return how many tokens to ask the bucket for now."""
        with self._lock:
            fast = self._asked is not None and now - self._asked <= FAST_CALLER_SECONDS
            self._want = min(self._want * 2, self._most) if fast else 1
            self._asked = now
            return self._want

    def put_back(self, dues: list[float]) -> None:
        with self._lock:
            self._due = deque(sorted([*self._due, *dues]))

    def clear(self) -> int:
        """Forget every token. Returns how many there were."""
        with self._lock:
            count = len(self._due)
            self._due.clear()
            self._want = 1
            return count


T = TypeVar("T")
STOP_CHECK_INTERVAL_SECONDS = 0.1  # a waiting handler notices within this time that it should stop


class StepsRunner(Protocol):
    """Runs operations: the client of an app.

    The client may send a query twice after a broken connection. Then a token is lost.
    """

    def run_steps(self, steps: Steps[T]) -> T: ...

    async def arun_steps(self, steps: Steps[T]) -> T: ...


class UnlimitedRunner(BlockingRunner):
    """Sends nothing and grants everything: for a handler that is called as a plain function."""

    def run_steps(self, steps: Steps[T]) -> T:
        return self.run(steps)

    async def arun_steps(self, steps: Steps[T]) -> T:
        return self.run(steps)

    def perform(self, step: Query[Any]) -> Any:
        return step.read([(step.params.get("want", 0), math.inf)])


def _no_stop_point() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens of one scope. `acquire` before each call of the limited service; `drain` if the service refused anyway."""

    limit: RateLimit
    stock: TokenStock
    runner: StepsRunner
    stop_point: Callable[[], None] = _no_stop_point

    def acquire(self, timeout: float | None = None) -> None:
        """Wait for a token; RateTimeout, and no token is used, when there is none within `timeout` seconds."""
        self.runner.run_steps(self._acquire_steps(timeout))

    async def aacquire(self, timeout: float | None = None) -> None:
        """`acquire` for asyncio."""
        await self.runner.arun_steps(self._acquire_steps(timeout))

    def try_acquire(self) -> bool:
        """Use a token if there is one now; False: there is none."""
        return self.runner.run_steps(self._try_acquire_steps())

    async def atry_acquire(self) -> bool:
        """`try_acquire` for asyncio."""
        return await self.runner.arun_steps(self._try_acquire_steps())

    def drain(self, retry_after: float = 1.0) -> None:
        """After a 429: no caller on any host gets a token for `retry_after` seconds (between 1 and 60)."""
        self.runner.run_steps(self._drain_steps(retry_after))

    async def adrain(self, retry_after: float = 1.0) -> None:
        """`drain` for asyncio."""
        await self.runner.arun_steps(self._drain_steps(retry_after))

    def give_back(self) -> int:
        """Return the tokens that were taken ahead and not used, and how many they were; a worker does it after each job."""
        return self.runner.run_steps(self._give_back_steps())

    async def agive_back(self) -> int:
        """`give_back` for asyncio."""
        return await self.runner.arun_steps(self._give_back_steps())

    def with_stop_point(self, stop_point: Callable[[], None]) -> Rate:
        """The same tokens for a handler: waiting ends when it should stop."""
        return replace(self, stop_point=stop_point)

    def _acquire_steps(self, timeout: float | None) -> Steps[None]:
        due = self._take_stocked(timeout)
        if due is None:
            taken = yield from self._take_steps(timeout)
            due = self._keep_rest(taken)
            if due is None:
                raise self._timeout_error(taken, timeout)
        try:
            while (wait := due - monotonic()) > 0:
                self.stop_point()
                yield Sleep(min(wait, STOP_CHECK_INTERVAL_SECONDS))
        except BaseException:
            self.stock.put_back([due])
            raise

    def _try_acquire_steps(self) -> Steps[bool]:
        if self._take_stocked(0.0) is not None:
            return True
        taken = yield from self._take_steps(0.0)
        return self._keep_rest(taken) is not None

    def _drain_steps(self, retry_after: float) -> Steps[None]:
        from pgworkers.limits import rate_bucket

        self.stock.clear()
        yield rate_bucket.drain_bucket(self.limit, retry_after)

    def _give_back_steps(self) -> Steps[int]:
        from pgworkers.limits import rate_bucket

        count = self.stock.clear()
        if count:
            yield rate_bucket.return_tokens(self.limit.scope, count)
        return count

    def _take_steps(self, timeout: float | None) -> Steps[TakenTokens]:
        """Reserve tokens in the bucket."""
        from pgworkers.limits import rate_bucket

        count = self.stock.tokens_to_ask(monotonic())
        return (yield from ask(rate_bucket.take_tokens(self.limit, count, timeout)))

    def _take_stocked(self, timeout: float | None) -> float | None:
        return self.stock.take_due(None if timeout is None else monotonic() + timeout)

    def _keep_rest(self, taken: TakenTokens) -> float | None:
        """Use the first token of an answer and keep the others. Returns when it is due; None: there is none."""
        now = monotonic()
        dues = [now + wait for wait in taken.wait_seconds(self.limit.tokens_per_second)]
        if not dues:
            return None
        self.stock.put_back(dues[1:])
        return dues[0]

    def _timeout_error(self, taken: TakenTokens, timeout: float | None) -> RateTimeout:
        wait = (1 - taken.tokens_before) / self.limit.tokens_per_second
        return RateTimeout(
            f"rate {self.limit.scope!r}: the next token is due in {format_duration(wait)}, later than the timeout of "
            f"{format_duration(timeout or 0.0)}; none was used"
        )

    def __enter__(self) -> Rate:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.give_back()
