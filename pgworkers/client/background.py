"""An event loop in a thread, for blocking callers that follow many jobs at once: `job.watch()` and the executor.

The thread exists only while something uses it. All that follow jobs in a process share its one listening connection.
It is a daemon thread: it never keeps a process alive, and the jobs continue without it. A forked child does not inherit it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from pgworkers.client.client import Client

T = TypeVar("T")
#: How long a caller waits for the thread to close its connections.
STOP_TIMEOUT_SECONDS = 10.0


class BackgroundLoop:
    """The event loop of a process's background thread. `acquire` starts the thread, the last `release` ends it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        #: Iterations that are still open when the process exits. The thread closes them, each from its outer generator.
        self.open_iterations: set[BackgroundIteration[Any]] = set()

    def acquire(self) -> None:
        with self._lock:
            self._users += 1
            if self._thread is None or not self._thread.is_alive():
                self._start()

    def release(self) -> None:
        """Stop using the loop. The last user ends the thread and waits until its connections are closed."""
        if os.getpid() != self._pid:
            return  # a forked child: the thread is its parent's
        with self._lock:
            self._users -= 1
            thread = self._stop() if self._users <= 0 else None
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_TIMEOUT_SECONDS)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop. The caller has acquired the loop."""
        loop = self._loop
        if loop is None or os.getpid() != self._pid:
            work.close()
            raise RuntimeError("the background thread of pgworkers has ended")
        return asyncio.run_coroutine_threadsafe(work, loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it. What interrupts the wait also cancels the coroutine."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def is_usable(self) -> bool:
        """True if a caller may wait for the loop: it runs, in this process and in another thread."""
        return (
            self._loop is not None
            and os.getpid() == self._pid
            and threading.current_thread() is not self._thread
        )

    def _start(self) -> None:
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._serve, args=(loop,), name="pgworkers background", daemon=True
        )
        self._thread.start()
        # At exit daemon threads stop before generators are collected: a watch that is closed then must not wait for one.
        atexit.register(self._abandon)

    def _stop(self) -> threading.Thread | None:
        """End the thread. The caller holds the lock."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        atexit.unregister(self._abandon)
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
        return thread

    def _abandon(self) -> None:
        with self._lock:
            thread = self._stop()
        if thread is not None:
            thread.join(STOP_TIMEOUT_SECONDS)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            for iteration in list(self.open_iterations):
                loop.run_until_complete(iteration.close())
            loop.run_until_complete(self._client.aclose())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()


class BackgroundIteration(Generic[T]):
    """An async generator that runs in the background loop, read by a blocking caller."""

    def __init__(self, loop: BackgroundLoop, items: AsyncGenerator[T, None]) -> None:
        self._loop = loop
        self._items = items
        self._lock = asyncio.Lock()  # a step that was interrupted must end before the generator can be closed

    def __iter__(self) -> Iterator[T]:
        self._loop.acquire()
        self._loop.open_iterations.add(self)
        try:
            while (item := self._loop.run(self._next())) is not None:
                yield item
        finally:
            if self._loop.is_usable:
                self._loop.run(self.close())
            self._loop.open_iterations.discard(self)
            self._loop.release()

    async def _next(self) -> T | None:
        async with self._lock:
            return await anext(self._items, None)

    async def close(self) -> None:
        """Close the generator. Runs in the loop."""
        async with self._lock:
            await self._items.aclose()
