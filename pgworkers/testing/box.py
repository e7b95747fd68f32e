"""`Box`: the jobs that a test has captured. `app.testing()` makes one.

While a box is open it takes the place of the app's database, in every thread and event loop of this process. Nothing is run
until the test calls `run` or `run_all`. The box's clock is frozen until the test, `run_all` or `fire_schedules` moves it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pgworkers.errors import JobFailed, UsageError
from pgworkers.handles import Job
from pgworkers.hooks import WorkerHook
from pgworkers.job.model import TERMINAL_STATES
from pgworkers.job.queries import JobView
from pgworkers.testing.attempt import BoxAttempt, EndedAttempt
from pgworkers.testing.clock import BoxClock
from pgworkers.testing.matching import AnyTask, JobPattern, explain_mismatch, read_pattern
from pgworkers.testing.schedules import fire_until
from pgworkers.testing.store import CapturedJob, JobStore
from pgworkers.testing.transport import BoxClient, ScheduleScopes, find_scopes, view_of
from pgworkers.worker.event_loop import WorkerEventLoop

if TYPE_CHECKING:
    from pgworkers.app import App
    from pgworkers.client.client import Client

#: How many attempts one call of `run` or `run_all` makes at most, unless the test says otherwise.
MAX_ATTEMPTS_PER_RUN = 1000


class Box:
    """The captured jobs of one test: look at them with `enqueued` and the assertions, run them with `run`."""

    def __init__(
        self,
        app: App,
        *,
        now: datetime | None = None,
        run_hooks: bool = False,
        run_on_wait: bool = False,
    ) -> None:
        self.app = app
        self.clock = BoxClock(now)  #: the time in this box; `box.clock.move("5m")`
        self.run_on_wait = run_on_wait
        self.store = JobStore(self.clock)
        self.client = BoxClient(self, app.client)
        self._run_hooks = run_hooks
        self._have_hooks_run = False
        self._scopes: dict[str, ScheduleScopes] = {}
        self._loop = WorkerEventLoop()
        self._previous: Client | None = None
        self._is_open = False
        self._forgotten: set[int] = set()
        self._attempts = 0
        self._attempts_before_wait = 0

    # Opening and closing.

    def __enter__(self) -> Self:
        if self._is_open:
            raise UsageError("this box is open already; make another one with app.testing()")
        self._previous, self.app.client.substitute = self.app.client.substitute, self.client
        self.app.rates.discard_tokens()
        self._is_open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_open = False
        self.app.client.substitute = self._previous
        self.app.rates.discard_tokens()
        if self._have_hooks_run:
            for hook in self.app.hooks.worker_stop:
                self._loop.run(_call_hook(hook), keep=True)
        self._loop.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        hooks = self.app.hooks.worker_stop if self._have_hooks_run else []
        self._have_hooks_run = False
        for hook in hooks:
            await _call_hook(hook)
        self.__exit__(kind, error, traceback)

    # Looking.

    @property
    def enqueued(self) -> list[CapturedJob]:
        """All captured jobs in the order of their enqueue, ended or not, since the box was opened or `clear`ed."""
        return [job for job_id, job in self.store.jobs.items() if job_id not in self._forgotten]

    def find(self, task: AnyTask, /, *args: Any, **kwargs: Any) -> list[CapturedJob]:
        """The captured jobs that fit. It takes what `assert_enqueued` takes."""
        pattern = self._pattern(task, args, kwargs)
        return [job for job in self.enqueued if pattern.matches(job)]

    def assert_enqueued(self, task: AnyTask, /, *args: Any, **kwargs: Any) -> CapturedJob:
        """Fail unless such a job was enqueued: `box.assert_enqueued(render, report_id=7)`. Returns the first one.

        Arguments that are not given may have any value. Options are `queue`, `priority`, `unique`, `idempotency_key`,
        `concurrency_key`, `meta`, `state`, `delay` and `at`; `render.using(queue="api")` in place of the task says the
        same. `count=2`: exactly two. `args={...}` is for parameters that have the name of an option.
        """
        count = kwargs.get("count")
        if count == 0:
            raise UsageError("count=0: write box.assert_not_enqueued(...)")
        pattern = self._pattern(task, args, kwargs)
        found = [job for job in self.enqueued if pattern.matches(job)]
        if not found or (count is not None and len(found) != count):
            raise AssertionError(explain_mismatch(pattern, self.enqueued, len(found), count))
        return found[0]

    def assert_not_enqueued(self, task: AnyTask, /, *args: Any, **kwargs: Any) -> None:
        """Fail if such a job was enqueued. It takes what `assert_enqueued` takes, except `count`."""
        pattern = self._pattern(task, args, kwargs)
        found = [job for job in self.enqueued if pattern.matches(job)]
        if found:
            raise AssertionError(explain_mismatch(pattern, found, len(found), 0))

    def assert_nothing_enqueued(self) -> None:
        """Fail if any job was enqueued."""
        if self.enqueued:
            raise AssertionError(f"expected no job, found {len(self.enqueued)}:\n{self.describe()}")

    def clear(self) -> None:
        """Forget the jobs so far in `enqueued` and the assertions. They still run, and keep their keys."""
        self._forgotten = set(self.store.jobs)

    def job(self, job: CapturedJob | int) -> Job[Any]:
        """The handle of a captured job, as `enqueue` returned it."""
        number = job.id if isinstance(job, CapturedJob) else job
        task = self.app.tasks.get(self.store.jobs[number].task) if number in self.store.jobs else None
        return Job(number, self.client, decode=None if task is None else task.decode_result)

    def describe(self) -> str:
        """All captured jobs, one a line."""
        return "\n".join(f"  {job}" for job in self.enqueued) or "  (no job)"

    # Running.

    def run(
        self, *, raise_errors: bool = True, max_attempts: int = MAX_ATTEMPTS_PER_RUN
    ) -> list[CapturedJob]:
        """Run the jobs that are due now, and those that they enqueue, until none is due. The clock does not move.

        A job that fails and has attempts left is scheduled for later. A job that is dead because its handler failed raises
        JobFailed from the handler's exception, after the others have run, unless `raise_errors=False`. Returns the job of
        each attempt.
        """
        ended = [self._check_bound(n, max_attempts, self._run_one(job)) for n, job in enumerate(self._due())]
        return _answer(ended, raise_errors)

    def run_all(
        self, *, raise_errors: bool = True, max_attempts: int = MAX_ATTEMPTS_PER_RUN
    ) -> list[CapturedJob]:
        """Run all jobs, and move the clock to the next one that waits for its time, until none is left.

        Retries happen as they would over hours. Jobs that wait for jobs which failed (`on_failed="wait"`) stay.
        """
        ended: list[EndedAttempt] = []
        while True:
            for job in self._due():
                ended.append(self._check_bound(len(ended), max_attempts, self._run_one(job)))
            if not self._move_to_next():
                return _answer(ended, raise_errors)

    async def arun(
        self, *, raise_errors: bool = True, max_attempts: int = MAX_ATTEMPTS_PER_RUN
    ) -> list[CapturedJob]:
        """`run` inside an event loop. Handlers that are not `async def` run in a thread."""
        ended: list[EndedAttempt] = []
        async for one in self._arun_due():
            ended.append(self._check_bound(len(ended), max_attempts, one))
        return _answer(ended, raise_errors)

    async def arun_all(
        self, *, raise_errors: bool = True, max_attempts: int = MAX_ATTEMPTS_PER_RUN
    ) -> list[CapturedJob]:
        """`run_all` inside an event loop."""
        ended: list[EndedAttempt] = []
        while True:
            async for one in self._arun_due():
                ended.append(self._check_bound(len(ended), max_attempts, one))
            if not self._move_to_next():
                return _answer(ended, raise_errors)

    def fire_schedules(self, until: datetime | str, *, run: bool = False) -> list[CapturedJob]:
        """Move the clock to `until`, a time or a duration, and enqueue a job at each tick of the app's schedules.

        `run=True` runs what is due after each tick. Returns the jobs that the schedules made.
        """
        return fire_until(self, until, self._run_due_quietly if run else None)

    # For the rest of `pgworkers.testing`.

    def scopes_of(self, schedule: str) -> ScheduleScopes:
        """The scopes of a schedule. NotFound if the app has no such scoped schedule."""
        for name, make in self.app.schedules.items():
            spec = make()
            if name not in self._scopes and spec.scope_kind:
                self._scopes[name] = ScheduleScopes(spec.scopes)
        return find_scopes(self._scopes, schedule)

    def should_run_for(self, job_id: int) -> bool:
        """True if a wait for this job has to run it."""
        job = self.store.jobs.get(job_id)
        return self.run_on_wait and job is not None and job.is_live

    def ended_view(self, job_id: int) -> JobView | None:
        """The view of a job that was waited for. UsageError if it has not ended: nothing else will run it."""
        view = view_of(self, job_id)
        if view is not None and view.state not in TERMINAL_STATES:
            raise UsageError(
                f"job #{job_id} is {view.state}, and nothing in a box runs it: call box.run() or box.run_all() before "
                "you wait for its result, or open the box with app.testing(run_on_wait=True)"
            )
        return view

    def has_progressed(self) -> bool:
        """True if a job has run since the last call."""
        before, self._attempts_before_wait = self._attempts_before_wait, self._attempts
        return self._attempts > before

    def _pattern(self, task: AnyTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobPattern:
        return read_pattern(self.app.tasks, task, args, kwargs)

    def _due(self) -> Iterator[CapturedJob]:
        self._require_open()
        while (job := self.store.claim()) is not None:
            yield job

    def _run_one(self, job: CapturedJob) -> EndedAttempt:
        if _is_in_event_loop():
            self.store.release(job)
            raise UsageError("box.run() would block the event loop; use `await box.arun()`; nothing was run")
        if self._run_hooks and not self._have_hooks_run:
            self._have_hooks_run = True
            for hook in self.app.hooks.worker_start:
                self._loop.run(_call_hook(hook, job.queue), keep=True)
        self._attempts += 1
        return BoxAttempt(self.app, self.store, job).run(self._loop.run)

    async def _arun_due(self) -> AsyncIterator[EndedAttempt]:
        for job in self._due():
            if self._run_hooks and not self._have_hooks_run:
                self._have_hooks_run = True
                for hook in self.app.hooks.worker_start:
                    await _call_hook(hook, job.queue)
            self._attempts += 1
            yield await BoxAttempt(self.app, self.store, job).arun()

    def _run_due_quietly(self) -> None:
        self.run(raise_errors=False)

    def _check_bound(self, done: int, most: int, ended: EndedAttempt) -> EndedAttempt:
        if done + 1 >= most and self.store.next_due() is not None:
            raise UsageError(
                f"{most} attempts were run and there is more to do: do the jobs enqueue or snooze for ever? "
                f"max_attempts= raises the bound. Last: {ended.job}"
            )
        return ended

    def _move_to_next(self) -> bool:
        """Move the clock to the next job that waits for its time. False: none does."""
        due = self.store.next_due()
        if due is None:
            return False
        if due > self.clock.now:
            self.clock.move_to(due)
        return True

    def _require_open(self) -> None:
        if not self._is_open:
            raise UsageError(
                "this box is closed: run its jobs inside `with app.testing() as box:`; nothing was run"
            )

    def __repr__(self) -> str:
        return f"<Box of {self.app.name}: {len(self.enqueued)} jobs>"


def _answer(ended: list[EndedAttempt], raise_errors: bool) -> list[CapturedJob]:
    failed = [one for one in ended if one.has_failed_for_good]
    if raise_errors and failed:
        job = failed[0].job
        raise JobFailed(job.id, str(job.state), job.error) from failed[0].exception
    return [one.job for one in ended]


async def _call_hook(hook: WorkerHook, queue: str = "") -> None:
    """Call a start or stop hook of workers. One box is the worker of all queues, with slot 0."""
    found = hook.call(hook.queue or queue, 0)
    if hasattr(found, "__await__"):
        await found


def _is_in_event_loop() -> bool:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
