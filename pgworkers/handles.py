"""`Job` and `Batch`: handles of what was enqueued. They wait, look, cancel and extend.

In blocking code `Job.state`, `Job.progress` and `Job.error` query the database each time, until the job has ended. Inside a
running event loop a property must not block: there they show what the last `await job.arefresh()` found.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from pgworkers import result_store
from pgworkers.client.running_loop import is_in_event_loop
from pgworkers.errors import (
    DatabaseUnreachable,
    JobFailed,
    NotFound,
    PgworkersError,
    ResultError,
    ResultTimeout,
    UsageError,
)
from pgworkers.options.values import Duration, read_duration
from pgworkers.postgres.steps import Sleep, Steps, ask
from pgworkers.units import format_duration

if TYPE_CHECKING:
    from pgworkers.client.client import Client
    from pgworkers.client.progress_bars import BarKind
    from pgworkers.job.batches import BatchCounts
    from pgworkers.job.changes import WatchEvent
    from pgworkers.job.queries import JobView

R = TypeVar("R")
T = TypeVar("T")

#: How many jobs of a batch one statement cancels.
CANCEL_BATCH_SIZE = 500
#: Pause before jobs that other sessions have locked are tried again.
LOCKED_JOBS_PAUSE_SECONDS = 0.05


class Job(Generic[R]):
    """The handle of one job. `enqueue` returns it; `app.job(1042)` makes one from a number.

    In blocking code `state`, `progress` and `error` query the database each time, until the job has ended. Inside an event
    loop they would block it: there they show what the last `await job.arefresh()` found.
    """

    __slots__ = ("_client", "_decode", "_view", "id", "is_new")

    def __init__(
        self, job_id: int, client: Client, *, decode: Callable[[bytes], R] | None = None, is_new: bool = True
    ) -> None:
        self.id = job_id  #: the job's number
        self.is_new = is_new  #: False if a unique or idempotency key led to a job that already existed
        self._client = client
        self._decode = decode
        self._view: JobView | None = None

    def result(self, timeout: Duration | None = None) -> R:
        """Wait until the job has ended and return its result.

        JobFailed if it is dead or was cancelled. ResultTimeout if it has not ended after `timeout`. Inside an event loop it
        raises UsageError instead of blocking the loop: use `aresult`.
        """
        if is_in_event_loop():
            raise UsageError("job.result() would block the event loop; use `await job.aresult()`")
        seconds = read_duration(timeout, what="timeout", positive=False)
        return self._result_of(self._client.thread_waiters().wait(self.id, seconds), seconds)

    async def aresult(self, timeout: Duration | None = None) -> R:
        """`result` for asyncio."""
        seconds = read_duration(timeout, what="timeout", positive=False)
        view = await self._client.loop_waiters().wait(self.id, seconds)
        if view is not None and result_store.read_reference(view.result) is not None:
            from asyncio import to_thread

            return await to_thread(self._result_of, view, seconds)  # reads a file
        return self._result_of(view, seconds)

    def wait(self, timeout: Duration | None = None, *, progress: bool | BarKind = False) -> str:
        """Wait until the job has ended and return its state: succeeded, dead or cancelled. It raises for none of them.

        `progress=True` shows a bar: ipywidgets in a notebook, tqdm if the program has imported it, else rich. Its name
        chooses one. ResultTimeout if the job has not ended after `timeout`.
        """
        if is_in_event_loop():
            raise UsageError("job.wait() would block the event loop; use `await job.await_end()`")
        seconds = read_duration(timeout, what="timeout", positive=False)
        if progress is not False:
            return self._wait_with_bar(seconds, progress)
        return self._state_of(self._client.thread_waiters().wait(self.id, seconds), seconds)

    async def await_end(self, timeout: Duration | None = None) -> str:
        """`wait` for asyncio, without a bar."""
        seconds = read_duration(timeout, what="timeout", positive=False)
        return self._state_of(await self._client.loop_waiters().wait(self.id, seconds), seconds)

    def _wait_with_bar(self, seconds: float | None, kind: bool | str) -> str:
        from pgworkers.client.progress_bars import open_bar

        state = ""
        with closing(open_bar(kind, f"job #{self.id}")) as bar:
            for event in self._iterate_events(seconds):
                state = event.state
                progress = event.progress or {}
                text = " ".join([state, str(progress.get("note") or "")]).strip()
                if event.fraction is None:
                    is_done = state == "succeeded"
                    bar.update(float(is_done), 1.0 if is_done else None, text)
                else:
                    total = progress["total"]
                    bar.update(total if state == "succeeded" else progress["done"], total, text)
        return state

    def watch(self, timeout: Duration | None = None) -> Iterator[WatchEvent]:
        """Iterate over the changes of the job until it has ended: `for event in job.watch(): print(event.fraction)`.

        The first event is the present state. The end arrives by notification; states and progress are looked up every
        `poll_interval` (1 second). All watches of a process share two connections and a thread, which end with the last
        watch. A watch survives the loss of the database. ResultTimeout if the job has not ended after `timeout`.
        """
        if is_in_event_loop():
            raise UsageError("job.watch() would block the event loop; use `async for event in job.awatch()`")
        seconds = read_duration(timeout, what="timeout", positive=False)
        return self._iterate_events(seconds)

    def _iterate_events(self, seconds: float | None) -> Iterator[WatchEvent]:
        from pgworkers.client.background import BackgroundIteration

        return iter(BackgroundIteration(self._client.background_loop(), self._watch_events(seconds)))

    async def awatch(self, timeout: Duration | None = None) -> AsyncGenerator[WatchEvent, None]:
        """`watch` for asyncio: `async for event in job.awatch():`. The watches of an event loop share two connections."""
        seconds = read_duration(timeout, what="timeout", positive=False)
        async with aclosing(self._watch_events(seconds)) as events:
            async for event in events:
                yield event

    async def _watch_events(self, seconds: float | None) -> AsyncGenerator[WatchEvent, None]:
        from pgworkers.client.watching import WatchTimeout

        try:
            async with aclosing(self._client.loop_watchers().watch(self.id, seconds)) as events:
                async for event in events:
                    yield self._require_found(event)
        except WatchTimeout:
            raise ResultTimeout(
                f"job #{self.id} has not ended after {format_duration(seconds or 0.0)}; it goes on"
            ) from None

    def refresh(self) -> JobView:
        """Query the database now and return all that is known about the job."""
        return self._client.run_steps(self._refresh_steps())

    async def arefresh(self) -> JobView:
        """`refresh` for asyncio."""
        return await self._client.arun_steps(self._refresh_steps())

    def _refresh_steps(self) -> Steps[JobView]:
        from pgworkers.job import queries

        return self._remember((yield from ask(queries.get_job(self.id))))

    @property
    def state(self) -> str:
        """scheduled, ready, claimed (a host has it, no worker yet), running, succeeded, dead or cancelled."""
        return str(self._latest_view().state)

    @property
    def progress(self) -> dict[str, Any] | None:
        """The last progress of the handler: a dict with `done`, `total` and `note`, as far as given. None: none yet."""
        found: dict[str, Any] | None = self._latest_view().progress
        return found

    @property
    def error(self) -> str | None:
        """The error of the last failed attempt, in one line. None if none failed, or if the job succeeded in the end."""
        return self._latest_view().error

    def cancel(self, reason: str | None = None) -> str:
        """Cancel the job. Returns `cancelled`, `cancelling` (it runs and is being stopped), or how it had already ended.

        `reason` is kept with the database login and the OS user; `jobs show` prints it.
        """
        return self._client.run_steps(self._cancel_steps(reason))

    async def acancel(self, reason: str | None = None) -> str:
        """`cancel` for asyncio."""
        return await self._client.arun_steps(self._cancel_steps(reason))

    def _cancel_steps(self, reason: str | None) -> Steps[str]:
        from pgworkers.job import cancel, operations

        return self._require_found((yield from ask(cancel.cancel(self.id, operations.make_note(reason)))))

    def extend(self, within: Duration) -> str:
        """Move the job's deadline, over all attempts, to this long from now: `job.extend("10m")`.

        While it runs, the new deadline counts instead of the attempt's timeout. Returns its state. A terminal state means
        that it had already ended.
        """
        return self._client.run_steps(self._extend_steps(within))

    async def aextend(self, within: Duration) -> str:
        """`extend` for asyncio."""
        return await self._client.arun_steps(self._extend_steps(within))

    def _extend_steps(self, within: Duration) -> Steps[str]:
        from pgworkers.job import cancel, operations

        seconds = read_duration(within, what="within", positive=False)
        if seconds is None:
            raise UsageError("job.extend() needs a duration, e.g. '10m'")
        query = cancel.set_deadline(self.id, seconds, operations.make_note())
        return self._require_found((yield from ask(query)))

    def __repr__(self) -> str:
        known = f" {self._view.task} {self._view.state}" if self._view is not None else ""
        return f"<Job #{self.id}{known}>"

    def _repr_html_(self) -> str:
        """The job as a notebook shows it, as it is now. Never raises."""
        from pgworkers.client.html import job_html

        try:
            return job_html(self.id, self._latest_view())
        except PgworkersError as error:
            return job_html(self.id, self._view, str(error))

    def _latest_view(self) -> JobView:
        from pgworkers.job.model import TERMINAL_STATES

        if self._view is not None and self._view.state in TERMINAL_STATES:
            return self._view
        if not is_in_event_loop():
            return self.refresh()
        if self._view is None:
            raise UsageError("inside an event loop, `await job.arefresh()` before looking at the job")
        return self._view

    def _remember(self, view: JobView | None) -> JobView:
        self._view = self._require_found(view)
        return self._view

    def _require_found(self, answer: T | None) -> T:
        if answer is None:
            raise NotFound(
                f"there is no job #{self.id}: its transaction is not committed yet, or it ended so long ago that it was "
                "dropped from history"
            )
        return answer

    def _state_of(self, view: JobView | None, waited: float | None) -> str:
        """The state of a job that was waited for. ResultTimeout if it has not ended."""
        from pgworkers.job.model import HELD_STATES, TERMINAL_STATES

        view = self._remember(view)
        if view.state not in TERMINAL_STATES:
            goes_on = "it goes on" if view.state in HELD_STATES else "it has not begun, and goes on waiting"
            raise ResultTimeout(
                f"job #{self.id} is still {view.state} after {format_duration(waited or 0.0)}; {goes_on}"
            )
        return str(view.state)

    def _result_of(self, view: JobView | None, waited: float | None) -> R:
        from pgworkers.job.model import JobState
        from pgworkers.job.queries import UnreadableValue

        self._state_of(view, waited)
        view = self._require_found(view)
        if view.state != JobState.SUCCEEDED:
            raise JobFailed(self.id, str(view.state), view.error, view.verdict)
        if isinstance(view.result, UnreadableValue):
            raise ResultError(f"job #{self.id}: its result cannot be read: {view.result}")
        stored = result_store.read_reference(view.result)
        if stored is not None:
            data = result_store.fetch(self._client.settings.result_store, self.id, stored)
            return msgspec.json.decode(data) if self._decode is None else self._decode(data)
        if self._decode is None:
            return view.result  # type: ignore[no-any-return]
        return self._decode(msgspec.json.encode(view.result))


class Batch:
    """The handle of many jobs that belong together. `app.batch` returns it; `app.get_batch(17)` makes one from a number."""

    __slots__ = ("_client", "id", "then")

    def __init__(self, batch_id: int, client: Client, then: Job[Any] | None = None) -> None:
        self.id = batch_id  #: the batch's number
        #: the handle of the job after the batch, if there is one and this handle comes from `app.batch`
        self.then = then
        self._client = client

    def counts(self) -> BatchCounts:
        """Count the jobs of the batch now: `total`, `live`, `succeeded` and `failed` (dead or cancelled).

        A large batch is counted by several short statements. A job that ends meanwhile is counted as live or as ended.
        """
        return self._client.run_steps(self._count_steps())

    async def acounts(self) -> BatchCounts:
        """`counts` for asyncio."""
        return await self._client.arun_steps(self._count_steps())

    def _count_steps(self) -> Steps[BatchCounts]:
        from pgworkers.job import batches

        portion = self._require_found((yield from ask(batches.count_batch(self.id))))
        while portion.next is not None:
            portion = self._require_found((yield from ask(batches.count_batch(self.id, portion))))
        return portion.counts

    def wait(self, timeout: Duration | None = None, *, progress: bool | BarKind = False) -> BatchCounts:
        """Wait until the batch is finished and return its counts. ResultTimeout if that takes longer than `timeout`.

        A batch with `on_failed="wait"` is not finished while one of its jobs is dead or cancelled. `progress=True` shows a
        bar, as `job.wait` does.
        """
        if is_in_event_loop():
            raise UsageError("batch.wait() would block the event loop; use `await batch.await_end()`")
        if progress is not False:
            return self._wait_with_bar(timeout, progress)
        return self._client.run_steps(self._wait_steps(timeout))

    def _wait_with_bar(self, timeout: Duration | None, kind: bool | str) -> BatchCounts:
        """Look at the batch every `poll_interval` until it is finished. A lost database is waited for."""
        from time import sleep

        from pgworkers.client.progress_bars import open_bar
        from pgworkers.clock import monotonic
        from pgworkers.job import batches

        seconds = read_duration(timeout, what="timeout", positive=False)
        until = None if seconds is None else monotonic() + seconds
        self._require_found(self._client.run(batches.get_batch(self.id)))
        with closing(open_bar(kind, f"batch #{self.id}")) as bar:
            while True:
                with suppress(DatabaseUnreachable):
                    view = self._require_found(self._client.run(batches.get_batch(self.id)))
                    counts = self.counts()
                    failed = f"{counts.failed} failed" if counts.failed else ""
                    bar.update(counts.total - counts.live, counts.total, failed)
                    if view.finished_at is not None:
                        return counts
                pause = self._client.settings.poll_interval
                if until is not None:
                    pause = min(pause, until - monotonic())
                if pause <= 0:
                    raise ResultTimeout(
                        f"batch #{self.id} is not finished after {format_duration(seconds or 0.0)}; it goes on"
                    )
                sleep(pause)

    async def await_end(self, timeout: Duration | None = None) -> BatchCounts:
        """`wait` for asyncio."""
        return await self._client.arun_steps(self._wait_steps(timeout))

    def _wait_steps(self, timeout: Duration | None) -> Steps[BatchCounts]:
        from pgworkers.client.batches import wait_for_batch_steps

        seconds = read_duration(timeout, what="timeout", positive=False)
        view = yield from wait_for_batch_steps(self._client, self.id, seconds)
        if self._require_found(view).finished_at is None:
            raise ResultTimeout(
                f"batch #{self.id} is not finished after {format_duration(seconds or 0.0)}; it goes on"
            )
        return (yield from self._count_steps())

    def cancel(self) -> int:
        """Cancel the jobs of the batch and the job after it. Returns how many. Hosts stop those that run."""
        return self._client.run_steps(self._cancel_steps())

    async def acancel(self) -> int:
        """`cancel` for asyncio."""
        return await self._client.arun_steps(self._cancel_steps())

    def _cancel_steps(self) -> Steps[int]:
        from pgworkers.job import batches

        is_found = yield from ask(batches.cancel_batch(self.id))
        self._require_found(is_found or None)
        total, has_more = 0, True
        while has_more:
            cancelled, has_more = yield from ask(batches.cancel_batch_jobs(self.id, CANCEL_BATCH_SIZE))
            total += cancelled
            if has_more and not cancelled:
                yield Sleep(LOCKED_JOBS_PAUSE_SECONDS)
        return total

    def _require_found(self, found: T | None) -> T:
        if found is None:
            raise NotFound(
                f"there is no batch #{self.id}: its transaction is not committed yet, or it finished so long ago that it "
                "was forgotten"
            )
        return found

    def __repr__(self) -> str:
        return f"<Batch #{self.id}>"

    def _repr_html_(self) -> str:
        """The batch as a notebook shows it, as it is now. Never raises."""
        from pgworkers.client.html import batch_html

        if is_in_event_loop():
            return batch_html(self.id, None, "`await batch.acounts()` counts its jobs")
        try:
            return batch_html(self.id, self.counts())
        except PgworkersError as error:
            return batch_html(self.id, None, str(error))
