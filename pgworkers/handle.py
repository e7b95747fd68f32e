"""`Job[R]`: the handle of one enqueued job.

In blocking code `state`, `progress` and `error` look into the database each time, until the job has ended.
Inside a running event loop a property must not block it: there they tell what the last `await job.arefresh()`
saw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from pgworkers.clock import show_seconds
from pgworkers.declare.options import Duration, read_duration
from pgworkers.errors import JobFailed, NotFound, ResultError, ResultTimeout, UsageError

if TYPE_CHECKING:
    from pgworkers.client.session import Client
    from pgworkers.job.show import JobView

R = TypeVar("R")


class Job(Generic[R]):
    """The handle of one job. `enqueue` returns it; `app.job(1042)` makes one from a number.

    In blocking code `state`, `progress` and `error` ask the database each time, until the job has ended. Inside an event
    loop they would block it: there they tell what the last `await job.arefresh()` saw.
    """

    __slots__ = ("_client", "_decode", "_view", "created", "id")

    def __init__(
        self, job_id: int, client: Client, *, decode: Callable[[bytes], R] | None = None, created: bool = True
    ) -> None:
        self.id = job_id  #: its number
        self.created = created  #: False: a unique or idempotency key led to a job that was already there
        self._client = client
        self._decode = decode
        self._view: JobView | None = None

    def result(self, timeout: Duration | None = None) -> R:
        """Wait until the job has ended and return its result.

        JobFailed if it is dead or was cancelled, ResultTimeout if it lives longer than `timeout`. In an event loop it
        refuses (UsageError) instead of blocking the loop: use `aresult`.
        """
        if _in_loop():
            raise UsageError("job.result() would block the event loop; use `await job.aresult()`")
        seconds = read_duration(timeout, what="timeout", positive=False)
        return self._ended(self._client.watch().wait(self.id, seconds), seconds)

    async def aresult(self, timeout: Duration | None = None) -> R:
        """`result` for asyncio."""
        seconds = read_duration(timeout, what="timeout", positive=False)
        return self._ended(await self._client.async_watch().wait(self.id, seconds), seconds)

    def refresh(self) -> JobView:
        """Look into the database now; all that is known of the job."""
        from pgworkers.job import show

        return self._seen(self._client.run(show.get(self.id)))

    async def arefresh(self) -> JobView:
        """`refresh` for asyncio."""
        from pgworkers.job import show

        return self._seen(await self._client.arun(show.get(self.id)))

    @property
    def state(self) -> str:
        """scheduled, ready, running, succeeded, dead or cancelled."""
        return str(self._current().state)

    @property
    def progress(self) -> dict[str, Any] | None:
        """What the handler said last: a dict with `done`, `total`, `note` as far as they were given; None: nothing yet."""
        found: dict[str, Any] | None = self._current().progress
        return found

    @property
    def error(self) -> str | None:
        """The error of the last attempt that failed, in one line; None if there is none or it succeeded in the end."""
        return self._current().error

    def cancel(self, reason: str | None = None) -> str:
        """Ask for its end. Returns `cancelled`, `cancelling` (it runs and is being stopped), or how it had already ended.

        `reason` is kept, with the database login and the OS user; `jobs show` tells it.
        """
        from pgworkers.job import cancel, operation

        return self._wished(self._client.run(cancel.cancel(self.id, operation.note(reason))))

    async def acancel(self, reason: str | None = None) -> str:
        """`cancel` for asyncio."""
        from pgworkers.job import cancel, operation

        return self._wished(await self._client.arun(cancel.cancel(self.id, operation.note(reason))))

    def extend(self, within: Duration) -> str:
        """Move its deadline, over all attempts, to this long from now: `job.extend("10m")`.

        While it runs, the new deadline counts instead of the attempt's timeout. Returns its state; a terminal one: it had
        already ended.
        """
        from pgworkers.job import deadline, operation

        move = deadline.set_deadline(self.id, _within(within), operation.note())
        return self._wished(self._client.run(move))

    async def aextend(self, within: Duration) -> str:
        """`extend` for asyncio."""
        from pgworkers.job import deadline, operation

        move = deadline.set_deadline(self.id, _within(within), operation.note())
        return self._wished(await self._client.arun(move))

    def __repr__(self) -> str:
        known = f" {self._view.task} {self._view.state}" if self._view is not None else ""
        return f"<Job #{self.id}{known}>"

    def _current(self) -> JobView:
        from pgworkers.job.state import TERMINAL

        if self._view is not None and self._view.state in TERMINAL:
            return self._view
        if not _in_loop():
            return self.refresh()
        if self._view is None:
            raise UsageError("inside an event loop, `await job.arefresh()` before looking at the job")
        return self._view

    def _seen(self, view: JobView | None) -> JobView:
        if view is None:
            raise self._missing()
        self._view = view
        return view

    def _missing(self) -> NotFound:
        return NotFound(
            f"there is no job #{self.id}: its transaction is not committed yet, or it ended so long ago that it was "
            "dropped from history"
        )

    def _wished(self, answer: str | None) -> str:
        if answer is None:
            raise self._missing()
        return answer

    def _ended(self, view: JobView | None, waited: float | None) -> R:
        from pgworkers.job.reading import Unreadable
        from pgworkers.job.state import HELD, TERMINAL, State

        view = self._seen(view)
        if view.state not in TERMINAL:
            goes_on = "it goes on" if view.state in HELD else "it has not begun, and goes on waiting"
            raise ResultTimeout(
                f"job #{self.id} is still {view.state} after {show_seconds(waited or 0.0)}; {goes_on}"
            )
        if view.state != State.SUCCEEDED:
            raise JobFailed(self.id, str(view.state), view.error)
        if isinstance(view.result, Unreadable):
            raise ResultError(f"job #{self.id}: its result cannot be read: {view.result}")
        if self._decode is None:
            return view.result  # type: ignore[no-any-return]
        return self._decode(msgspec.json.encode(view.result))


def _within(given: Duration) -> float:
    seconds = read_duration(given, what="within", positive=False)
    if seconds is None:
        raise UsageError("job.extend() needs a duration, e.g. '10m'")
    return seconds


def _in_loop() -> bool:
    try:
        from asyncio import get_running_loop

        get_running_loop()
    except RuntimeError:
        return False
    return True
