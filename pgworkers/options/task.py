"""What `@app.task(...)` accepts, and the `TaskSpec` that it becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from pgworkers import bounds
from pgworkers.errors import UsageError
from pgworkers.options.retries import Backoff, read_backoff, read_retry_on
from pgworkers.options.values import (
    Duration,
    read_cli_name,
    read_count,
    read_duration,
    read_memory,
    read_optional_count,
    read_priority,
    read_retries,
)
from pgworkers.specs import TaskSpec
from pgworkers.units import format_size, parse_size


class TaskOptions(TypedDict, total=False):
    """The keywords of `@app.task(...)`."""

    name: str | None  # by default the function's own
    queue: str | None  # by default "default", or the only queue
    priority: int  # higher first
    retries: int  # attempts after the first
    max_crashes: int  # how often the process may die under it
    backoff: Backoff  # None exponential, "30s" fixed, ["1s", "10s"], ExponentialBackoff(...), or attempt -> seconds
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


def read_task_options(
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
    name = read_cli_name(
        name if name is not None else getattr(fn, "__name__", ""),
        what="task name",
        limit=bounds.MAX_NAME_BYTES,
    )
    what = f"task {name}:"
    doc = (getattr(fn, "__doc__", None) or "").strip().partition("\n")[0]
    return TaskSpec(
        name=name,
        queue=""
        if queue is None
        else read_cli_name(queue, what=f"{what} queue", limit=bounds.MAX_NAME_BYTES),
        priority=read_priority(priority, what=f"{what} priority"),
        max_attempts=read_retries(retries, what=f"{what} retries"),
        max_crashes=read_count(
            max_crashes, what=f"{what} max_crashes", least=1, most=bounds.MAX_ATTEMPTS_OR_CRASHES
        ),
        backoff=read_backoff(backoff, what=f"{what} backoff"),
        retry_on=read_retry_on(retry_on, what=f"{what} retry_on"),
        timeout=read_duration(timeout, what=f"{what} timeout"),
        deadline=read_duration(deadline, what=f"{what} deadline"),
        memory=read_memory(memory, what=f"{what} memory"),
        expires=read_duration(expires, what=f"{what} expires"),
        exclusive=bool(exclusive),
        stall_timeout=read_duration(stall_timeout, what=f"{what} stall_timeout"),
        result_limit=_read_result_limit(result_limit, f"{what} result_limit"),
        keep_args=bool(keep_args),
        concurrency=read_optional_count(concurrency, f"{what} concurrency"),
        concurrency_per_key=read_optional_count(concurrency_per_key, f"{what} concurrency_per_key"),
        doc=doc[:200],
    )


def _read_result_limit(value: int | str | None, what: str) -> int | None:
    if value is None:
        return None
    found = parse_size(value, what=what)
    if found > bounds.MAX_RESULT_BYTES:
        raise UsageError(f"{what}: {value!r} is more than {format_size(bounds.MAX_RESULT_BYTES)}")
    return found
