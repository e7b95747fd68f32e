"""Finds captured jobs by task, arguments and options, and explains why none fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from pgworkers import bounds, payload
from pgworkers.errors import UsageError
from pgworkers.job.model import NewJob, PreparedJob
from pgworkers.task import BoundTask, Task
from pgworkers.testing.store import CapturedJob
from pgworkers.units import parse_duration

#: Options of `assert_enqueued`, and the attribute of a captured job that each is compared with.
OPTION_ATTRIBUTES = {
    "queue": "queue",
    "priority": "priority",
    "unique": "unique",
    "idempotency_key": "idempotency_key",
    "concurrency_key": "concurrency_key",
    "meta": "meta",
    "state": "state",
    "delay": "delay",
    "at": "run_at",
    "args": "args",
}
#: Keywords that are not passed to the task. A task whose parameter has such a name takes `args={...}`.
RESERVED_KEYWORDS = frozenset({*OPTION_ATTRIBUTES, "count"})

AnyTask = Task[..., Any] | BoundTask[..., Any] | PreparedJob[Any] | str


@dataclass(frozen=True, slots=True)
class JobPattern:
    """Which captured jobs are meant. Arguments and options that are not given match any value."""

    task: str
    args: Mapping[str, Any]  # by parameter name, as plain data
    options: Mapping[str, Any]  # by attribute of CapturedJob

    def differences(self, job: CapturedJob) -> list[str]:
        """In what a job of this task differs from the pattern."""
        found = [
            f"{name} is {job.args[name]!r}" if name in job.args else f"{name} is not given"
            for name, value in self.args.items()
            if name not in job.args or not _is_equal(value, job.args[name])
        ]
        for attribute, wanted in self.options.items():
            actual = getattr(job, attribute)
            if isinstance(wanted, Mapping) and isinstance(actual, Mapping):
                actual = {key: value for key, value in actual.items() if key in wanted}
            if not _is_equal(wanted, actual):
                found.append(f"{attribute} is {actual!r}")
        return found

    def matches(self, job: CapturedJob) -> bool:
        return job.task == self.task and not self.differences(job)

    def __str__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in self.args.items()]
        call = f"{self.task}({', '.join(shown)})"
        return ", ".join([call, *(f"{name}={value!r}" for name, value in self.options.items())])


def read_pattern(
    tasks: Mapping[str, Task[..., Any]],
    task: AnyTask,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> JobPattern:
    """Read the arguments of `assert_enqueued`."""
    options = {OPTION_ATTRIBUTES[name]: value for name, value in kwargs.items() if name in OPTION_ATTRIBUTES}
    named = {name: value for name, value in kwargs.items() if name not in RESERVED_KEYWORDS}
    if isinstance(task, PreparedJob):
        return _pattern_of_prepared(task.job, args, named, options)
    if isinstance(task, BoundTask):
        options = _options_of_bound(task) | options
        task = task.task
    if isinstance(task, str):
        if task not in tasks:
            raise UsageError(f"the app has no task {task!r}; nothing was checked")
        task = tasks[task]
    if not isinstance(task, Task):
        raise UsageError(
            f"{task!r} is not a task; write box.assert_enqueued(render, report_id=7), without calling the task"
        )
    taken = RESERVED_KEYWORDS & task.arguments.signature.parameters.keys() & kwargs.keys()
    if taken:
        name = min(taken)
        raise UsageError(
            f"{name!r} is an option of assert_enqueued and a parameter of {task.name}; write args={{{name!r}: ...}} for "
            f"the parameter, or {task.name}.using({name}=...) for the option; nothing was checked"
        )
    whole = options.pop("args", {})
    if "delay" in options:
        options["delay"] = _read_delay(options["delay"])
    return JobPattern(task.name, _read_arguments(task, args, named) | dict(whole), options)


def _pattern_of_prepared(
    job: NewJob, args: tuple[Any, ...], named: Mapping[str, Any], options: dict[str, Any]
) -> JobPattern:
    if args or named:
        raise UsageError("a prepared job has its arguments already; give none besides; nothing was checked")
    known: dict[str, Any] = {"queue": job.queue, "unique": job.unique_key}
    given = {name: value for name, value in known.items() if value is not None}
    return JobPattern(job.task, msgspec.json.decode(job.args_json), given | options)


def _options_of_bound(bound: BoundTask[..., Any]) -> dict[str, Any]:
    """What `task.using(...)` was given, of what can be compared."""
    given = bound.options
    known: dict[str, Any] = {
        "queue": given.queue,
        "priority": given.priority,
        "unique": given.unique,
        "idempotency_key": given.idempotency_key,
        "concurrency_key": given.concurrency_key,
        "meta": None if given.meta_json is None else msgspec.json.decode(given.meta_json),
        "delay": None if given.delay is None else timedelta(seconds=given.delay),
        "run_at": given.at,
    }
    return {name: value for name, value in known.items() if value is not None}


def _read_arguments(task: Task[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by parameter name. UsageError for one that the task does not have."""
    try:
        given = task.arguments.signature.bind_partial(*args, **named).arguments
    except TypeError as error:
        raise UsageError(
            f"{task.name}: {error}; it takes {task.arguments.signature_text}; nothing was checked"
        ) from None
    rest = next(
        (p.name for p in task.arguments.signature.parameters.values() if p.kind is p.VAR_KEYWORD), None
    )
    if rest is not None and rest in given:
        given |= given.pop(rest)
    return dict(given)


def _read_delay(value: Any) -> Any:
    if isinstance(value, (str, int, float)):
        return timedelta(seconds=parse_duration(value, what="delay"))
    return value


def _is_equal(wanted: Any, actual: Any) -> bool:
    """Compare with a stored value: as it is (`mock.ANY` and `pytest.approx` work), else as JSON would store it."""
    if wanted == actual:
        return True
    if isinstance(actual, (timedelta, datetime)):
        return False
    try:
        stored = msgspec.json.decode(payload.encode(wanted, limit=bounds.MAX_RESULT_BYTES))
    except payload.NotJson:
        return False
    return bool(stored == actual)


def explain_mismatch(pattern: JobPattern, jobs: Iterable[CapturedJob], found: int, count: int | None) -> str:
    """The text of a failed assertion: what was expected, and what was captured instead."""
    wanted = "at least one job" if count is None else f"{count} job{'' if count == 1 else 's'}"
    lines = [f"expected {wanted} like {pattern}, found {found}"]
    jobs = list(jobs)
    if not jobs:
        lines.append("no job was enqueued in this box")
    for job in jobs:
        different = pattern.differences(job) if job.task == pattern.task else ["another task"]
        lines.append(f"  {job}" + (f"   <- {'; '.join(different)}" if different else "   <- matches"))
    return "\n".join(lines)
