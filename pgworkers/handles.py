"""`Job[R]`: the handle of one enqueued job.

In blocking code `state`, `progress` and `error` look into the database each time, until the job has ended.
Inside a running event loop a property must not block it: there they tell what the last `await job.arefresh()`
saw.

`Batch`: the handle of many jobs that belong together, and of what comes after them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from pgworkers.errors import JobFailed, NotFound, ResultError, ResultTimeout, UsageError
from pgworkers.options.values import Duration, read_duration
from pgworkers.units import format_duration

if TYPE_CHECKING:
    from pgworkers.client.client import Client
    from pgworkers.job.batches import BatchCounts, BatchView
    from pgworkers.job.queries import JobView

R = TypeVar("R")


class Job(Generic[R]):
    """The handle of one job. `enqueue` returns it; `app.job(1042)` makes one from a number.

    In blocking code `state`, `progress` and `error` ask the database each time, until the job has ended. Inside an event
    loop they would block it: there they tell what the last `await job.arefresh()` saw.
    """

    __slots__ = ("_client", "_decode", "_view", "id", "is_new")

    def __init__(
        self, job_id: int, client: Client, *, decode: Callable[[bytes], R] | None = None, is_new: bool = True
    ) -> None:
        self.id = job_id  #: its number
        self.is_new = is_new  #: False: a unique or idempotency key led to a job that was already there
        self._client = client
        self._decode = decode
        self._view: JobView | None = None

    def result(self, timeout: Duration | None = None) -> R:
        """Wait until the job has ended and return its result.

        JobFailed if it is dead or was cancelled, ResultTimeout if it lives longer than `timeout`. In an event loop it
        refuses (UsageError) instead of blocking the loop: use `aresult`.
        """
        if _is_in_event_loop():
            raise UsageError("job.result() would block the event loop; use `await job.aresult()`")
        seconds = read_duration(timeout, what="timeout", positive=False)
        return self._result_of(self._client.thread_waiters().wait(self.id, seconds), seconds)

    async def aresult(self, timeout: Duration | None = None) -> R:
        """`result` for asyncio."""
        seconds = read_duration(timeout, what="timeout", positive=False)
        return self._result_of(await self._client.loop_waiters().wait(self.id, seconds), seconds)

    def refresh(self) -> JobView:
        """Look into the database now; all that is known of the job."""
        from pgworkers.job import queries

        return self._remember(self._client.run(queries.get_job(self.id)))

    async def arefresh(self) -> JobView:
        """`refresh` for asyncio."""
        from pgworkers.job import queries

        return self._remember(await self._client.arun(queries.get_job(self.id)))

    @property
    def state(self) -> str:
        """scheduled, ready, running, succeeded, dead or cancelled."""
        return str(self._latest_view().state)

    @property
    def progress(self) -> dict[str, Any] | None:
        """What the handler said last: a dict with `done`, `total`, `note` as far as they were given; None: nothing yet."""
        found: dict[str, Any] | None = self._latest_view().progress
        return found

    @property
    def error(self) -> str | None:
        """The error of the last attempt that failed, in one line; None if there is none or it succeeded in the end."""
        return self._latest_view().error

    def cancel(self, reason: str | None = None) -> str:
        """Ask for its end. Returns `cancelled`, `cancelling` (it runs and is being stopped), or how it had already ended.

        `reason` is kept, with the database login and the OS user; `jobs show` tells it.
        """
        from pgworkers.job import cancel, operations

        return self._require_found(self._client.run(cancel.cancel(self.id, operations.make_note(reason))))

    async def acancel(self, reason: str | None = None) -> str:
        """`cancel` for asyncio."""
        from pgworkers.job import cancel, operations

        return self._require_found(
            await self._client.arun(cancel.cancel(self.id, operations.make_note(reason)))
        )

    def extend(self, within: Duration) -> str:
        """Move its deadline, over all attempts, to this long from now: `job.extend("10m")`.

        While it runs, the new deadline counts instead of the attempt's timeout. Returns its state; a terminal one: it had
        already ended.
        """
        from pgworkers.job import cancel, operations

        move = cancel.set_deadline(self.id, _read_within(within), operations.make_note())
        return self._require_found(self._client.run(move))

    async def aextend(self, within: Duration) -> str:
        """`extend` for asyncio."""
        from pgworkers.job import cancel, operations

        move = cancel.set_deadline(self.id, _read_within(within), operations.make_note())
        return self._require_found(await self._client.arun(move))

    def __repr__(self) -> str:
        known = f" {self._view.task} {self._view.state}" if self._view is not None else ""
        return f"<Job #{self.id}{known}>"

    def _latest_view(self) -> JobView:
        from pgworkers.job.model import TERMINAL_STATES

        if self._view is not None and self._view.state in TERMINAL_STATES:
            return self._view
        if not _is_in_event_loop():
            return self.refresh()
        if self._view is None:
            raise UsageError("inside an event loop, `await job.arefresh()` before looking at the job")
        return self._view

    def _remember(self, view: JobView | None) -> JobView:
        if view is None:
            raise self._not_found()
        self._view = view
        return view

    def _not_found(self) -> NotFound:
        return NotFound(
            f"there is no job #{self.id}: its transaction is not committed yet, or it ended so long ago that it was "
            "dropped from history"
        )

    def _require_found(self, answer: str | None) -> str:
        if answer is None:
            raise self._not_found()
        return answer

    def _result_of(self, view: JobView | None, waited: float | None) -> R:
        from pgworkers.job.model import HELD_STATES, TERMINAL_STATES, JobState
        from pgworkers.job.queries import UnreadableValue

        view = self._remember(view)
        if view.state not in TERMINAL_STATES:
            goes_on = "it goes on" if view.state in HELD_STATES else "it has not begun, and goes on waiting"
            raise ResultTimeout(
                f"job #{self.id} is still {view.state} after {format_duration(waited or 0.0)}; {goes_on}"
            )
        if view.state != JobState.SUCCEEDED:
            raise JobFailed(self.id, str(view.state), view.error)
        if isinstance(view.result, UnreadableValue):
            raise ResultError(f"job #{self.id}: its result cannot be read: {view.result}")
        if self._decode is None:
            return view.result  # type: ignore[no-any-return]
        return self._decode(msgspec.json.encode(view.result))


def _read_within(given: Duration) -> float:
    seconds = read_duration(given, what="within", positive=False)
    if seconds is None:
        raise UsageError("job.extend() needs a duration, e.g. '10m'")
    return seconds


def _is_in_event_loop() -> bool:
    try:
        from asyncio import get_running_loop

        get_running_loop()
    except RuntimeError:
        return False
    return True


T = TypeVar("T")
CANCEL_BATCH_SIZE = 500
LOCKED_JOBS_PAUSE_SECONDS = 0.05  # between two looks at jobs that somebody else holds just now


class Batch:
    """Many jobs that belong together. `app.batch` returns it; `app.get_batch(17)` makes one from a number."""

    __slots__ = ("_client", "id", "then")

    def __init__(self, batch_id: int, client: Client, then: Job[Any] | None = None) -> None:
        self.id = batch_id  #: its number
        #: the handle of the job that comes after it, if there is one and the batch was made here
        self.then = then
        self._client = client

    def counts(self) -> BatchCounts:
        """Counted now, from the jobs themselves: `total`, `live`, `succeeded`, `failed` (dead or cancelled).

        A large batch is counted in several short statements. Jobs that end meanwhile are counted as live or as ended.
        """
        from pgworkers.job import batches

        step = self._require_found(self._client.run(batches.count_batch(self.id)))
        while step.next is not None:
            step = self._require_found(self._client.run(batches.count_batch(self.id, step)))
        return step.counts

    async def acounts(self) -> BatchCounts:
        """`counts` for asyncio."""
        from pgworkers.job import batches

        step = self._require_found(await self._client.arun(batches.count_batch(self.id)))
        while step.next is not None:
            step = self._require_found(await self._client.arun(batches.count_batch(self.id, step)))
        return step.counts

    def wait(self, timeout: Duration | None = None) -> BatchCounts:
        """Wait until none of its jobs lives; the counts then. ResultTimeout when that takes longer."""
        from pgworkers.client import batches

        seconds = read_duration(timeout, what="timeout", positive=False)
        self._check_finished(batches.wait_for_batch_steps(self._client, self.id, seconds), seconds)
        return self.counts()

    async def await_end(self, timeout: Duration | None = None) -> BatchCounts:
        """`wait` for asyncio."""
        from pgworkers.client import batches

        seconds = read_duration(timeout, what="timeout", positive=False)
        self._check_finished(await batches.await_end(self._client, self.id, seconds), seconds)
        return await self.acounts()

    def cancel(self) -> int:
        """Cancel its jobs and what comes after them; returns how many. Those that run are stopped by their hosts."""
        import time

        from pgworkers.job import batches

        if not self._client.run(batches.cancel_batch(self.id)):
            raise self._not_found()
        total, more = 0, True
        while more:
            done, more = self._client.run(batches.cancel_batch_jobs(self.id, CANCEL_BATCH_SIZE))
            total += done
            if more and not done:
                time.sleep(LOCKED_JOBS_PAUSE_SECONDS)
        return total

    async def acancel(self) -> int:
        """`cancel` for asyncio."""
        from pgworkers.job import batches

        if not await self._client.arun(batches.cancel_batch(self.id)):
            raise self._not_found()
        total, more = 0, True
        while more:
            done, more = await self._client.arun(batches.cancel_batch_jobs(self.id, CANCEL_BATCH_SIZE))
            total += done
            if more and not done:
                from asyncio import sleep

                await sleep(LOCKED_JOBS_PAUSE_SECONDS)
        return total

    def _require_found(self, found: T | None) -> T:
        if found is None:
            raise self._not_found()
        return found

    def _check_finished(self, view: BatchView | None, waited: float | None) -> None:
        if self._require_found(view).finished_at is None:
            raise ResultTimeout(
                f"batch #{self.id} is not finished after {format_duration(waited or 0.0)}; it goes on"
            )

    def _not_found(self) -> NotFound:
        return NotFound(
            f"there is no batch #{self.id}: its transaction is not committed yet, or it finished so long ago that it "
            "was forgotten"
        )

    def __repr__(self) -> str:
        return f"<Batch #{self.id}>"
