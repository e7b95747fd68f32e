"""Functions of an app that run around its jobs and processes.

Start and stop hooks run in workers. `on_job_start` hooks and middleware run in the worker around each handler, as part of
the attempt: its timeout counts, and what they raise fails it. `on_job_end` hooks run in the reporter, a process of their
own, after the end of an attempt is written. So they also run when the worker was killed, and they delay no job.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from pgworkers.errors import UsageError
from pgworkers.job.model import TERMINAL_STATES, Verdict

if TYPE_CHECKING:
    from pgworkers.context import Ctx

#: What `verdicts="failed"` means: the attempt did not do its work, and no stop was requested.
FAILED_VERDICTS = frozenset(
    {
        Verdict.ERROR,
        Verdict.TIMEOUT,
        Verdict.MEMORY_LIMIT,
        Verdict.OOM,
        Verdict.CRASH,
        Verdict.EXIT,
        Verdict.HOST_LOST,
        Verdict.UNFIT,
        Verdict.BAD_RESULT,
    }
)
#: Verdicts of attempts whose process is gone, so that nothing in it could end a span.
KILL_VERDICTS = frozenset(
    {Verdict.TIMEOUT, Verdict.MEMORY_LIMIT, Verdict.OOM, Verdict.CRASH, Verdict.EXIT, Verdict.HOST_LOST}
)
_WORKER_HOOK_PARAMETERS = ("queue", "slot")


class JobEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended: what an `on_job_end` hook gets."""

    job: int
    task: str
    queue: str
    attempt: int  #: the first is 1
    max_attempts: int
    verdict: str  #: succeeded, error, timeout, crash, ...: docs/reference/states.md
    state: str  #: of the job now: scheduled or ready (it runs again), succeeded, dead, cancelled
    lease: int  #: the number that fences this execution
    error: str | None = None  #: one line: "ValueError: no such file"
    traceback: str | None = None  #: of the exception
    stack: str | None = None  #: where each thread was when the process was killed or crashed
    output: str | None = None  #: the end of what the handler printed
    exit_status: str | None = None  #: of a process that died: "SIGKILL", "exit 3"
    duration: float = 0.0  #: seconds
    cpu: float = 0.0  #: seconds
    peak_rss: int = 0  #: bytes
    retry_in: float | None = None  #: seconds until the next attempt; None: there is none
    args: dict[str, Any] | None = None  #: None with the setting log_args=false
    meta: dict[str, Any] = {}
    worker: str = ""  #: "reports/0"; empty: it is not known
    host: str = ""  #: name of the machine that reports the end
    ended_at: datetime

    @property
    def is_final(self) -> bool:
        """True if the job has ended and will not run again by itself."""
        return self.state in TERMINAL_STATES

    @property
    def has_failed(self) -> bool:
        """True for the verdicts that `verdicts="failed"` selects."""
        return self.verdict in FAILED_VERDICTS


class TickReport(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule has fired: what integrations get."""

    schedule: str
    scope: str
    job: int
    at: float  # Unix time


@dataclass(frozen=True, slots=True)
class WorkerHook:
    """A start or stop hook of workers."""

    function: Callable[..., Any]
    queue: str | None  # None: of every queue
    parameters: tuple[str, ...]  # of `queue` and `slot`, those that it takes

    def call(self, queue: str, slot: int) -> Any:
        values = {"queue": queue, "slot": slot}
        return self.function(**{name: values[name] for name in self.parameters})


@dataclass(frozen=True, slots=True)
class EndHook:
    """A hook that gets the ends of attempts with certain verdicts."""

    function: Callable[[JobEnd], Any]
    verdicts: frozenset[str]


@dataclass(slots=True)
class Hooks:
    """All hooks of an app, in the order of their declaration."""

    worker_start: list[WorkerHook] = field(default_factory=list)
    worker_stop: list[WorkerHook] = field(default_factory=list)
    job_start: list[Callable[..., Any]] = field(default_factory=list)
    middleware: list[Callable[..., Any]] = field(default_factory=list)
    job_end: list[EndHook] = field(default_factory=list)
    reporter_start: list[Callable[[], Any]] = field(default_factory=list)
    reporter_stop: list[Callable[[], Any]] = field(default_factory=list)
    scheduled_ends: list[Callable[[JobEnd], Any]] = field(default_factory=list)
    ticks: list[Callable[[TickReport], Any]] = field(default_factory=list)

    @property
    def has_handler_hooks(self) -> bool:
        """True if anything runs around handlers. Read for every job."""
        return bool(self.job_start or self.middleware)

    def start_hooks_of(self, queue: str) -> list[WorkerHook]:
        return [hook for hook in self.worker_start if hook.queue in (None, queue)]

    def stop_hooks_of(self, queue: str) -> list[WorkerHook]:
        return [hook for hook in self.worker_stop if hook.queue in (None, queue)]

    def reported_verdicts(self) -> frozenset[str]:
        """The verdicts of attempts whose end is sent to the reporter. Empty: the app needs no reporter."""
        wanted: frozenset[str] = frozenset().union(*(hook.verdicts for hook in self.job_end))
        if self.reporter_start:
            wanted |= KILL_VERDICTS  # it may have set up tracing, whose spans the reporter ends
        return frozenset(map(str, wanted))

    def check_queues(self, declared: Iterable[str]) -> None:
        """UsageError if a hook names a queue that the app does not declare."""
        known = set(declared)
        for hook in (*self.worker_start, *self.worker_stop):
            if hook.queue is not None and hook.queue not in known:
                raise UsageError(
                    f"the hook {_name_of(hook.function)} is for queue {hook.queue!r}, which is not declared "
                    f"(declared: {', '.join(sorted(known))}); it would never run"
                )


def read_worker_hook(function: Callable[..., Any], queue: str | None, *, what: str) -> WorkerHook:
    """Check the parameters of a start or stop hook: none, `queue`, `slot`, or both."""
    parameters = []
    for name, parameter in _parameters_of(function).items():
        if name in _WORKER_HOOK_PARAMETERS and parameter.kind is not parameter.POSITIONAL_ONLY:
            parameters.append(name)
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise UsageError(
                f"{what}: {_name_of(function)} has a parameter {name!r}; a hook takes nothing, or some of "
                "queue and slot"
            )
    return WorkerHook(function, queue, tuple(parameters))


def read_end_hook(function: Callable[..., Any], verdicts: str | Iterable[str] | None) -> EndHook:
    """Check the verdicts of an `on_job_end` hook."""
    _require_parameters(function, 1, what="on_job_end", shape="(end: JobEnd)")
    if verdicts is None:
        return EndHook(function, frozenset(map(str, Verdict)))
    words = [verdicts] if isinstance(verdicts, str) else list(verdicts)
    chosen: set[str] = set()
    for word in words:
        if word == "failed":
            chosen |= set(map(str, FAILED_VERDICTS))
        elif word in set(map(str, Verdict)):
            chosen.add(str(word))
        else:
            known = ", ".join(map(str, Verdict))
            raise UsageError(f'on_job_end: {word!r} is not a verdict; use "failed" or some of {known}')
    if not chosen:
        raise UsageError("on_job_end: verdicts is empty, so the hook would never run; leave it out for all")
    return EndHook(function, frozenset(chosen))


def check_job_start_hook(function: Callable[..., Any]) -> None:
    _require_parameters(function, 1, what="on_job_start", shape="(ctx: Ctx)")


def check_middleware(function: Callable[..., Any]) -> None:
    _require_parameters(function, 2, what="middleware", shape="(ctx: Ctx, call_next)")


def check_reporter_start_hook(function: Callable[..., Any]) -> None:
    _require_parameters(function, 0, what="on_reporter_start", shape="()")


def run_handler(
    hooks: Hooks, ctx: Ctx, handler: Callable[[], Any], run: Callable[[Awaitable[Any]], Any]
) -> Any:
    """Call a handler with the hooks around it. Returns the result of the outermost middleware.

    `run` runs an awaitable to its end. Middleware is called in the order of its declaration, but all that is `async def`
    comes inside of all that is not: it needs the event loop, and the loop runs inside one call.
    """
    for hook in hooks.job_start:
        started = hook(ctx)
        if inspect.isawaitable(started):
            run(started)
    inner = [one for one in hooks.middleware if _is_async(one)]
    outer = [one for one in hooks.middleware if not _is_async(one)]
    call: Callable[[], Any] = partial(_run_inner, inner, ctx, handler, run)
    for one in reversed(outer):
        call = partial(one, ctx, call)
    return call()


def _run_inner(
    middleware: Sequence[Callable[..., Any]],
    ctx: Ctx,
    handler: Callable[[], Any],
    run: Callable[[Awaitable[Any]], Any],
) -> Any:
    """Call the handler with `async def` middleware around it."""
    if not middleware:
        value = handler()
        return run(value) if inspect.isawaitable(value) else value
    call: Callable[[], Coroutine[Any, Any, Any]] = partial(_call_handler, handler)
    for one in reversed(middleware):
        call = partial(one, ctx, call)
    return run(call())


async def _call_handler(handler: Callable[[], Any]) -> Any:
    value = handler()
    return await value if inspect.isawaitable(value) else value


def _is_async(function: Callable[..., Any]) -> bool:
    plain = inspect.unwrap(function)
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(type(plain).__call__)


def _require_parameters(function: Callable[..., Any], count: int, *, what: str, shape: str) -> None:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        raise UsageError(
            f"{what}: {_name_of(function)} cannot be called as {_name_of(function)}{shape}; give it these parameters"
        ) from None
    except ValueError:
        return  # a function of C without a signature


def _parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except ValueError:
        return {}


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", function))
