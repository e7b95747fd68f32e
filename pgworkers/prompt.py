"""A future whose waiter goes on at once.

What waits for an `asyncio.Future` goes on in the next turn of the loop: another look at all sockets, and after a rest a
tenth of a millisecond, while a job waits in front of an idle worker. A callback of the loop that brings an answer has
nothing else to do than to let the task go on, so here it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any


class Prompt:
    """Awaited by one task, once. What `asyncio` asks of a future that is not its own is all there is to it."""

    _asyncio_future_blocking = False  # the task that waits says so, and looks for it

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done = self._cancelled = False
        self._then: Callable[[Prompt], object] | None = None
        self._context: Context | None = None

    def set(self) -> None:
        """Let the task go on: now, unless this is called by another task, or it does not wait yet."""
        if self._done:
            return
        self._done = True
        then, context = self._then, self._context
        if then is None or context is None:
            return
        if asyncio.current_task(self._loop) is None:
            context.run(then, self)
        else:  # a task cannot run inside another one
            self._loop.call_soon(then, self, context=context)

    def __await__(self) -> Generator[Prompt, None, None]:
        if not self._done:
            self._asyncio_future_blocking = True
            yield self
        self.result()

    # -- what a task does with the future it waits for

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(self, then: Callable[[Prompt], object], *, context: Context | None = None) -> None:
        self._then, self._context = then, context

    def done(self) -> bool:
        return self._done

    def result(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError

    def cancel(self, msg: Any = None) -> bool:
        if self._done:
            return False
        self._done = self._cancelled = True
        if self._then is not None:
            self._loop.call_soon(self._then, self, context=self._context)
        return True
