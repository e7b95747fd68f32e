"""Waiting for jobs to end: any number of waiters, one listening connection.

No end of a job is missed. A waiter first joins, then looks at its job, then waits, and a new listening connection looks at
all jobs that are waited for after LISTEN. When no notification has arrived for `poll_interval` seconds, all of them are
looked at again: a notification may have been lost with its connection.

Threads take turns: one of the waiting threads reads the connection for all, the others sleep. When it leaves, it wakes the
next. So no background thread runs in the user's process. Coroutines share one task per event loop. The connection is closed
when nothing waits, because a listener that does not read would delay the notifications of all others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from psycopg import Error, sql

from pgworkers.clock import monotonic
from pgworkers.errors import DatabaseUnreachable
from pgworkers.job import queries
from pgworkers.job.model import TERMINAL_STATES
from pgworkers.job.notification_payloads import MIN_HINT_INTERVAL_SECONDS, JobsEnded, parse_done_hint
from pgworkers.postgres.statements import Query
from pgworkers.postgres.steps import (
    AsyncConnectionRunner,
    ConnectionRunner,
    Execute,
    Steps,
    WaitForNotifications,
    ask,
)

if TYPE_CHECKING:
    import psycopg

    from pgworkers.client.client import Client

MAX_JOBS_PER_QUERY = 500


def hinted_jobs(payload: str, waiting: Collection[int]) -> set[int]:
    """The jobs among those waited for that a notification names.

    It is only a hint to look at them.
    """
    match parse_done_hint(payload):
        case JobsEnded(None):
            return set(waiting)
        case JobsEnded(frozenset() as jobs):
            return set(waiting) & jobs
    return set()


class Waiters(Protocol):
    """The callers that wait for jobs in one process or event loop."""

    def job_ids(self) -> set[int]:
        """The jobs that are waited for."""

    def resolve(self, view: queries.JobView) -> None:
        """Wake all that wait for this job, which has ended."""


def begin_steps(waiters: Waiters, schema: str) -> Steps[None]:
    """Listen on a new connection, then look at all jobs that are waited for."""
    yield Execute(listen(schema))
    yield from look_up_steps(waiters, waiters.job_ids())


def read_steps(waiters: Waiters, timeout: float) -> Steps[bool]:
    """Wait for one notification and look at the jobs that it names, or at all of them if none arrives in time.

    Returns True if the notification named jobs of which none has ended. The caller then pauses, so that forged notifications
    cause no more queries than the pause allows.
    """
    payloads: list[str] = yield WaitForNotifications(timeout)
    waiting = waiters.job_ids()
    hinted = set().union(*(hinted_jobs(payload, waiting) for payload in payloads))
    found = yield from look_up_steps(waiters, hinted if payloads else waiting)
    return bool(hinted) and not found


def look_up_steps(waiters: Waiters, job_ids: Collection[int]) -> Steps[int]:
    """Look at these jobs and wake those that wait for one that has ended.

    Returns how many have ended.
    """
    found = 0
    for query in finished_job_queries(job_ids):
        for view in (yield from ask(query)):
            found += 1
            waiters.resolve(view)
    return found


def finished_job_queries(job_ids: Collection[int]) -> Iterator[Query[list[queries.JobView]]]:
    """Queries for those of the jobs that have ended."""
    listed = sorted(job_ids)
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
        """Wait until a job has ended, or until the time is up.

        Returns it as it then is; None: there is no such job.
        """
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
                seconds = poll if until is None else min(poll, until - monotonic())
                if seconds <= 0:
                    return self._client.run(queries.get_job(job_id))
                if self._reader_lock.acquire(blocking=False):
                    self._read_for_all(waiter, seconds)
                else:
                    waiter.event.wait(seconds)
                    waiter.event.clear()
            return waiter.view
        finally:
            self._remove(waiter)

    def job_ids(self) -> set[int]:
        with self._lock:
            return {waiter.job_id for waiter in self._waiters if waiter.view is None}

    def resolve(self, view: queries.JobView) -> None:
        with self._lock:
            for waiter in self._waiters:
                if waiter.job_id == view.id:
                    waiter.view = view
                    waiter.event.set()

    def _read_for_all(self, me: _Waiter, seconds: float) -> None:
        """Read once, on behalf of all. The caller holds `_reader_lock`."""
        schema = self._client.settings.schema
        try:
            if self._conn is None:
                self._conn = self._client.connect("wait")
                ConnectionRunner(self._conn, schema).run(begin_steps(self, schema))
                if me.view is not None:
                    return
            if ConnectionRunner(self._conn, schema).run(read_steps(self, seconds)):
                me.event.wait(min(seconds, MIN_HINT_INTERVAL_SECONDS))
        except (Error, DatabaseUnreachable):
            # The jobs continue, and so does the wait until its own time is up.
            self._close()
            me.event.wait(seconds)
        finally:
            self._reader_lock.release()

    def _remove(self, waiter: _Waiter) -> None:
        with self._lock:
            self._waiters.remove(waiter)
            is_last = not self._waiters
            if not is_last:
                self._waiters[0].event.set()  # one of the others has to read
        if is_last and self._reader_lock.acquire(blocking=False):
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
        """Wait until a job has ended, or until the time is up.

        Returns it as it then is; None: there is no such job.
        """
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

    def job_ids(self) -> set[int]:
        return set(self._waiting)

    def resolve(self, view: queries.JobView) -> None:
        for future in self._waiting.get(view.id, ()):
            if not future.done():
                future.set_result(view)

    async def _read_notifications(self) -> None:
        schema = self._client.settings.schema
        while True:
            try:
                async with await self._client.aconnect("wait") as conn:
                    runner = AsyncConnectionRunner(conn, schema)
                    await runner.run(begin_steps(self, schema))
                    while True:
                        if await runner.run(read_steps(self, self._client.settings.poll_interval)):
                            await asyncio.sleep(MIN_HINT_INTERVAL_SECONDS)
            except (Error, DatabaseUnreachable):
                await asyncio.sleep(self._client.settings.poll_interval)
