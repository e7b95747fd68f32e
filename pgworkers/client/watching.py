"""Watching jobs: each change of state, the progress, and the end, for any number of watchers.

The end of a job arrives by notification, on the listening connection that all waits of the event loop share
(`client/waiting`). States and progress are not notified, because a NOTIFY for each progress would make the commits of all
hosts wait for one another. They are looked up every `poll_interval` seconds, by one statement for all watched jobs.

No end is missed. A watcher sees the latest state, not each one: a state that lasted shorter than `poll_interval` may not be
seen. Nothing is queued for a watcher, so one that reads slowly costs no memory and gets what is true when it reads.

A watch survives the loss of the database: it pauses, and continues when the database answers again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from pgworkers.client.waiting import MAX_JOBS_PER_QUERY
from pgworkers.clock import monotonic
from pgworkers.errors import DatabaseUnreachable, PgworkersError
from pgworkers.job import queries
from pgworkers.job.changes import WatchEvent, next_event
from pgworkers.job.model import TERMINAL_STATES

if TYPE_CHECKING:
    from pgworkers.client.client import Client


class WatchTimeout(Exception):
    """The time of a watch is up. The job continues."""


class _Watch:
    """One watcher: what was found last, until it reads it."""

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        self.found: queries.JobStatus | queries.JobView | None = None
        self.is_gone = False
        self.error: PgworkersError | None = None
        self.wakeup = asyncio.Event()

    def observe(self, status: queries.JobStatus | None) -> None:
        if status is None:
            self.is_gone = True
        elif self.found is None or self.found.state not in TERMINAL_STATES:
            self.found = status
        self.wakeup.set()

    def fail(self, error: PgworkersError) -> None:
        self.error = error
        self.wakeup.set()


class LoopWatchers:
    """The watchers of one event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._watches: set[_Watch] = set()
        self._poller: asyncio.Task[None] | None = None

    async def watch(
        self, job_id: int, timeout: float | None = None
    ) -> AsyncGenerator[WatchEvent | None, None]:
        """Yield each change of a job until it has ended. Yields None, as the last, if there is no such job.

        WatchTimeout when the time is up. The first look raises DatabaseUnreachable; later ones are repeated.
        """
        until = None if timeout is None else monotonic() + timeout
        watch = _Watch(job_id)
        self._watches.add(watch)
        end_waiter = asyncio.create_task(self._wait_for_end(watch), name=f"pgworkers watch #{job_id}")
        before: WatchEvent | None = None
        try:
            watch.observe((await self._client.arun(queries.job_statuses([job_id]))).get(job_id))
            if self._poller is None or self._poller.done():
                self._poller = asyncio.create_task(self._poll(), name="pgworkers watch")
            while True:
                watch.wakeup.clear()
                event = None if watch.found is None else next_event(before, watch.found)
                if event is not None:
                    before = event
                    yield event
                    if event.kind == "end":
                        return
                    continue
                if watch.error is not None:
                    raise watch.error
                if watch.is_gone:
                    yield None
                    return
                await _wait_for(watch.wakeup, until)
        finally:
            self._watches.discard(watch)
            await _end_task(end_waiter)
            if not self._watches and self._poller is not None:
                poller, self._poller = self._poller, None
                await _end_task(poller)

    async def _wait_for_end(self, watch: _Watch) -> None:
        """Wait for the end of a job by notification, also while the database is away."""
        while True:
            try:
                view = await self._client.loop_waiters().wait(watch.job_id, None)
            except DatabaseUnreachable:
                await asyncio.sleep(self._client.settings.poll_interval)
            except PgworkersError as error:
                return watch.fail(error)
            else:
                if view is not None:
                    watch.found = view
                    watch.wakeup.set()
                return None

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._client.settings.poll_interval)
            watches = list(self._watches)
            listed = sorted({watch.job_id for watch in watches})
            for start in range(0, len(listed), MAX_JOBS_PER_QUERY):
                some = listed[start : start + MAX_JOBS_PER_QUERY]
                concerned = [watch for watch in watches if some[0] <= watch.job_id <= some[-1]]
                try:
                    found = await self._client.arun(queries.job_statuses(some))
                except DatabaseUnreachable:
                    break  # the watches continue when it is back
                except PgworkersError as error:
                    for watch in concerned:
                        watch.fail(error)
                else:
                    for watch in concerned:
                        watch.observe(found.get(watch.job_id))


async def _wait_for(wakeup: asyncio.Event, until: float | None) -> None:
    if until is None:
        await wakeup.wait()
        return
    try:
        await asyncio.wait_for(wakeup.wait(), max(0.0, until - monotonic()))
    except TimeoutError:
        raise WatchTimeout from None


async def _end_task(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has ended, in whatever way: at exit its connection may no longer be opened."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # else asyncio reports that it was not retrieved
