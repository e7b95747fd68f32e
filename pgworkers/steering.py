"""The part of `App` that steers the flow of jobs: rates, batches, routes, built-in tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pgworkers.batch import Batch
from pgworkers.bounds import NAME_BYTES
from pgworkers.client.rates import Rates
from pgworkers.client.session import Client
from pgworkers.declare.options import ON_FAILED, Duration, OnFailed, read_listed_name
from pgworkers.declare.routing import Route, read_route
from pgworkers.errors import UsageError
from pgworkers.flow.rate import Rate
from pgworkers.handle import Job
from pgworkers.job.new import Prepared, new_job
from pgworkers.task import Task

if TYPE_CHECKING:
    import psycopg

R = TypeVar("R")


class Steering:
    """Mixed into `App`, which owns the client, the tasks and the declaring of them."""

    client: Client
    tasks: dict[str, Task[..., Any]]

    def __init__(self) -> None:
        self.rates = Rates(self.client)
        self.routes: list[Route] = []

    def rate(
        self, scope: str, rate: float | None = None, per: Duration = "1s", burst: float | None = None
    ) -> Rate:
        """A rate that all hosts share: `app.rate("github", rate=50, per="1s").acquire()`.

        Said once with its numbers, later by its name alone. In a handler use `ctx.rate`, which notices a stop.
        """
        return self.rates.get(scope, rate, per, burst)

    def batch(
        self,
        jobs: Iterable[Prepared[Any]],
        then: Prepared[Any] | None = None,
        *,
        on_failed: OnFailed = "run",
        conn: psycopg.Connection[Any] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Batch:
        """Insert any number of jobs by COPY, and one that begins when the last of them has ended.

        `on_failed`: what failed or cancelled jobs mean for `then`: "run" it all the same (it finds the batch's number in
        `ctx.meta["batch"]`), "cancel" it, or "wait" until all have succeeded after a retry by an operator.
        """
        made = self.client.batch(map(new_job, jobs), _new(then), _policy(on_failed), conn, progress)
        return Batch(made.id, self.client, self._handle(made.then_id))

    async def abatch(
        self,
        jobs: Iterable[Prepared[Any]],
        then: Prepared[Any] | None = None,
        *,
        on_failed: OnFailed = "run",
        conn: psycopg.AsyncConnection[Any] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Batch:
        """`batch` for asyncio."""
        made = await self.client.abatch(map(new_job, jobs), _new(then), _policy(on_failed), conn, progress)
        return Batch(made.id, self.client, self._handle(made.then_id))

    def get_batch(self, batch_id: int) -> Batch:
        """The handle of a batch by its number; in what comes after it: `app.get_batch(ctx.meta["batch"])`."""
        return Batch(batch_id, self.client)

    def route(self, pattern: str, queue: str) -> None:
        """Tasks that name no queue go to `queue` when their name fits: `app.route("img.*", "images")`. The first wins."""
        self.routes.append(
            read_route(pattern, read_listed_name(queue, what=f"route {pattern}: queue", limit=NAME_BYTES))
        )

    def include(self, *names: str, env: Sequence[str] = (), queue: str | None = None) -> None:
        """Declare built-in tasks: `app.include("exec", "echo")`.

        `env`: variables that commands of `exec` inherit besides the harmless ones. They run whatever the job says: include
        `exec` only where everybody who may enqueue may also run programs.
        """
        from pgworkers.builtin import built_in

        for name in names:
            options = {"name": name} if queue is None else {"name": name, "queue": queue}
            self._include(built_in(name, tuple(env)), options)

    def _include(self, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        raise NotImplementedError

    def _routed(self, task: str) -> str | None:
        """The queue that the routes give a task, or None."""
        return next((route.queue for route in self.routes if route.fits(task)), None)

    def _handle(self, job_id: int | None) -> Job[Any] | None:
        return None if job_id is None else Job(job_id, self.client)


def _new(then: Prepared[Any] | None) -> Any:
    return None if then is None else then.new


def _policy(on_failed: OnFailed) -> OnFailed:
    if on_failed not in ON_FAILED:
        raise UsageError(f"on_failed={on_failed!r}: use {', '.join(ON_FAILED)}; nothing was enqueued")
    return on_failed
