"""What `@app.task(...)` accepts, and the `TaskSpec` that it becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from pgworkers import bounds
from pgworkers.errors import UsageError
from pgworkers.options.retries import (
    Backoff,
    ExceptionClasses,
    ExceptionPolicy,
    read_backoff,
    read_exception_policy,
    read_retry_verdicts,
)
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
from pgworkers.secret_arguments import read_secret_names
from pgworkers.specs import TaskSpec
from pgworkers.units import format_size, parse_size


class TaskOptions(TypedDict, total=False):
    """The keywords of `@app.task(...)`."""

    name: str | None  # name of the task; by default that of the function
    queue: str | None  # by default the first route that matches, else "default", else the only queue
    priority: int  # higher runs first
    retries: int  # attempts after the first
    max_crashes: int  # how often the process may die while running the job
    backoff: Backoff  # None exponential, "30s" fixed, ["1s", "10s"], ExponentialBackoff(...), or attempt -> seconds
    retry_on: ExceptionClasses  # exceptions that are retried, (ConnectionError,); any other ends the job
    discard_on: ExceptionClasses  # exceptions that end the job at once: (ValueError,)
    retry_verdicts: Mapping[
        str, bool | Duration
    ]  # by verdict: {"timeout": False, "oom": "10m"}: no retry, or this delay
    timeout: Duration | None  # longest time for one attempt
    deadline: Duration | None  # longest time for the whole job, all attempts
    memory: int | str | None  # most memory of one attempt, with all processes that it started
    expires: Duration | None  # the job is dead if it has not started by then
    exclusive: bool  # two executions never overlap, even if a host is cut off
    stall_timeout: Duration | None  # stop an attempt that used no CPU and sent no heartbeat for this long
    result_limit: int | str | None  # largest result as JSON; by default the setting (16 KiB)
    secret: Sequence[str]  # parameters whose values are shown nowhere: ["token"]
    keep_args: bool  # False: history does not keep the arguments of succeeded jobs
    concurrency: int | None  # most jobs of this task that run at once, on all hosts together
    concurrency_per_key: int | None  # the same for jobs with the same concurrency_key; by default one


def read_task_options(
    fn: Callable[..., Any],
    *,
    name: str | None = None,
    queue: str | None = None,
    priority: int = 0,
    retries: int = 19,
    max_crashes: int = 3,
    backoff: Backoff = None,
    retry_on: ExceptionClasses = None,
    discard_on: ExceptionClasses = None,
    retry_verdicts: Mapping[str, bool | Duration] | None = None,
    timeout: Duration | None = None,
    deadline: Duration | None = None,
    memory: int | str | None = None,
    expires: Duration | None = None,
    exclusive: bool = False,
    stall_timeout: Duration | None = None,
    result_limit: int | str | None = None,
    secret: Sequence[str] = (),
    keep_args: bool = True,
    concurrency: int | None = None,
    concurrency_per_key: int | None = None,
) -> tuple[TaskSpec, ExceptionPolicy]:
    """Check and convert the options: what the master gets, and what stays in the workers.

    The queue stays empty if none is given.
    """
    name = read_cli_name(
        name if name is not None else getattr(fn, "__name__", ""),
        what="task name",
        limit=bounds.MAX_NAME_BYTES,
    )
    what = f"task {name}:"
    doc = (getattr(fn, "__doc__", None) or "").strip().partition("\n")[0]
    spec = TaskSpec(
        name=name,
        queue=""
        if queue is None
        else read_cli_name(queue, what=f"{what} queue", limit=bounds.MAX_NAME_BYTES),
        priority=read_priority(priority, what=f"{what} priority"),
        max_attempts=read_retries(retries, what=f"{what} retries"),
        max_crashes=read_count(
            max_crashes, what=f"{what} max_crashes", minimum=1, maximum=bounds.MAX_ATTEMPTS_OR_CRASHES
        ),
        backoff=read_backoff(backoff, what=f"{what} backoff"),
        retry_verdicts=read_retry_verdicts(retry_verdicts, what=f"{what} retry_verdicts"),
        timeout=read_duration(timeout, what=f"{what} timeout"),
        deadline=read_duration(deadline, what=f"{what} deadline"),
        memory=read_memory(memory, what=f"{what} memory"),
        expires=read_duration(expires, what=f"{what} expires"),
        exclusive=bool(exclusive),
        stall_timeout=read_duration(stall_timeout, what=f"{what} stall_timeout"),
        result_limit=_read_result_limit(result_limit, f"{what} result_limit"),
        secret=read_secret_names(secret, what=f"{what} secret"),
        keep_args=bool(keep_args),
        concurrency=read_optional_count(concurrency, f"{what} concurrency"),
        concurrency_per_key=read_optional_count(concurrency_per_key, f"{what} concurrency_per_key"),
        doc=doc[:200],
    )
    return spec, read_exception_policy(retry_on, discard_on, what=what)


def _read_result_limit(value: int | str | None, what: str) -> int | None:
    if value is None:
        return None
    found = parse_size(value, what=what)
    if found > bounds.MAX_RESULT_BYTES:
        raise UsageError(f"{what}: {value!r} is more than {format_size(bounds.MAX_RESULT_BYTES)}")
    return found
