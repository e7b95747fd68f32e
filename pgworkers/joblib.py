"""A backend for joblib: `pgworkers.joblib.register(app)`, then `with joblib.parallel_backend("pgworkers")`.

Each delayed call becomes a job. Calls travel as JSON, never as pickles: a pickle would let every login that may enqueue run
any code. So the functions are tasks, or functions of modules that the app has named in `app.include("call", modules=[...])`,
and their arguments and results are JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any

from pgworkers.app import App
from pgworkers.executor import JobExecutor, JobFuture
from pgworkers.job import queries

try:
    from joblib import register_parallel_backend
    from joblib.parallel import ParallelBackendBase
except ImportError as error:
    raise ImportError(
        "pgworkers.joblib needs joblib, which is not installed: pip install 'pgworkers[joblib]'"
    ) from error

if TYPE_CHECKING:
    from pgworkers.options.enqueue import EnqueueOptions

#: With one worker joblib runs everything in the calling process.
MIN_PARALLEL_JOBS = 2


def register(app: App, **options: Any) -> None:
    """Make the backend known to joblib as "pgworkers". `options` are those of `task.using(...)`, for all its jobs."""
    app.executor(**options)  # refuses unknown options now
    register_parallel_backend("pgworkers", lambda **more: PgworkersBackend(app, options, **more))


class PgworkersBackend(ParallelBackendBase):  # type: ignore[misc]
    """Runs the calls of `joblib.Parallel` as jobs of one app."""

    supports_retrieve_callback = True

    def __init__(self, app: App, options: EnqueueOptions | dict[str, Any], **more: Any) -> None:
        super().__init__(**more)
        self._app = app
        self._options: Any = options
        self._lock = Lock()
        self._running: set[JobFuture[Any]] = set()
        self._executor: JobExecutor | None = None
        self._callbacks: ThreadPoolExecutor | None = None

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """How many calls joblib keeps enqueued. A negative number means as many as all hosts have workers."""
        if n_jobs is None or n_jobs < 0:
            n_jobs = len(self._app.client.run(queries.list_workers()))
        return max(MIN_PARALLEL_JOBS, n_jobs)

    def start_call(self) -> None:
        self._executor = self._app.executor(**self._options)
        # joblib enqueues the next calls inside its callback. That must not block the thread that waits for all jobs.
        self._callbacks = ThreadPoolExecutor(1, thread_name_prefix="pgworkers joblib")

    def stop_call(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        if self._callbacks is not None:
            self._callbacks.shutdown(wait=True)
        self._executor = self._callbacks = None

    def submit(self, func: Any, callback: Callable[[Any], None] | None = None) -> Future[list[Any]]:
        """Enqueue the calls of one batch. It raises nothing: joblib would wait for ever, so the future has the error."""
        batch: Future[list[Any]] = Future()
        futures: list[JobFuture[Any]] = []
        executor, callbacks = self._executor, self._callbacks
        assert executor is not None
        assert callbacks is not None
        if callback is not None:
            batch.add_done_callback(lambda done: callbacks.submit(callback, done))
        try:
            for function, args, kwargs in func.items:
                futures.append(executor.submit(function, *args, **kwargs))
        except Exception as error:
            for future in futures:
                future.cancel()
            batch.set_exception(error)
            return batch
        with self._lock:
            self._running.update(futures)
        left = len(futures)

        def count_down(future: Future[Any]) -> None:
            nonlocal left
            with self._lock:
                self._running.discard(future)
                left -= 1
                is_last = left == 0
            if is_last:
                _settle(batch, futures)

        for future in futures:
            future.add_done_callback(count_down)
        return batch

    def retrieve_result_callback(self, out: Future[list[Any]]) -> list[Any]:
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel the jobs that have not ended: one of the calls has failed."""
        with self._lock:
            running = list(self._running)
        for future in running:
            future.cancel()


def _settle(batch: Future[list[Any]], futures: list[JobFuture[Any]]) -> None:
    """Give a batch the results of its calls, or the first error."""
    try:
        batch.set_result([future.result() for future in futures])
    except BaseException as error:  # CancelledError, too
        batch.set_exception(error)
