"""`app.executor()`: tasks and importable functions behind `concurrent.futures.Executor`.

`submit` inserts one job and returns a future of it. One background thread waits for all jobs of the process on one listening
connection (`client/background`, `client/waiting`) and resolves the futures. A lost database delays the futures; it does
not fail them.

The futures stay pending until their job has ended, because a pending future is one that can be cancelled: unlike a pool of
threads, a job can also be cancelled while it runs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, InvalidStateError
from concurrent.futures import wait as wait_for_futures
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from pgworkers.builtin_tasks import CALL_TASK
from pgworkers.errors import DatabaseUnreachable, UsageError
from pgworkers.handles import Job
from pgworkers.task import BoundTask, Task

if TYPE_CHECKING:
    from pgworkers.client.background import BackgroundLoop
    from pgworkers.client.client import Client
    from pgworkers.options.enqueue import EnqueueOptions

P = ParamSpec("P")
R = TypeVar("R")


class JobFuture(Future[R], Generic[R]):
    """The future of one job; `future.job` is its handle.

    `result()` and `exception()` raise or return JobFailed if the job is dead or was cancelled by another program. It has
    the job's `verdict` and the sentence that `pgworkers jobs show` prints.
    """

    def __init__(self, job: Job[R]) -> None:
        super().__init__()
        self.job = job

    def cancel(self) -> bool:
        """Cancel the job, also if it runs: its host then stops it. False if the job has already ended.

        The future is cancelled at once. A running job may take its graces to stop, and one that has just succeeded keeps
        its success in the database.
        """
        if self.done():
            return self.cancelled()
        if self.job.cancel("the future was cancelled") not in ("cancelled", "cancelling"):
            return False
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()  # notifies wait() and as_completed()
        return True

    def running(self) -> bool:
        """True if a host has the job. It queries the database."""
        return not self.done() and self.job.refresh().state in ("claimed", "running")


class JobExecutor(Executor):
    """The executor that `app.executor()` returns. Leaving its `with` waits for the jobs."""

    def __init__(self, client: Client, tasks: Mapping[str, Task[..., Any]], options: EnqueueOptions) -> None:
        self._client = client
        self._tasks = tasks
        self._options = options
        self._lock = Lock()  # guards what follows
        self._futures: set[JobFuture[Any]] = set()
        self._is_shut_down = False
        self._loop: BackgroundLoop | None = None

    @overload
    def submit(
        self, fn: Task[P, R] | BoundTask[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobFuture[R]: ...
    @overload
    def submit(self, fn: str, /, *args: Any, **kwargs: Any) -> JobFuture[Any]: ...
    @overload
    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobFuture[R]: ...
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> JobFuture[Any]:
        """Enqueue one call and return its future.

        `fn` is a task of the app, a task with options (`task.using(...)`), or a function, or its name `"module:name"`, of a
        module that the app has named in `app.include("call", modules=[...])`. Arguments and results are JSON.
        """
        self._refuse_after_shutdown()
        job = self._enqueue(fn, args, kwargs)
        future = JobFuture(job)
        with self._lock:
            if self._loop is None:
                self._loop = self._client.background_loop()
                self._loop.acquire()
            self._futures.add(future)
            self._loop.submit(_resolve(future, self._forget))
        return future

    def _refuse_after_shutdown(self) -> None:
        if self._is_shut_down:
            raise RuntimeError("cannot submit after shutdown; nothing was enqueued")

    def _enqueue(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Job[Any]:
        if isinstance(fn, BoundTask):
            return fn.enqueue(*args, **kwargs)
        if isinstance(fn, Task):
            return self._with_options(fn).enqueue(*args, **kwargs)
        task = self._tasks.get(CALL_TASK)
        if task is None:
            raise UsageError(
                "the app runs only its own tasks; nothing was enqueued. "
                'To run importable functions, declare app.include("call", modules=["mypackage.jobs"])'
            )
        name = fn if isinstance(fn, str) else function_name(fn)
        return self._with_options(task).enqueue(function=name, args=list(args), kwargs=kwargs)

    def _with_options(self, task: Task[..., R]) -> Task[..., R] | BoundTask[..., R]:
        return task.using(**self._options) if self._options else task

    def _forget(self, future: JobFuture[Any]) -> None:
        """Drop a future that is resolved. The last one after a shutdown ends the use of the background thread."""
        with self._lock:
            self._futures.discard(future)
            loop = self._take_loop() if self._is_shut_down and not self._futures else None
        if loop is not None:
            loop.release()

    def _take_loop(self) -> BackgroundLoop | None:
        loop, self._loop = self._loop, None
        return loop

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse further calls. `wait`: until all jobs have ended. `cancel_futures`: cancel the jobs, also running ones.

        Without `wait` the jobs continue, and the futures are still resolved while the process lives.
        """
        with self._lock:
            self._is_shut_down = True
            left = list(self._futures)
        if cancel_futures:
            for future in left:
                future.cancel()
        if wait:
            wait_for_futures(left)
        with self._lock:
            is_finished = all(future.done() for future in self._futures)
            loop = self._take_loop() if is_finished else None
        if loop is not None:
            loop.release()


def function_name(fn: Callable[..., Any]) -> str:
    """`module:name` of an importable function. UsageError if it cannot be imported by that name."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if module == "__main__" or not module or not name or "." in name or "<" in name:
        raise UsageError(
            f"{fn!r} cannot be imported by a worker; nothing was enqueued. Use a function at the top level of a module"
        )
    if getattr(sys.modules.get(module), name, None) is not fn:
        raise UsageError(
            f"{module}:{name} is not {fn!r}; nothing was enqueued. A decorator has replaced the function"
        )
    return f"{module}:{name}"


async def _resolve(future: JobFuture[R], forget: Callable[[JobFuture[R]], None]) -> None:
    """Wait for a job and resolve its future. While the database is away it waits, too."""
    poll = future.job._client.settings.poll_interval
    try:
        while not future.done():
            try:
                result = await future.job.aresult()
            except DatabaseUnreachable:
                await asyncio.sleep(poll)
            except Exception as error:
                with suppress(InvalidStateError):  # cancelled in this moment
                    future.set_exception(error)
            else:
                with suppress(InvalidStateError):
                    future.set_result(result)
    finally:
        forget(future)
