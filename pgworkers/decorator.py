"""What `app.queue(...)` and `@app.task(...)` accept, as data; and how the decorator is typed.

The overloads tell the type checker which of a function's parameters `enqueue` takes. Order matters: an async
handler's result is what it awaits to; a first parameter `Ctx` vanishes; a first parameter that would take
anything (`Any`, `object`) fits the `Ctx` overloads too, so it is caught before them and left unchecked.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypedDict, TypeVar, overload

from pgworkers import bounds
from pgworkers.clock import show_size, size
from pgworkers.context import Ctx
from pgworkers.declare.backoff import Backoff, spec_of
from pgworkers.declare.options import (
    Duration,
    read_count,
    read_duration,
    read_listed_name,
    read_memory,
    read_priority,
    read_retries,
)
from pgworkers.declare.verdicts import read_retry_on
from pgworkers.errors import UsageError
from pgworkers.specs import QueueSpec, TaskSpec
from pgworkers.task import CtxTask, PlainTask

P = ParamSpec("P")
R = TypeVar("R")


class TaskOptions(TypedDict, total=False):
    """The keywords of `@app.task(...)`."""

    name: str | None  # by default the function's own
    queue: str | None  # by default "default", or the only queue
    priority: int  # higher first
    retries: int  # attempts after the first
    max_crashes: int  # how often the process may die under it
    backoff: Backoff  # None exponential, "30s" fixed, ["1s", "10s"], Exponential(...), or attempt -> seconds
    retry_on: Mapping[
        str, bool | Duration
    ]  # {"timeout": False, "oom": "10m"}: by verdict, never again or after so long
    timeout: Duration | None  # for one attempt
    deadline: Duration | None  # for the whole job, all attempts
    memory: int | str | None  # the most one attempt may use, with all it started
    expires: Duration | None  # dead if it has not started by then
    exclusive: bool  # two executions never overlap, even when a host is cut off
    stall_timeout: Duration | None  # alive but no CPU and no beat for this long: stopped
    result_limit: int | str | None  # the largest result, as JSON; by default the setting (16 KiB)
    keep_args: bool  # False: history keeps no arguments of jobs that succeeded
    concurrency: int | None  # how many of it run at once, over all hosts
    concurrency_per_key: int | None  # how many with the same concurrency_key do; by default one


def task_spec(
    fn: Callable[..., Any],
    *,
    name: str | None = None,
    queue: str | None = None,
    priority: int = 0,
    retries: int = 9,
    max_crashes: int = 3,
    backoff: Backoff = None,
    retry_on: Mapping[str, bool | Duration] | None = None,
    timeout: Duration | None = None,
    deadline: Duration | None = None,
    memory: int | str | None = None,
    expires: Duration | None = None,
    exclusive: bool = False,
    stall_timeout: Duration | None = None,
    result_limit: int | str | None = None,
    keep_args: bool = True,
    concurrency: int | None = None,
    concurrency_per_key: int | None = None,
) -> TaskSpec:
    """Check and convert; the queue stays empty when none is named."""
    name = read_listed_name(
        name if name is not None else getattr(fn, "__name__", ""), what="task name", limit=bounds.NAME_BYTES
    )
    what = f"task {name}:"
    doc = (getattr(fn, "__doc__", None) or "").strip().partition("\n")[0]
    return TaskSpec(
        name=name,
        queue="" if queue is None else read_listed_name(queue, what=f"{what} queue", limit=bounds.NAME_BYTES),
        priority=read_priority(priority, what=f"{what} priority"),
        max_attempts=read_retries(retries, what=f"{what} retries"),
        max_crashes=read_count(max_crashes, what=f"{what} max_crashes", least=1, most=bounds.BUDGET_MAX),
        backoff=spec_of(backoff, what=f"{what} backoff"),
        retry_on=read_retry_on(retry_on, what=f"{what} retry_on"),
        timeout=read_duration(timeout, what=f"{what} timeout"),
        deadline=read_duration(deadline, what=f"{what} deadline"),
        memory=read_memory(memory, what=f"{what} memory"),
        expires=read_duration(expires, what=f"{what} expires"),
        exclusive=bool(exclusive),
        stall_timeout=read_duration(stall_timeout, what=f"{what} stall_timeout"),
        result_limit=_result_limit(result_limit, f"{what} result_limit"),
        keep_args=bool(keep_args),
        concurrency=_optional(concurrency, f"{what} concurrency"),
        concurrency_per_key=_optional(concurrency_per_key, f"{what} concurrency_per_key"),
        doc=doc[:200],
    )


def queue_spec(
    name: str,
    *,
    workers: int,
    cluster_workers: int | None,
    memory: int | str | None,
    nice: int,
    threads: int | None,
    cores: Sequence[int],
    pin: bool,
    address_space: int | str | None,
    max_jobs: int | None,
    max_rss: int | str | None,
    preload: Sequence[str],
    batch: bool,
    reload_overlap: bool,
    retention: Duration | None,
) -> QueueSpec:
    name = read_listed_name(name, what="queue name", limit=bounds.NAME_BYTES)
    what = f"queue {name}:"
    if isinstance(preload, str) or not all(isinstance(module, str) for module in preload):
        raise UsageError(f'{what} preload must be a list of module names: preload=["numpy"]')
    return QueueSpec(
        name=name,
        workers=read_count(workers, what=f"{what} workers", least=1, most=1024),
        cluster_workers=_optional(cluster_workers, f"{what} cluster_workers"),
        memory=read_memory(memory, what=f"{what} memory"),
        nice=read_count(nice, what=f"{what} nice", least=-20, most=19),
        threads=_optional(threads, f"{what} threads"),
        cores=tuple(read_count(core, what=f"{what} cores", most=4095) for core in cores),
        pin=bool(pin),
        address_space=read_memory(address_space, what=f"{what} address_space"),
        max_jobs=_optional(max_jobs, f"{what} max_jobs"),
        max_rss=read_memory(max_rss, what=f"{what} max_rss"),
        preload=tuple(preload),
        batch=bool(batch),
        reload_overlap=bool(reload_overlap),
        retention=read_duration(retention, what=f"{what} retention", positive=False),
    )


def _result_limit(value: int | str | None, what: str) -> int | None:
    if value is None:
        return None
    found = size(value, what=what)
    if found > bounds.RESULT_BYTES:
        raise UsageError(f"{what}: {value!r} is more than {show_size(bounds.RESULT_BYTES)}")
    return found


def _optional(value: int | None, what: str) -> int | None:
    return None if value is None else read_count(value, what=what, least=1)


class Anything:
    """A stand-in that only a parameter of type Any or object accepts; never made."""


class Declare(Protocol):
    """A decorator that makes a task of a function."""

    @overload
    def __call__(
        self, fn: Callable[Concatenate[Anything, P], Coroutine[Any, Any, R]], /
    ) -> PlainTask[..., R, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(self, fn: Callable[Concatenate[Anything, P], R], /) -> PlainTask[..., R, R]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[Concatenate[Ctx, P], Coroutine[Any, Any, R]], /
    ) -> CtxTask[P, R, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(self, fn: Callable[Concatenate[Ctx, P], R], /) -> CtxTask[P, R, R]: ...

    @overload
    def __call__(
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> PlainTask[P, R, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(self, fn: Callable[P, R], /) -> PlainTask[P, R, R]: ...

    def __call__(self, fn: Any, /) -> Any: ...
