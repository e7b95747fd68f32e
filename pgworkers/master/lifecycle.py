"""The state of a host, how it is asked to leave, and the asyncio tasks that it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from pgworkers.events import EventBus, HostStateChanged
from pgworkers.states import HostState

#: From each state, the states that may follow it.
HOST_MOVES: Mapping[HostState, frozenset[HostState]] = {
    HostState.STARTING: frozenset({HostState.RUNNING, HostState.GONE}),
    HostState.RUNNING: frozenset({HostState.DRAINING}),
    HostState.DRAINING: frozenset({HostState.STOPPING, HostState.GONE}),
    HostState.STOPPING: frozenset({HostState.GONE}),
    HostState.GONE: frozenset(),
}


class HostLifecycle:
    """The state of the host, and the request to leave."""

    def __init__(self, events: EventBus) -> None:
        self.state = HostState.STARTING
        self.leave_reason = ""  # the first one that was given
        self.has_failed = False  # the process exits with 1
        self.hurry = asyncio.Event()  # leave without waiting for running jobs
        self._events = events
        self._leave_requested = asyncio.Event()

    @property
    def is_leaving(self) -> bool:
        return self._leave_requested.is_set()

    def leave(self, why: str, *, at_once: bool = False) -> None:
        """Ask the host to drain; with `at_once`, without waiting for running jobs."""
        self.leave_reason = self.leave_reason or why
        if at_once:
            self.hurry.set()
        self._leave_requested.set()

    async def wait_for_leave(self) -> None:
        await self._leave_requested.wait()

    def move_to(self, state: HostState, why: str) -> None:
        """Change the state, and emit it."""
        if state not in HOST_MOVES[self.state]:
            raise RuntimeError(f"a host that is {self.state} cannot become {state}")
        self.state = state
        self.note(why)

    def note(self, text: str) -> None:
        """Emit a line about the host in its present state."""
        self._events.emit(HostStateChanged(self.state.value, text))


class HostTasks:
    """The asyncio tasks of a host.

    If one of its parts ends or fails, the host leaves instead of running without it.
    """

    def __init__(self, lifecycle: HostLifecycle) -> None:
        self._lifecycle = lifecycle
        self._tasks: list[asyncio.Task[None]] = []

    def start_part(self, part: Coroutine[Any, Any, None]) -> None:
        """Start a part of the host: a loop that ends only when it is cancelled."""
        task = asyncio.get_running_loop().create_task(part)
        task.add_done_callback(self._on_part_ended)
        self._tasks.append(task)

    def start_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start work that may take seconds and then ends. If it fails, the host leaves."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._on_background_ended)
        self._tasks.append(task)
        return task

    async def cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_part_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (self._lifecycle.is_leaving and task.exception() is None):
            return
        error = task.exception()
        self._lifecycle.has_failed = True
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": "a part of the master failed", "exception": error})
        self._lifecycle.leave(f"a part of the master failed: {error!r}")

    def _on_background_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        if not task.cancelled() and task.exception() is not None:
            self._on_part_ended(task)
