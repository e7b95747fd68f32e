"""Waiting for jobs to end: any number of waiters, one listening connection.

The rule that makes a missed end impossible: a waiter first joins, then looks at its job, then waits; and
whoever opens a listening connection looks at all jobs that are waited for after LISTEN. What still slips
through (a notification lost with its connection) is found by looking at all of them whenever nothing was
heard for `poll_interval` seconds.

Threads take turns: one of the waiting threads reads the connection for all, the others sleep; when it leaves,
it wakes the next. So there is no thread in the background of somebody else's process. Coroutines share one
task per event loop. The connection is closed when nobody waits: a listener that does not read would hold up
everybody's notifications.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from psycopg import Error, sql

from pgworkers.clock import monotonic
from pgworkers.errors import DatabaseUnreachable
from pgworkers.job import queries
from pgworkers.job.model import TERMINAL_STATES
from pgworkers.job.notification_payloads import MIN_HINT_INTERVAL_SECONDS, JobsEnded, parse_done_hint
from pgworkers.postgres.statements import Query, arun, run

if TYPE_CHECKING:
    import psycopg

    from pgworkers.client.client import Client

MAX_JOBS_PER_QUERY = 500


def hinted_jobs(payload: str, waiting: Collection[int]) -> set[int]:
    """Which of the jobs that are waited for a notification is about. It is only a hint to look at them."""
    match parse_done_hint(payload):
        case JobsEnded(None):
            return set(waiting)
        case JobsEnded(frozenset() as jobs):
            return set(waiting) & jobs
    return set()


def finished_job_queries(ids: Collection[int]) -> Iterator[Query[list[queries.JobView]]]:
    """Queries for those of the jobs that have ended."""
    listed = sorted(ids)
    for start in range(0, len(listed), MAX_JOBS_PER_QUERY):
        some = listed[start : start + MAX_JOBS_PER_QUERY]
        yield queries.jobs_by_id(some, tuple(TERMINAL_STATES))


def listen(schema: str) -> sql.Composed:
    return sql.SQL("LISTEN {}").format(sql.Identifier(f"{schema}_done"))


class _Waiter:
    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        self.event = threading.Event()
        self.view: queries.JobView | None = None


class ThreadWaiters:
    """The waiting threads of this process."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()  # guards _waiters
        self._waiters: list[_Waiter] = []
        self._reader_lock = threading.Lock()  # held by the thread that reads for all
        self._conn: psycopg.Connection[Any] | None = None

    def wait(self, job_id: int, timeout: float | None) -> queries.JobView | None:
        """The job when it has ended, or as it is when the time is up; None: there is no such job."""
        until = None if timeout is None else monotonic() + timeout
        waiter = _Waiter(job_id)
        with self._lock:
            self._waiters.append(waiter)
        try:
            view = self._client.run(queries.get_job(job_id))
            if view is None or view.state in TERMINAL_STATES:
                return view
            while waiter.view is None:
                poll = self._client.settings.poll_interval
                step = poll if until is None else min(poll, until - monotonic())
                if step <= 0:
                    return self._client.run(queries.get_job(job_id))
                if self._reader_lock.acquire(blocking=False):
                    self._read_for_all(waiter, step)
                else:
                    waiter.event.wait(step)
                    waiter.event.clear()
            return waiter.view
        finally:
            self._remove(waiter)

    def _read_for_all(self, me: _Waiter, step: float) -> None:
        """One step of reading; the caller holds `_reader_lock`."""
        try:
            if self._conn is None:
                self._conn = self._client.connect("wait")
                self._conn.execute(listen(self._client.settings.schema))
                self._look(self.job_ids())
                if me.view is not None:
                    return
            notes = list(self._conn.notifies(timeout=step, stop_after=1))
            ids = self.job_ids()
            hinted = set().union(*(hinted_jobs(note.payload, ids) for note in notes))
            if not self._look(hinted if notes else ids) and hinted:
                me.event.wait(
                    min(step, MIN_HINT_INTERVAL_SECONDS)
                )  # a forged hint costs no more looks than this allows
        except (Error, DatabaseUnreachable):  # the jobs go on; so does the wait, until its own time is up
            self._close()
            me.event.wait(step)
        finally:
            self._reader_lock.release()

    def _look(self, ids: Collection[int]) -> int:
        """Read these jobs and wake those that wait for one that ended. How many have."""
        assert self._conn is not None
        found = 0
        for query in finished_job_queries(ids):
            for view in run(self._conn, self._client.settings.schema, query):
                found += 1
                with self._lock:
                    for waiter in self._waiters:
                        if waiter.job_id == view.id:
                            waiter.view = view
                            waiter.event.set()
        return found

    def job_ids(self) -> set[int]:
        with self._lock:
            return {waiter.job_id for waiter in self._waiters if waiter.view is None}

    def _remove(self, waiter: _Waiter) -> None:
        with self._lock:
            self._waiters.remove(waiter)
            nobody = not self._waiters
            if not nobody:
                self._waiters[0].event.set()  # somebody has to read
        if nobody and self._reader_lock.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._reader_lock.release()

    def _close(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()


class LoopWaiters:
    """The waiting coroutines of one event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: dict[int, list[asyncio.Future[queries.JobView]]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def wait(self, job_id: int, timeout: float | None) -> queries.JobView | None:
        """The job when it has ended, or as it is when the time is up; None: there is no such job."""
        future: asyncio.Future[queries.JobView] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, []).append(future)
        try:
            view = await self._client.arun(queries.get_job(job_id))
            if view is None or view.state in TERMINAL_STATES:
                return view
            if self._reader is None or self._reader.done():
                self._reader = asyncio.create_task(self._read_notifications(), name="pgworkers wait")
            await asyncio.wait([future], timeout=timeout)
            return future.result() if future.done() else await self._client.arun(queries.get_job(job_id))
        finally:
            self._waiting[job_id].remove(future)
            if not self._waiting[job_id]:
                del self._waiting[job_id]
            if not self._waiting and self._reader is not None:
                reader, self._reader = self._reader, None
                reader.cancel()
                with suppress(asyncio.CancelledError):
                    await reader

    async def _read_notifications(self) -> None:
        while True:
            try:
                async with await self._client.aconnect("wait") as conn:
                    await conn.execute(listen(self._client.settings.schema))
                    await self._look(conn, self._waiting.keys())
                    while True:
                        poll = self._client.settings.poll_interval
                        notes = [note async for note in conn.notifies(timeout=poll, stop_after=1)]
                        ids = self._waiting.keys()
                        hinted = set().union(*(hinted_jobs(note.payload, ids) for note in notes))
                        if not await self._look(conn, hinted if notes else ids) and hinted:
                            await asyncio.sleep(MIN_HINT_INTERVAL_SECONDS)
            except (Error, DatabaseUnreachable):
                await asyncio.sleep(self._client.settings.poll_interval)

    async def _look(self, conn: psycopg.AsyncConnection[Any], ids: Collection[int]) -> int:
        found = 0
        for query in finished_job_queries(ids):
            for view in await arun(conn, self._client.settings.schema, query):
                found += 1
                for future in self._waiting.get(view.id, ()):
                    if not future.done():
                        future.set_result(view)
        return found
