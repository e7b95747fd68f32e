"""The event loop of `async def` handlers: one for the whole life of the worker, so that clients can be kept in it.

`asyncio` is imported where it is used, because it needs as much memory as all of a worker's own code.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

#: How long tasks that a handler left behind get to react to their cancellation.
TASK_CANCEL_TIMEOUT_SECONDS = 1.0


class WorkerEventLoop:
    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._main: asyncio.Task[Any] | None = None
        self.is_stuck = False  # a task ignored its cancellation: this worker must not run another job

    def run(self, awaitable: Awaitable[Any], *, keep: bool = False) -> Any:
        """Run a coroutine to its end, then cancel the tasks that it left.

        `keep`: leave those of a start hook.
        """
        import asyncio

        if self._runner is None:
            self._runner = asyncio.Runner()
        loop = self._runner.get_loop()
        before = asyncio.all_tasks(loop)
        self._main = loop.create_task(_awaited(awaitable))
        try:
            return loop.run_until_complete(self._main)
        finally:
            self._main = None
            self._cancel(loop, set() if keep else asyncio.all_tasks(loop) - before)

    def interrupt(self) -> bool:
        """From the signal handler: stop the running coroutine. False: raise here, this is its code.

        An exception raised inside the loop's own code would break the loop, so there the handler's task is
        cancelled instead. If another task than the handler's own was interrupted, both happen.
        """
        main = self._main
        if main is None:
            return False
        import asyncio

        loop = main.get_loop()
        current = asyncio.tasks.current_task(loop) if loop.is_running() else None
        if current is not main:
            loop.call_soon_threadsafe(main.cancel)  # threadsafe: it also wakes the selector
        return current is None

    def write_stacks(self, fd: int) -> None:
        """Write where each task waits, in faulthandler's format. faulthandler itself only sees the loop."""
        if self._main is None:
            return
        import asyncio

        for task in asyncio.all_tasks(self._main.get_loop()):
            lines = [f"Task {task.get_name()} (most recent call first):", *reversed(_frames(task.get_coro()))]
            # one write, and a block of its own wherever it lands
            os.write(fd, ("\n\n" + "\n".join(lines) + "\n\n").encode("utf-8", "replace"))

    def _cancel(self, loop: asyncio.AbstractEventLoop, left: set[asyncio.Task[Any]]) -> None:
        if not left:
            return
        import asyncio

        for task in left:
            task.cancel()
        _, pending = loop.run_until_complete(asyncio.wait(left, timeout=TASK_CANCEL_TIMEOUT_SECONDS))
        self.is_stuck = self.is_stuck or bool(pending)

    def close(self) -> None:
        if self._runner is not None and not self.is_stuck:
            self._runner.close()


def _frames(coroutine: Any) -> list[str]:
    """The chain of coroutines that wait for each other, the outermost first."""
    lines: list[str] = []
    while coroutine is not None and len(lines) < 100:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            code = frame.f_code
            lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return lines


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
