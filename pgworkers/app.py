"""`App`: declares queues, tasks and schedules, and enqueues jobs.

Importing a module that makes an App opens nothing: no connection, no thread, and psycopg is not imported. The first enqueue
connects. The `describe` child turns the app into data for the master. A supervisor imports the app once, and its workers
inherit it by fork.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from pgworkers import settings as declared
from pgworkers.bounds import MAX_NAME_BYTES, MAX_SCOPE_BYTES
from pgworkers.client.client import Client
from pgworkers.client.database import ClientDatabase
from pgworkers.client.django_database import DjangoDatabase
from pgworkers.client.rates import RateRegistry
from pgworkers.context import Ctx
from pgworkers.errors import NotFound, UsageError
from pgworkers.handles import Batch, Job
from pgworkers.hooks import (
    Hooks,
    check_job_start_hook,
    check_middleware,
    check_reporter_start_hook,
    read_end_hook,
    read_worker_hook,
)
from pgworkers.job.model import OnFailed, PreparedJob, unwrap_prepared
from pgworkers.limits.rate import Rate
from pgworkers.options.arguments import takes_context
from pgworkers.options.enqueue import ON_FAILED, EnqueueOptions
from pgworkers.options.queue import Route, read_queue_options, read_route
from pgworkers.options.task import TaskOptions, read_task_options
from pgworkers.options.values import Duration, read_cli_name, read_name, refuse_unknown_options
from pgworkers.secret_arguments import SecretCipher
from pgworkers.specs import AppSpec, QueueSpec, ScheduleSpec
from pgworkers.task import AnyFirstParameter, CtxTask, PlainTask, Task, TaskDecorator
from pgworkers.type_codecs import TypeCodecs

if TYPE_CHECKING:
    from datetime import datetime

    from pgworkers.executor import JobExecutor
    from pgworkers.options.schedule import ScheduleOptions
    from pgworkers.postgres.steps import Steps
    from pgworkers.testing.box import Box

P = ParamSpec("P")
R = TypeVar("R")
HookT = TypeVar("HookT", bound=Callable[..., Any])
T = TypeVar("T")
TaskT = TypeVar("TaskT", bound=Task[..., Any])


class App:
    """Queues, tasks, schedules, hooks and settings of one application.

    `**settings` are those of docs/reference/settings.md: `App(drain_timeout="1m")`. `version` names the release in listings.
    Its default is the commit of the app's repository, or `files-` and a hash of the app's files. `secret_cipher` encrypts
    secret arguments in the database. Making an App opens nothing: the first enqueue connects.

    `django=True`: the queue is in Django's database (`django="jobs"`: in that alias of DATABASES). Inside its `atomic()`
    blocking enqueues are part of the transaction by themselves, and `close_old_connections` runs around handlers.
    """

    def __init__(
        self,
        *,
        dsn: str | None = None,
        schema: str | None = None,
        version: str | None = None,
        name: str | None = None,
        secret_cipher: SecretCipher | None = None,
        django: bool | str = False,
        **settings: Any,
    ) -> None:
        given = {"dsn": dsn, "schema": schema, **settings}
        self.settings = {
            key: declared.parse_setting(key, value) for key, value in given.items() if value is not None
        }
        self.source_file = _source_file_of(sys._getframe(1))
        self.name = name or self.source_file.name
        self.version = version
        if secret_cipher is not None and not isinstance(secret_cipher, SecretCipher):
            raise UsageError(
                "App(secret_cipher=...): give an object with encrypt and decrypt: FernetCipher(keys)"
            )
        self.secret_cipher = secret_cipher
        self.types = TypeCodecs()
        self.queues: dict[str, QueueSpec] = {}
        self.routes: list[Route] = []
        self.tasks: dict[str, Task[..., Any]] = {}
        self.schedules: dict[str, Callable[[], ScheduleSpec]] = {}
        self.hooks = Hooks()
        self.django = DjangoDatabase("default" if django is True else django) if django else None
        self.client = Client(
            ClientDatabase(
                self.settings,
                self.source_file,
                framework_dsn=None if self.django is None else self.django.dsn_for_client,
            )
        )
        self.client.django = self.django
        self.rates = RateRegistry(self.client)

    # Declaring.

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
        lookahead: bool = True,
        reload_overlap: bool = False,
        retention: Duration | None = None,
    ) -> None:
        """Declare a queue: how many worker processes it has on each host, and what each may use.

        - `workers`: worker processes on each host; `cluster_workers`: the most on all hosts together
        - `memory`: memory limit of one job; `max_rss`: a worker that has grown beyond it is replaced after its job
        - `address_space`: limit enforced by the kernel (RLIMIT_AS); beyond it a handler gets a MemoryError
        - `max_jobs`: a worker is replaced after this many jobs; 1: a fresh process for every job
        - `preload`: modules imported before the fork, so that workers share their memory
        - `threads`: number of threads that numpy and similar libraries may start; `nice`: niceness of the processes
        - `cores=[0, 1]`: run its workers on these cores only; `pin=True`: give each worker one of them
        - `lookahead=False`: commit each result before the worker begins its next job. By default short jobs wait a few
          milliseconds in front of a worker, and their results are committed together
        - `reload_overlap=True`: after SIGHUP, start workers with the new code while jobs still run on the old code. By
          default both together run no more jobs than the queue has workers
        - `retention="30d"`: how long finished jobs of this queue are kept, instead of the setting `retention`
        """
        spec = read_queue_options(
            name, workers=workers, cluster_workers=cluster_workers, memory=memory, nice=nice, threads=threads,
            cores=cores, pin=pin, address_space=address_space, max_jobs=max_jobs, max_rss=max_rss, preload=preload,
            lookahead=lookahead, reload_overlap=reload_overlap, retention=retention,
        )  # fmt: skip
        if spec.name in self.queues:
            raise UsageError(f"queue {spec.name!r} is declared twice; keep one of the two declarations")
        self.queues[spec.name] = spec

    def route(self, pattern: str, queue: str) -> None:
        """Send tasks without a queue to `queue` by their name: `app.route("img.*", "images")`.

        The first route that matches is used.
        """
        self.routes.append(
            read_route(pattern, read_cli_name(queue, what=f"route {pattern}: queue", limit=MAX_NAME_BYTES))
        )

    @overload
    def task(
        self, fn: Callable[Concatenate[AnyFirstParameter, P], Coroutine[Any, Any, R]], /
    ) -> PlainTask[..., R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, fn: Callable[Concatenate[AnyFirstParameter, P], R], /) -> PlainTask[..., R, R]: ...
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
    def task(self, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(self, fn: Any = None, /, **options: Any) -> Any:
        """Declare a task: `@app.task` or `@app.task(queue="reports", timeout="10m", retries=5)`.

        Without `retries=` a job has 20 attempts within about 22 hours. A task without `queue=` uses the first route that
        matches its name, else the queue "default", else the only queue.
        """
        refuse_unknown_options(options, TaskOptions, what="task()")
        if fn is not None:
            return self._declare_task(fn, options, _local_names(sys._getframe(1)))

        def declare(fn: Callable[..., Any], /) -> Task[..., Any]:
            return self._declare_task(fn, options, _local_names(sys._getframe(1)))

        return declare

    def schedule(
        self, cron: str | None = None, /, **options: Unpack[ScheduleOptions]
    ) -> Callable[[TaskT], TaskT]:
        """Enqueue a task on a schedule: `@app.schedule("0 3 * * *", tz="Europe/Berlin")` above its `@app.task`."""
        from pgworkers.options.schedule import ScheduleOptions, declare_schedule

        refuse_unknown_options(options, ScheduleOptions, what="schedule()")

        def declare(task: TaskT, /) -> TaskT:
            if not isinstance(task, Task) or self.tasks.get(task.name) is not task:
                raise UsageError(f"@app.schedule: {task!r} is not a task of this app; put it above @app.task")
            name, spec = declare_schedule(task, cron, options)
            if name in self.schedules:
                raise UsageError(f"schedule {name!r} is declared twice; give one of them another name=")
            self.schedules[name] = spec
            return task

        return declare

    def codec(self, kind: type[T], encode: Callable[[T], Any], decode: Callable[[Any], T]) -> None:
        """Let arguments and results have this type: `app.codec(Money, encode=str, decode=Money.parse)`.

        `encode` returns plain data (text, numbers, lists, dicts), and `decode` gets it back. Declare it above the tasks that
        use the type. Subclasses are written with the codec of their base class.
        """
        self.types.add(kind, encode, decode)

    def include(
        self, *names: str, env: Sequence[str] = (), modules: Sequence[str] = (), queue: str | None = None
    ) -> None:
        """Declare built-in tasks: `app.include("exec", "echo")`.

        `exec` runs any program that a job names. Include it only where every login that may enqueue may also run programs.
        `env`: environment variables that these programs inherit in addition to the harmless ones.

        `call` calls any function that is defined in one of `modules`, for `app.executor()`:
        `app.include("call", modules=["mypackage.jobs"])`. Every login that may enqueue may then call these functions, with
        any arguments.
        """
        from pgworkers.builtin_tasks import BUILTIN_OPTIONS, get_builtin_task

        for name in names:
            options = {"name": name, **BUILTIN_OPTIONS.get(name, {})}
            if queue is not None:
                options["queue"] = queue
            task = get_builtin_task(name, tuple(env), tuple(modules))
            self._declare_task(task, options, local_names={})

    # Hooks.

    @overload
    def on_worker_start(self, hook: HookT, /) -> HookT: ...
    @overload
    def on_worker_start(self, /, *, queue: str | None = None) -> Callable[[HookT], HookT]: ...
    def on_worker_start(self, hook: Any = None, /, *, queue: str | None = None) -> Any:
        """Decorator: run this function in each worker after its fork, before its first job.

        Use it to load a model or to open a client. With `queue="ml"` only workers of that queue run it. A hook with the
        parameters `queue` and `slot`, or one of them, gets the place of its worker.
        """

        def declare(hook: HookT, /) -> HookT:
            self.hooks.worker_start.append(read_worker_hook(hook, queue, what="on_worker_start"))
            return hook

        return declare if hook is None else declare(hook)

    @overload
    def on_worker_stop(self, hook: HookT, /) -> HookT: ...
    @overload
    def on_worker_stop(self, /, *, queue: str | None = None) -> Callable[[HookT], HookT]: ...
    def on_worker_stop(self, hook: Any = None, /, *, queue: str | None = None) -> Any:
        """Decorator: run this function in each worker before it exits. A worker that is killed does not run it.

        `queue` and the parameters of the hook are those of `on_worker_start`.
        """

        def declare(hook: HookT, /) -> HookT:
            self.hooks.worker_stop.append(read_worker_hook(hook, queue, what="on_worker_stop"))
            return hook

        return declare if hook is None else declare(hook)

    def on_job_start(self, hook: HookT) -> HookT:
        """Decorator: call this function with the `Ctx` of each attempt, in the worker, before its handler.

        It is part of the attempt: its time counts, and what it raises ends the attempt as if the handler had raised it.
        """
        check_job_start_hook(hook)
        self.hooks.job_start.append(hook)
        return hook

    def middleware(self, function: HookT) -> HookT:
        """Decorator: call this function around each handler, in the worker: `def timing(ctx, call_next)`.

        `call_next()` runs the handler and returns its result; what the middleware returns is the result of the job. The
        first that was declared is the outermost. `async def` middleware awaits `call_next()` and runs inside of all others.
        """
        check_middleware(function)
        self.hooks.middleware.append(function)
        return function

    @overload
    def on_job_end(self, hook: HookT, /) -> HookT: ...
    @overload
    def on_job_end(self, /, *, verdicts: str | Iterable[str] | None = None) -> Callable[[HookT], HookT]: ...
    def on_job_end(self, hook: Any = None, /, *, verdicts: str | Iterable[str] | None = None) -> Any:
        """Decorator: call this function with a `JobEnd` when an attempt has ended and its result is written.

        It runs in the reporter, a process of its own: also after timeouts, kills, crashes and lost hosts, and without
        delaying a job. Each end is reported at most once. `verdicts`: those to report, such as `("timeout", "crash")`, or
        "failed" for all that are failures. Without it every end is reported.
        """

        def declare(hook: HookT, /) -> HookT:
            self.hooks.job_end.append(read_end_hook(hook, verdicts))
            return hook

        return declare if hook is None else declare(hook)

    def on_reporter_start(self, hook: HookT) -> HookT:
        """Decorator: run this function in the reporter before its first `on_job_end` hook, to open a client for example."""
        check_reporter_start_hook(hook)
        self.hooks.reporter_start.append(hook)
        return hook

    # Enqueueing.

    def enqueue_many(
        self,
        jobs: Iterable[PreparedJob[Any]],
        *,
        conn: object = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Insert any number of prepared jobs by COPY, all or none, in constant memory. Returns their number, no handles.

        `progress` is called with the number inserted so far. `conn` is a connection of your own, as in `using(conn=...)`:
        they are part of its transaction.
        """
        return self.client.run_steps(self._enqueue_many_steps(jobs, conn, progress))

    async def aenqueue_many(
        self,
        jobs: Iterable[PreparedJob[Any]],
        *,
        conn: object = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """`enqueue_many` for asyncio."""
        return await self.client.arun_steps(self._enqueue_many_steps(jobs, conn, progress))

    def batch(
        self,
        jobs: Iterable[PreparedJob[Any]],
        then: PreparedJob[Any] | None = None,
        *,
        on_failed: OnFailed = "run",
        conn: object = None,
        progress: Callable[[int], None] | None = None,
    ) -> Batch:
        """Insert any number of jobs by COPY, and one job that begins when the last of them has ended.

        `on_failed` decides about `then` when jobs of the batch failed or were cancelled. "run": it runs nevertheless, and
        finds the batch's number in `ctx.meta["batch"]`. "cancel": it is cancelled. "wait": it waits until an operator has
        retried them and all have succeeded.
        """
        return self.client.run_steps(self._batch_steps(jobs, then, on_failed, conn, progress))

    async def abatch(
        self,
        jobs: Iterable[PreparedJob[Any]],
        then: PreparedJob[Any] | None = None,
        *,
        on_failed: OnFailed = "run",
        conn: object = None,
        progress: Callable[[int], None] | None = None,
    ) -> Batch:
        """`batch` for asyncio."""
        return await self.client.arun_steps(self._batch_steps(jobs, then, on_failed, conn, progress))

    # Handles, rates and scopes.

    def job(self, job_id: int) -> Job[Any]:
        """Return the handle of a job by its number. It does not look the job up yet."""
        return Job(job_id, self.client.current)

    def get_batch(self, batch_id: int) -> Batch:
        """Return the handle of a batch by its number. The job after a batch uses `app.get_batch(ctx.meta["batch"])`."""
        return Batch(batch_id, self.client.current)

    def executor(self, **options: Unpack[EnqueueOptions]) -> JobExecutor:
        """Return an executor of `concurrent.futures` whose calls are jobs: `with app.executor() as pool: pool.map(f, ids)`.

        It takes tasks of this app, and importable functions if the app has `app.include("call", modules=[...])`. `options`
        are those of `task.using(...)`, for all its jobs.
        """
        from pgworkers.executor import JobExecutor

        refuse_unknown_options(options, EnqueueOptions, what="executor()")
        return JobExecutor(self.client, self.tasks, options)

    def rate(
        self, scope: str, rate: float | None = None, per: Duration = "1s", burst: float | None = None
    ) -> Rate:
        """Return a rate limit that all hosts share: `app.rate("github", rate=50, per="1s").acquire()`.

        The first call declares its numbers; later calls need only the name. In a handler use `ctx.rate`: waiting for it
        ends when the job is stopped.
        """
        return self.rates.get(scope, rate, per, burst)

    def add_scope(self, schedule: str, scope: str, args: Mapping[str, Any] | None = None) -> bool:
        """Add a scope (a tenant, for example) to a scoped schedule. False: it had the scope, with these arguments.

        NotFound if the database has no such scoped schedule: no host with this app has started yet, or it was removed.
        """
        from psycopg.errors import NoDataFound

        from pgworkers.schedule import definitions

        scope = read_name(scope, what=f"schedule {schedule}: scope", limit=MAX_SCOPE_BYTES)
        try:
            return self.client.run(definitions.add_scope(schedule, scope, dict(args or {})))
        except (NoDataFound, NotFound):
            raise NotFound(f"there is no scoped schedule {schedule!r}; no scope was added") from None

    def remove_scope(self, schedule: str, scope: str) -> bool:
        """Remove a scope from a schedule. Jobs that were enqueued for it still run. False: it had no such scope."""
        from pgworkers.schedule import definitions

        return self.client.run(definitions.remove_scope(schedule, scope))

    def close(self) -> None:
        """Close this process's connection. The next enqueue opens a new one."""
        self.client.close()

    async def aclose(self) -> None:
        """Close the connection of the running event loop."""
        await self.client.aclose()

    # Tests.

    def testing(
        self, *, now: datetime | None = None, run_hooks: bool = False, run_on_wait: bool = False
    ) -> Box:
        """Capture every enqueue in memory, for a test: `with app.testing() as box:` or `async with`.

        No connection is opened. `box.run()` runs the captured jobs in this process. docs/how-to/test-your-app.md

        - `now`: the time on the box's clock, which is frozen until the test moves it; by default the current time
        - `run_hooks=True`: run the app's worker hooks around the jobs
        - `run_on_wait=True`: `job.result()` runs the captured jobs instead of raising
        """
        from pgworkers.testing.box import Box

        return Box(self, now=now, run_hooks=run_hooks, run_on_wait=run_on_wait)

    # For pgworkers itself.

    def use_database(self, dsn: str, settings: declared.Settings | Mapping[str, Any] | None = None) -> None:
        """Use this database and these settings from now on. The supervisor calls it after importing the app."""
        self.client.close()
        if self.django is not None:
            self.django.close_all()  # workers are forked next
        self.client.database.use(dsn, settings)
        self.rates.discard_tokens()

    def describe(self) -> AppSpec:
        """Return the whole app as data. UsageError if something in it cannot work."""
        if not self.queues:
            raise UsageError(f'{self.name} declares no queue; add app.queue("default", workers=2)')
        self.hooks.check_queues(self.queues)
        return AppSpec(
            name=self.name,
            version=self.version or detect_version(self.source_file),
            queues=tuple(self.queues.values()),
            tasks=tuple(task.to_spec() for task in self.tasks.values()),
            schedules=tuple(self._check_schedule_queue(make()) for make in self.schedules.values()),
            settings=self._settings_for_host(),
            reported_verdicts=tuple(sorted(self.hooks.reported_verdicts())),
            reports_schedules=bool(self.hooks.ticks or self.hooks.scheduled_ends),
        )

    def _settings_for_host(self) -> dict[str, Any]:
        """The settings of the app. With `django=True` the address is Django's, unless the app has one."""
        if self.django is None or "dsn" in self.settings or "dsn_file" in self.settings:
            return self.settings
        return {**self.settings, "dsn": self.django.dsn()}

    def __repr__(self) -> str:
        return f"<App {self.name}: {len(self.queues)} queues, {len(self.tasks)} tasks>"

    def _declare_task(
        self, fn: Callable[..., Any], options: Mapping[str, Any], local_names: Mapping[str, Any]
    ) -> Task[..., Any]:
        """Make a task of a function. `local_names` resolve annotations that name local classes."""
        if isinstance(fn, Task):
            raise UsageError(f"{fn.name} is a task already; put @app.task on the function once")
        if not callable(fn) or isinstance(fn, type):
            raise UsageError(f"@app.task: {fn!r} is not a function")
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise UsageError(
                f"task {fn.__name__} is a generator; a task returns its result, it does not yield"
            )
        kind = CtxTask if takes_context(fn, local_names) else PlainTask
        backoff = options.get("backoff")
        spec, exception_policy = read_task_options(fn, **options)
        task: Task[..., Any] = kind(
            fn,
            spec,
            client=self.client,
            resolve_queue=self._resolve_queue,
            backoff=backoff if callable(backoff) else None,
            exception_policy=exception_policy,
            local_names=local_names,
            types=self.types,
            cipher=self.secret_cipher,
            surround=None if self.django is None else self.django.surround,
        )
        if task.name in self.tasks:
            raise UsageError(
                f"task {task.name!r} is declared twice: {self.tasks[task.name].location()} and {task.location()}; "
                "give one of them another name with @app.task(name=...)"
            )
        task.try_read_signature()
        self.tasks[task.name] = task
        return task

    def _resolve_queue(self, queue: str | None, task: str = "") -> str:
        """Return the given queue, else the one that the task is routed to, else "default", else the only one."""
        queue = queue or next((route.queue for route in self.routes if route.matches(task)), None)
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

    def _check_schedule_queue(self, spec: ScheduleSpec) -> ScheduleSpec:
        if spec.queue is not None:
            self._resolve_queue(spec.queue)
        return spec

    def _enqueue_many_steps(
        self, jobs: Iterable[PreparedJob[Any]], conn: Any, progress: Callable[[int], None] | None
    ) -> Steps[int]:
        return self.client.enqueue_many_steps(map(unwrap_prepared, jobs), conn, progress)

    def _batch_steps(
        self,
        jobs: Iterable[PreparedJob[Any]],
        then: PreparedJob[Any] | None,
        on_failed: OnFailed,
        conn: Any,
        progress: Callable[[int], None] | None,
    ) -> Steps[Batch]:
        if on_failed not in ON_FAILED:
            raise UsageError(f"on_failed={on_failed!r}: use {', '.join(ON_FAILED)}; nothing was enqueued")
        client = self.client.current
        created = yield from client.create_batch_steps(
            map(unwrap_prepared, jobs),
            None if then is None else then.job,
            on_failed=on_failed,
            conn=conn,
            report_count=progress,
        )
        then_handle: Job[Any] | None = None if created.then_id is None else Job(created.then_id, client)
        return Batch(created.id, client, then_handle)


def _local_names(frame: FrameType) -> Mapping[str, Any]:
    """The local names of a function's frame. A module's frame has none of its own."""
    return frame.f_locals if frame.f_locals is not frame.f_globals else {}


def _source_file_of(frame: FrameType) -> Path:
    """The file of the module that makes an App. The embedded server keeps its data next to it."""
    file = frame.f_globals.get("__file__")
    return Path(file).resolve() if isinstance(file, str) else Path.cwd() / "app.py"


def detect_version(app_file: Path) -> str:
    """Return the release of the app: its repository's commit, else a hash of its directory's files."""
    directory = app_file.parent
    for parent in (directory, *directory.parents):
        head = _git_commit(parent / ".git")
        if head:
            return head[:10]
    digest = hashlib.sha256()
    try:
        for file in sorted(directory.glob("*.py"))[:1000]:
            info = file.stat()
            digest.update(f"{file.name} {info.st_mtime_ns} {info.st_size}\n".encode())
    except OSError:
        pass
    return "files-" + digest.hexdigest()[:10]


def _git_commit(git: Path) -> str | None:
    """Return the commit that HEAD points to, read without starting git."""
    try:
        if git.is_file():  # a worktree: "gitdir: ..."
            git = (git.parent / git.read_text().removeprefix("gitdir:").strip()).resolve()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head or None
        ref = head.removeprefix("ref: ")
        common = git / "commondir"
        for base in (git, (git / common.read_text().strip()).resolve()) if common.is_file() else (git,):
            if (base / ref).is_file():
                return (base / ref).read_text().strip()
            packed = base / "packed-refs"
            for line in packed.read_text().splitlines() if packed.is_file() else ():
                if line.endswith(" " + ref):
                    return line.split()[0]
    except (OSError, UnicodeDecodeError):
        pass
    return None
