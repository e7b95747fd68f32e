"""One run of a captured job in the process of the test.

The handler gets the decoded arguments and a real `Ctx`. How it ended becomes a verdict, a sentence and the next state of the
job in the code that hosts use: `worker/outcome`, `master/verdict` and `job/retry_policy`. A stop is only a request here: the
handler sees it in `ctx.cancelled`, `ctx.track` and `ctx.check_cancelled`, and nothing interrupts it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from pgworkers.client.handler_connections import HandlerConnections
from pgworkers.context import Ctx
from pgworkers.errors import AppNotLoaded, JobStopped, UsageError
from pgworkers.hooks import run_handler
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.job.finish import JobFinish, JobRetry
from pgworkers.job.model import JobState, Verdict
from pgworkers.master.held_job import HeldJob
from pgworkers.master.verdict import decide_end, from_report
from pgworkers.specs import TaskSpec
from pgworkers.testing.store import CapturedJob, JobStore
from pgworkers.units import format_duration
from pgworkers.worker.messages import Outcome, Report
from pgworkers.worker.outcome import is_stop, report_exception

if TYPE_CHECKING:
    import psycopg

    from pgworkers.app import App
    from pgworkers.task import Task

_log = logging.getLogger("pgworkers.testing")

#: The worker that attempts of a box name.
WORKER_NAME = "box"
#: Spreads delays in the middle of their jitter, so that a test knows them.
MIDDLE_OF_JITTER = 0.5
#: What ends a handler and is an outcome of its job. Other exceptions that are no `Exception` end the test.
_OUTCOMES = (Exception, JobStopped, SystemExit)
#: Verdicts of a dead job whose handler failed.
FAILED_VERDICTS = frozenset({Verdict.ERROR, Verdict.TIMEOUT, Verdict.EXIT, Verdict.BAD_RESULT})


class BoxControl:
    """The time limit and the stop requests of a job in a box, by the box's clock."""

    def __init__(self, store: JobStore, job: CapturedJob, timeout: float | None) -> None:
        self._store = store
        self._job = job
        self._timeout_at: datetime | None = None
        if timeout is not None:
            self._timeout_at = store.clock.now + timedelta(seconds=timeout)
        self.has_seen_stop = False

    def is_stop_requested(self) -> bool:
        if self.pending_reason() is not None:
            self.has_seen_stop = True
        return self.has_seen_stop

    def pending_reason(self) -> StopReason | None:
        """Why the handler should stop. None: it may go on."""
        if self._job.cancel_at is not None:
            return StopReason.CANCEL
        left = self.seconds_left()
        return StopReason.DEADLINE if left is not None and left <= 0 else None

    def stop_reason(self) -> str:
        return (self.pending_reason() or StopReason.CANCEL).word

    def seconds_left(self) -> float | None:
        limits = [at for at in (self._timeout_at, self._job.deadline_at) if at is not None]
        return (min(limits) - self._store.clock.now).total_seconds() if limits else None

    def extend(self, seconds: float) -> None:
        if self._timeout_at is not None:
            self._timeout_at += timedelta(seconds=seconds)


class BoxConnections:
    """Opens `ctx.connect()` in a box: only on a database that the test has named."""

    def __init__(self, app: App, job: CapturedJob) -> None:
        self._app = app
        self._job = job
        self._opened: HandlerConnections | None = None

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return self._connections().connect(**options)

    async def aconnect(self, **options: Any) -> psycopg.AsyncConnection[Any]:
        return await self._connections().aconnect(**options)

    def _connections(self) -> HandlerConnections:
        if not self._app.client.database.is_named:
            raise UsageError(
                "ctx.connect() in a box: no database is named for this test; nothing was opened. Use the fixture "
                "pgworkers_database, or app.use_database(dsn)"
            )
        if self._opened is None:
            self._opened = HandlerConnections(self._app.client, self._job.id, self._job.lease)
        return self._opened

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """How an attempt ended. `exception` is what its handler raised."""

    job: CapturedJob
    verdict: Verdict
    exception: BaseException | None

    @property
    def has_failed_for_good(self) -> bool:
        """True if the job is dead because its handler failed."""
        return self.job.state is JobState.DEAD and self.verdict in FAILED_VERDICTS


class BoxAttempt:
    """The run of one claimed job: `run` or `arun`, then the job has its next state."""

    def __init__(self, app: App, store: JobStore, job: CapturedJob) -> None:
        self._app = app
        self._store = store
        self._job = job
        self._task: Task[..., Any] | None = app.tasks.get(job.task)
        timeout = job.timeout
        if timeout is None and self._task is not None:
            timeout = self._task.declared_spec.timeout
        self._control = BoxControl(store, job, timeout)
        self._connections = BoxConnections(app, job)
        self._ctx = Ctx(
            job=job.id,
            task=job.task,
            queue=job.queue,
            attempt=job.attempt,
            crashes=job.crashes,
            lease=job.lease,
            meta=job.meta,
            errors=job.errors,
            checkpoint=job.checkpoint,
            control=self._control,
            rate=app.rate,
            connections=self._connections,
        )

    def run(self, await_value: Any) -> EndedAttempt:
        """Run the handler in this thread. `await_value` runs the coroutine of an `async def` handler."""
        result: bytes | None = None
        error: BaseException | None = None
        try:
            if not self._is_past_deadline():
                value = run_handler(self._app.hooks, self._ctx, self._call, await_value)
                result = self._encode(await_value(value) if inspect.isawaitable(value) else value)
        except _OUTCOMES as raised:
            error = raised
        except BaseException as raised:
            if not self._is_own_stop(raised):
                self._store.release(self._job)
                raise
            error = raised
        finally:
            self._connections.close()
        return self._end(result, error)

    async def arun(self) -> EndedAttempt:
        """Run an `async def` handler in this event loop, and any other in a thread: it may block."""
        result: bytes | None = None
        error: BaseException | None = None
        try:
            if not self._is_past_deadline():
                value = await self._acall()
                result = self._encode(await value if inspect.isawaitable(value) else value)
        except _OUTCOMES as raised:
            error = raised
        except BaseException as raised:
            if not self._is_own_stop(raised):
                self._store.release(self._job)
                raise
            error = raised
        finally:
            self._connections.close()
        return self._end(result, error)

    def _is_past_deadline(self) -> bool:
        left = self._control.seconds_left()
        return left is not None and left <= 0

    def _is_own_stop(self, error: BaseException) -> bool:
        return is_stop(error) and self._control.pending_reason() is not None

    def _call(self) -> Any:
        if self._task is None:
            raise AppNotLoaded(f"the app has no task {self._job.task!r}; it was not run")
        return self._task.run_handler(self._ctx, self._job.args_json.encode())

    async def _acall(self) -> Any:
        """Call the handler with its hooks. With hooks it runs in a thread, and what they await in this loop."""
        hooks = self._app.hooks
        if hooks.has_handler_hooks:
            loop = asyncio.get_running_loop()

            def wait_for(awaitable: Awaitable[Any]) -> Any:
                return asyncio.run_coroutine_threadsafe(_awaited(awaitable), loop).result()

            return await _call_in_thread(partial(run_handler, hooks, self._ctx, self._call, wait_for))
        is_async = self._task is not None and self._task.is_async
        return self._call() if is_async else await _call_in_thread(self._call)

    def _encode(self, value: Any) -> bytes:
        assert self._task is not None
        return self._task.encode_result(value, self._app.client.settings.result_limit)

    def _end(self, result: bytes | None, error: BaseException | None) -> EndedAttempt:
        """Decide what becomes of the job, as the master does, and write it."""
        report = self._report(result, error)
        ending = from_report(report, self._held())
        self._store.save_progress(self._job, self._ctx.take_progress(), self._ctx.take_checkpoint())
        decision = decide_end(
            self._held(), ending, MIDDLE_OF_JITTER, WORKER_NAME, self._app.version or "test"
        )
        if ending.verdict is Verdict.THROTTLED:
            seconds = ending.retry_after_seconds
            self._store.throttle(
                self._job.queue, self._app.client.settings.throttle_duration if seconds is None else seconds
            )
        self._log_failure(decision, error)
        if isinstance(decision, JobRetry):
            self._store.retry(self._job, decision)
        else:
            self._store.finish(self._job, decision)
        return EndedAttempt(self._job, ending.verdict, error)

    def _report(self, result: bytes | None, error: BaseException | None) -> Report:
        """What a worker would report. Counterpart: `Attempt.report`."""
        report = Report(outcome=Outcome.DONE, duration=0.0, cpu=0.0, peak_rss=0)
        stop = self._control.pending_reason()
        if error is not None:
            self._describe_exception(report, error, is_stop_requested=stop is not None)
        elif result is None:
            report.outcome, report.has_started = Outcome.STOPPED, False
        elif result == b"null" and self._control.has_seen_stop:
            report.outcome = Outcome.STOPPED
        else:
            report.result = Raw(result)
            if (children := self._ctx.take_children()) is not None:
                report.enqueued_jobs = Raw(children)
        if report.is_stopped:
            report.reason = self._control.pending_reason() or StopReason.CANCEL
        return report

    def _describe_exception(self, report: Report, error: BaseException, *, is_stop_requested: bool) -> None:
        described = report_exception(
            error,
            is_stop_requested=is_stop_requested,
            has_seen_stop=self._control.has_seen_stop,
            limit=self._app.client.settings.error_limit,
        )
        report.outcome, report.error, report.traceback = (
            described.outcome,
            described.error,
            described.traceback,
        )
        report.retry_after = described.retry_after
        may_ask_task = described.outcome in (Outcome.ERROR, Outcome.RETRY) and self._task is not None
        if may_ask_task and described.retry_after is None:
            assert self._task is not None
            report.retry_after = self._task.backoff_delay(self._job.attempt, error)

    def _held(self) -> HeldJob:
        spec = None if self._task is None else self._task.declared_spec
        return HeldJob(
            job=self._store.claimed_job(self._job),
            task=spec or TaskSpec(name=self._job.task, queue=self._job.queue),
        )

    def _log_failure(self, decision: JobFinish | JobRetry, error: BaseException | None) -> None:
        """pytest shows these lines below a test that fails."""
        if decision.verdict is Verdict.SUCCEEDED:
            return
        then = (
            f"it runs again in {format_duration(decision.delay_seconds)}"
            if isinstance(decision, JobRetry)
            else f"it is {decision.state}"
        )
        is_failure = decision.verdict in FAILED_VERDICTS
        _log.log(
            logging.WARNING if is_failure else logging.INFO,
            "#%d %s attempt %d: %s; %s",
            self._job.id,
            self._job.call_text(),
            self._job.attempt,
            decision.error or decision.verdict,
            then,
            exc_info=error if is_failure else None,
        )


async def _call_in_thread(call: Any) -> Any:
    """Run blocking code outside the event loop. Django's connections belong to the thread that asgiref chooses."""
    if "asgiref.sync" in sys.modules:
        return await sys.modules["asgiref.sync"].sync_to_async(call, thread_sensitive=True)()
    return await asyncio.to_thread(call)


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
