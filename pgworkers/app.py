"""`App`: where queues and tasks are declared, and where jobs are enqueued from.

Importing a module that makes an App opens nothing: no connection, no thread, no psycopg. The first enqueue
does. The `describe` child turns an App into data for the master; a supervisor imports it once and its workers
inherit it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from pgworkers import settings as declared
from pgworkers.client.address import Address
from pgworkers.client.session import Client
from pgworkers.context import Ctx
from pgworkers.declare.loading import origin_of, release_of
from pgworkers.declare.options import Duration, refuse_unknown
from pgworkers.declare.signature import takes_ctx
from pgworkers.decorator import Anything, Declare, TaskOptions, queue_spec, task_spec
from pgworkers.errors import UsageError
from pgworkers.job.new import Prepared, new_job
from pgworkers.scheduling import Scheduling
from pgworkers.specs import AppSpec, QueueSpec, ScheduleSpec
from pgworkers.steering import Steering
from pgworkers.task import CtxTask, PlainTask, Task

if TYPE_CHECKING:
    import psycopg

    from pgworkers.handle import Job

P = ParamSpec("P")
R = TypeVar("R")
Hook = TypeVar("Hook", bound=Callable[[], Any])


class App(Scheduling, Steering):
    """Queues, tasks, hooks and settings of one application.

    `**settings` are those of docs/settings.md: `App(drain="1m")`. `version` is shown for people; by default it is the
    commit of the app's repository, else `files-` and a hash. Making an App opens nothing: the first enqueue connects.
    """

    def __init__(
        self,
        *,
        dsn: str | None = None,
        schema: str | None = None,
        version: str | None = None,
        name: str | None = None,
        **settings: Any,
    ) -> None:
        given = {"dsn": dsn, "schema": schema, **settings}
        self.settings = {key: declared.parse(key, value) for key, value in given.items() if value is not None}
        self.origin = origin_of(sys._getframe(1))
        self.name = name or self.origin.name
        self.version = version
        self.tasks: dict[str, Task[..., Any]] = {}
        self.queues: dict[str, QueueSpec] = {}
        self.schedules: dict[str, Callable[[], ScheduleSpec]] = {}
        self.start_hooks: list[Callable[[], Any]] = []
        self.stop_hooks: list[Callable[[], Any]] = []
        self.client = Client(Address(self.settings, self.origin.parent))
        super().__init__()

    def queue(
        self,
        name: str,
        workers: int = 1,
        *,
        cluster_workers: int | None = None,
        memory: int | str | None = None,
        nice: int = 0,
        threads: int | None = 1,
        cores: Sequence[int] = (),
        pin: bool = False,
        address_space: int | str | None = None,
        max_jobs: int | None = None,
        max_rss: int | str | None = None,
        preload: Sequence[str] = (),
        batch: bool = True,
        reload_overlap: bool = False,
        retention: Duration | None = None,
    ) -> None:
        """Declare a queue: how many worker processes it has on each host, and what each may use.

        - `workers`: on each host; `cluster_workers`: over all hosts together
        - `memory`: the limit of one job; `max_rss`: a worker that has grown beyond it is replaced after its job
        - `address_space`: the kernel's own limit (RLIMIT_AS); beyond it a handler gets a MemoryError
        - `max_jobs`: a worker is replaced after so many; 1: a fresh process for every job
        - `preload`: modules imported before the fork, so that workers share their memory
        - `threads`: how many numpy and its kin may start; `nice`: of the processes
        - `cores=[0, 1]`: the only cores its workers run on; `pin=True`: each worker has one of them
        - `batch=False`: each end is committed before the worker begins its next job; by default short jobs wait a few
          milliseconds in front of a worker and their ends are committed together
        - `reload_overlap=True`: after SIGHUP, workers of the new code begin at once beside jobs that run on the old code; by
          default both together run no more jobs than the queue has workers
        - `retention="30d"`: how long its finished jobs are kept, shorter or longer than the setting `retention`
        """
        spec = queue_spec(
            name, workers=workers, cluster_workers=cluster_workers, memory=memory, nice=nice, threads=threads,
            cores=cores, pin=pin, address_space=address_space, max_jobs=max_jobs, max_rss=max_rss, preload=preload,
            batch=batch, reload_overlap=reload_overlap, retention=retention,
        )  # fmt: skip
        if spec.name in self.queues:
            raise UsageError(f"queue {spec.name!r} is declared twice; keep one of the two declarations")
        self.queues[spec.name] = spec

    @overload
    def task(
        self, fn: Callable[Concatenate[Anything, P], Coroutine[Any, Any, R]], /
    ) -> PlainTask[..., R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, fn: Callable[Concatenate[Anything, P], R], /) -> PlainTask[..., R, R]: ...
    @overload
    def task(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[Concatenate[Ctx, P], Coroutine[Any, Any, R]], /
    ) -> CtxTask[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, fn: Callable[Concatenate[Ctx, P], R], /) -> CtxTask[P, R, R]: ...
    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> PlainTask[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> PlainTask[P, R, R]: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> Declare: ...
    def task(self, fn: Any = None, /, **options: Any) -> Any:
        """Declare a task: `@app.task` or `@app.task(queue="reports", timeout="10m", retries=5)`.

        Without `retries=` a job has ten attempts. A task without `queue=` goes to the queue "default", or to the only one.
        """
        refuse_unknown(options, TaskOptions, what="task()")
        if fn is not None:
            return self._declare(fn, options, sys._getframe(1))

        def declare(fn: Callable[..., Any], /) -> Task[..., Any]:
            return self._declare(fn, options, sys._getframe(1))

        return declare

    def on_worker_start(self, hook: Hook) -> Hook:
        """Decorator: a function that each worker runs after its fork, before its first job: load a model, open a client."""
        self.start_hooks.append(hook)
        return hook

    def on_worker_stop(self, hook: Hook) -> Hook:
        """Decorator: a function that each worker runs before it leaves; not when it is killed."""
        self.stop_hooks.append(hook)
        return hook

    def enqueue_many(
        self,
        jobs: Iterable[Prepared[Any]],
        *,
        conn: psycopg.Connection[Any] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Insert any number of prepared jobs by COPY, in constant memory, all or none; returns how many (no handles).

        `progress` is called with the number so far, `conn` is a psycopg connection of your own.
        """
        return self.client.copy_in(map(new_job, jobs), conn, progress)

    async def aenqueue_many(
        self,
        jobs: Iterable[Prepared[Any]],
        *,
        conn: psycopg.AsyncConnection[Any] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """`enqueue_many` for asyncio."""
        return await self.client.acopy_in(map(new_job, jobs), conn, progress)

    def job(self, job_id: int) -> Job[Any]:
        """The handle of a job by its number; nothing is looked up yet."""
        from pgworkers.handle import Job

        return Job(job_id, self.client)

    def bind(self, dsn: str, settings: declared.Settings | Mapping[str, Any] | None = None) -> None:
        """Use this database from now on; the worker calls it after its fork."""
        self.client.close()
        self.client.address.bind(dsn, settings)
        self.rates.forget()

    def close(self) -> None:
        """Close this process's connection; the next enqueue opens a new one."""
        self.client.close()

    async def aclose(self) -> None:
        """Close the connection of the running event loop."""
        await self.client.aclose()

    def describe(self) -> AppSpec:
        """The whole app as data; UsageError when something in it cannot work."""
        if not self.queues:
            raise UsageError(f'{self.name} declares no queue; add app.queue("default", workers=2)')
        return AppSpec(
            name=self.name,
            version=self.version or release_of(self.origin),
            queues=tuple(self.queues.values()),
            tasks=tuple(task.spec() for task in self.tasks.values()),
            schedules=tuple(self._scheduled(make()) for make in self.schedules.values()),
            settings=self.settings,
        )

    def _scheduled(self, spec: ScheduleSpec) -> ScheduleSpec:
        if spec.queue is not None:
            self._place(spec.queue)
        return spec

    def __repr__(self) -> str:
        return f"<App {self.name}: {len(self.queues)} queues, {len(self.tasks)} tasks>"

    def _place(self, queue: str | None, task: str = "") -> str:
        """The queue of a job: the one named, else the one its task is routed to, else "default", else the only one."""
        queue = queue or self._routed(task)
        if queue is None:
            if "default" in self.queues or not self.queues:
                return "default"
            if len(self.queues) == 1:
                return next(iter(self.queues))
            raise UsageError(
                f"no queue is named and the app has several: {', '.join(self.queues)}; "
                'say queue=... at the task, or declare one called "default"'
            )
        if queue not in self.queues:
            known = ", ".join(self.queues) or "none"
            raise UsageError(f'queue {queue!r} is not declared (declared: {known}); add app.queue("{queue}")')
        return queue

    def _include(self, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        self._declare(fn, options, sys._getframe())

    def _declare(
        self, fn: Callable[..., Any], options: Mapping[str, Any], frame: FrameType
    ) -> Task[..., Any]:
        if isinstance(fn, Task):
            raise UsageError(f"{fn.name} is a task already; put @app.task on the function once")
        if not callable(fn) or isinstance(fn, type):
            raise UsageError(f"@app.task: {fn!r} is not a function")
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise UsageError(
                f"task {fn.__name__} is a generator; a task returns its result, it does not yield"
            )
        local = frame.f_locals if frame.f_locals is not frame.f_globals else {}
        kind = CtxTask if takes_ctx(fn, local) else PlainTask
        curve = options.get("backoff")
        backoff: Callable[[int], float | str] | None = curve if callable(curve) else None
        task: Task[..., Any] = kind(
            fn,
            task_spec(fn, **options),
            client=self.client,
            place=self._place,
            backoff=backoff,
            local=local,
        )
        if task.name in self.tasks:
            raise UsageError(
                f"task {task.name!r} is declared twice: {self.tasks[task.name].where()} and {task.where()}; "
                "give one of them another name with @app.task(name=...)"
            )
        task.check()
        self.tasks[task.name] = task
        return task
