"""`Batch`: the handle of many jobs that belong together, and of what comes after them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pgworkers.clock import show_seconds
from pgworkers.declare.options import Duration, read_duration
from pgworkers.errors import NotFound, ResultTimeout
from pgworkers.handle import Job

if TYPE_CHECKING:
    from pgworkers.client.session import Client
    from pgworkers.flow.batch import BatchView, Counts

T = TypeVar("T")
CANCEL_AT_ONCE = 500
PAUSE = 0.05  # between two looks at jobs that somebody else holds just now


class Batch:
    """Many jobs that belong together. `app.batch` returns it; `app.get_batch(17)` makes one from a number."""

    __slots__ = ("_client", "id", "then")

    def __init__(self, batch_id: int, client: Client, then: Job[Any] | None = None) -> None:
        self.id = batch_id  #: its number
        self.then = (
            then  #: the handle of the job that comes after it, if there is one and the batch was made here
        )
        self._client = client

    def counts(self) -> Counts:
        """Counted now, from the jobs themselves: `total`, `live`, `succeeded`, `failed` (dead or cancelled).

        A large batch is counted in several short statements. Jobs that end meanwhile are counted as live or as ended.
        """
        from pgworkers.flow import batch

        step = self._found(self._client.run(batch.counts(self.id)))
        while step.next is not None:
            step = self._found(self._client.run(batch.counts(self.id, step)))
        return step.counts

    async def acounts(self) -> Counts:
        """`counts` for asyncio."""
        from pgworkers.flow import batch

        step = self._found(await self._client.arun(batch.counts(self.id)))
        while step.next is not None:
            step = self._found(await self._client.arun(batch.counts(self.id, step)))
        return step.counts

    def wait(self, timeout: Duration | None = None) -> Counts:
        """Wait until none of its jobs lives; the counts then. ResultTimeout when that takes longer."""
        from pgworkers.client import batches

        seconds = read_duration(timeout, what="timeout", positive=False)
        self._ended(batches.wait(self._client, self.id, seconds), seconds)
        return self.counts()

    async def await_end(self, timeout: Duration | None = None) -> Counts:
        """`wait` for asyncio."""
        from pgworkers.client import batches

        seconds = read_duration(timeout, what="timeout", positive=False)
        self._ended(await batches.await_end(self._client, self.id, seconds), seconds)
        return await self.acounts()

    def cancel(self) -> int:
        """Cancel its jobs and what comes after them; returns how many. Those that run are stopped by their hosts."""
        import time

        from pgworkers.flow import batch

        if not self._client.run(batch.cancel(self.id)):
            raise self._missing()
        total, more = 0, True
        while more:
            done, more = self._client.run(batch.cancel_jobs(self.id, CANCEL_AT_ONCE))
            total += done
            if more and not done:
                time.sleep(PAUSE)
        return total

    async def acancel(self) -> int:
        """`cancel` for asyncio."""
        from pgworkers.flow import batch

        if not await self._client.arun(batch.cancel(self.id)):
            raise self._missing()
        total, more = 0, True
        while more:
            done, more = await self._client.arun(batch.cancel_jobs(self.id, CANCEL_AT_ONCE))
            total += done
            if more and not done:
                from asyncio import sleep

                await sleep(PAUSE)
        return total

    def _found(self, found: T | None) -> T:
        if found is None:
            raise self._missing()
        return found

    def _ended(self, view: BatchView | None, waited: float | None) -> None:
        if self._found(view).finished_at is None:
            raise ResultTimeout(
                f"batch #{self.id} is not finished after {show_seconds(waited or 0.0)}; it goes on"
            )

    def _missing(self) -> NotFound:
        return NotFound(
            f"there is no batch #{self.id}: its transaction is not committed yet, or it finished so long ago that it "
            "was forgotten"
        )

    def __repr__(self) -> str:
        return f"<Batch #{self.id}>"
