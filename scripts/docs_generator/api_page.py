"""docs/reference/api.md from the code: signatures, docstrings, and the comments next to options and attributes.

`CHAPTERS` lists what the page shows. `INTERNAL_MEMBERS` lists members that are public in Python but not meant for users.
A law test finds methods that are in neither.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, get_args

import msgspec

from pgworkers import errors
from pgworkers.app import App
from pgworkers.context import Ctx
from pgworkers.handles import Batch, Job
from pgworkers.hooks import JobEnd
from pgworkers.job.model import OnConflict, OnFailed
from pgworkers.job.queries import JobView
from pgworkers.job.retry_policy import backoff_delay
from pgworkers.limits.rate import Rate
from pgworkers.observe.handler_metrics import HandlerMetrics
from pgworkers.options.enqueue import EnqueueOptions, read_enqueue_options
from pgworkers.options.retries import ExponentialBackoff
from pgworkers.options.schedule import MissedPolicy, OverlapPolicy, ScheduleOptions, read_schedule_options
from pgworkers.options.task import TaskOptions, read_task_options
from pgworkers.specs import BackoffSpec
from pgworkers.task import Task
from pgworkers.testing.box import Box
from pgworkers.testing.clock import BoxClock
from pgworkers.testing.host import TestHost
from pgworkers.units import format_duration

MAX_SIGNATURE_CHARACTERS = 100
_INTRODUCTION = """\
Every class with a chapter on this page, and every exception, can be imported from `pgworkers`, except `Rate` and
`Metrics`, and those for tests, which are in `pgworkers.testing`.

- A time is seconds (`90`, `0.5`) or a text (`"30s"`, `"5m"`, `"1h30m"`); where it says `Duration`, also a `timedelta`.
- A size is bytes or a text (`"512MB"`, `"2GB"`).
- Every call that queries the database has a version for asyncio.
- Arguments and results are JSON, checked against the annotations: plain values, `datetime`, `Decimal`, dataclasses,
  pydantic models and more. [Pass arguments](../how-to/pass-arguments.md) has the list, and `app.codec` for other types.
- Arguments take at most 1 MiB, a result 16 KiB (`payload_limit` and `result_limit` in [settings.md](settings.md))."""
_CONTROL_INTRODUCTION = """\
Raised by a handler. Any other exception is an error: it is retried by the back-off until the attempts are spent."""
_ERRORS_INTRODUCTION = """\
All but `JobStopped` are subclasses of `PgworkersError`. Their texts say what happened, what was not done and what to do."""
_BACKOFF = """\
How long a failed job waits: `@app.task(backoff=…)`. After attempt *n* the default waits

    min(2 s * 2^(n-1), 3 h), spread by ± 10 %

| `backoff=` | the wait after attempt n |
|---|---|
| nothing | the formula above |
| `"30s"` | always 30 s |
| `["1s", "10s", "5m"]` | the nth of the list; the last one repeats |
| `ExponentialBackoff(base="1s", factor=3, cap="10m", jitter=0.2)` | `min(base * factor^(n-1), cap)`, spread by ± `jitter` |
| a function | what it returns for n, seconds or a text; if it raises, the formula above (and a log line) |

`Retry(after=…)` and `retry_verdicts={"oom": "10m"}` win over all of them.
[Retry jobs](../how-to/retry-jobs.md) shows how long a job is tried."""


@dataclass(frozen=True)
class Chapter:
    """A class on the page."""

    title: str
    kind: type
    instance_name: str  #: how examples call an instance
    members: tuple[str, ...]  #: what is shown, in this order
    introduction: str = ""  #: in place of the class docstring


CHAPTERS: tuple[Chapter, ...] = (
    Chapter(
        title="App",
        kind=App,
        instance_name="app",
        members=(
            "queue", "task", "schedule", "on_worker_start", "on_worker_stop", "on_job_start", "middleware",
            "on_job_end", "on_reporter_start", "enqueue_many", "batch", "get_batch", "job",
            "rate", "route", "codec", "include", "executor", "add_scope", "remove_scope", "testing", "use_database", "close",
        ),
    ),
    Chapter(
        title="Task",
        kind=Task,
        instance_name="task",
        members=("__call__", "enqueue", "using", "prepare", "json_schema"),
    ),
    Chapter(
        title="Job",
        kind=Job,
        instance_name="job",
        members=("result", "wait", "watch", "state", "progress", "error", "refresh", "cancel", "extend"),
    ),
    Chapter(title="Batch", kind=Batch, instance_name="batch", members=("counts", "wait", "cancel")),
    Chapter(
        title="Ctx",
        kind=Ctx,
        instance_name="ctx",
        members=(
            "cancelled", "check_cancelled", "track", "progress", "deadline", "extend", "enqueue", "enqueued", "connect",
            "rate", "metrics", "traceparent", "for_test",
        ),
    ),
    Chapter(
        title="Metrics",
        kind=HandlerMetrics,
        instance_name="ctx.metrics",
        members=("counter", "gauge", "observe"),
        introduction="`ctx.metrics`. Caps and an example: [how-to/monitor.md](../how-to/monitor.md).",
    ),
    Chapter(title="JobEnd", kind=JobEnd, instance_name="end", members=("is_final", "has_failed")),
    Chapter(
        title="Rate",
        kind=Rate,
        instance_name="rate",
        members=("acquire", "try_acquire", "drain", "give_back"),
        introduction=(
            "`app.rate(…)` and `ctx.rate(…)`; how it counts: [how-to/limit-work.md](../how-to/limit-work.md#rates)."
        ),
    ),
    Chapter(
        title="Box",
        kind=Box,
        instance_name="box",
        members=(
            "enqueued", "find", "assert_enqueued", "assert_not_enqueued", "assert_nothing_enqueued", "clear", "job",
            "describe", "run", "run_all", "fire_schedules",
        ),
        introduction=(
            "The jobs that a test has captured: `with app.testing() as box:`. A guide: "
            "[how-to/test-your-app.md](../how-to/test-your-app.md)."
        ),
    ),
    Chapter(title="BoxClock", kind=BoxClock, instance_name="box.clock", members=("now", "move", "move_to")),
    Chapter(
        title="TestHost",
        kind=TestHost,
        instance_name="host",
        members=("drain", "start", "stop", "kill", "pid", "is_running", "log", "log_tail"),
        introduction="A host for one test: the fixture `pgworkers_host` starts it.",
    ),
)  # fmt: skip
#: Public in Python, but only for pgworkers itself.
INTERNAL_MEMBERS: dict[type, frozenset[str]] = {
    App: frozenset({"describe"}),
    Task: frozenset(
        {
            "arguments", "backoff_delay", "build_codecs", "declared_spec", "decode_result", "encode_result",
            "has_read_signature", "location",
            "queue", "run_handler", "to_spec", "try_read_signature",
        }
    ),
    Ctx: frozenset({"take_checkpoint", "take_children", "take_metrics", "take_progress", "end_handler"}),
    Box: frozenset({"scopes_of", "should_run_for", "ended_view", "has_progressed"}),
    HandlerMetrics: frozenset({"take_updates"}),
    Rate: frozenset({"with_stop_point"}),
}  # fmt: skip
CONTROL_EXCEPTIONS = (errors.Retry, errors.Snooze, errors.Discard, errors.Throttled)
ERRORS = (
    errors.JobStopped, errors.JobFailed, errors.ResultTimeout, errors.ResultError, errors.RateTimeout, errors.ArgumentError,
    errors.DuplicateJob, errors.OutcomeUnknown, errors.DatabaseUnreachable, errors.DatabaseRefused, errors.PermissionDenied,
    errors.QuotaExceeded, errors.SchemaOutOfDate, errors.NotFound,
    errors.AppNotLoaded, errors.UsageError, errors.PgworkersError,
)  # fmt: skip
LITERALS = {
    "OnConflict": OnConflict,
    "OnFailed": OnFailed,
    "MissedPolicy": MissedPolicy,
    "OverlapPolicy": OverlapPolicy,
}
#: Methods that take options as keywords: the TypedDict, and the function that has the defaults.
OPTIONS: dict[tuple[type, str], tuple[type, Callable[..., Any]]] = {
    (App, "task"): (TaskOptions, read_task_options),
    (App, "schedule"): (ScheduleOptions, read_schedule_options),
    (Task, "using"): (EnqueueOptions, read_enqueue_options),
}
#: Replacements for names in annotations that mean little to a reader.
_ANNOTATION_NAMES = {
    **{name: " | ".join(f'"{one}"' for one in get_args(kind)) for name, kind in LITERALS.items()},
    "Scopes": "Iterable[str] | Mapping[str, Mapping[str, Any]]",
    "Delay": "float | str",
    "HasJobId": "Job",
    "HandlerMetrics": "Metrics",
    "BoundTask[P, R]": "Task",
}


def api_page(generated_note: str) -> str:
    """Build docs/reference/api.md. `generated_note` is the line that says what writes it."""
    parts = ["# The Python API", generated_note, _INTRODUCTION, _contents()]
    for chapter in CHAPTERS:
        parts += [f"## {chapter.title}", chapter.introduction or _paragraphs(chapter.kind)]
        if chapter.kind is App:
            parts.append(_signature_block("App", inspect.signature(App)))
        parts += _attributes(chapter.kind)
        for member in chapter.members:
            parts += _document_member(chapter.kind, chapter.instance_name, member)
    parts += ["## Steering an attempt", _CONTROL_INTRODUCTION, *_exceptions(CONTROL_EXCEPTIONS)]
    parts += ["## Errors you can meet", _ERRORS_INTRODUCTION, _errors()]
    parts += ["## Back-off", _BACKOFF, _backoff_table(), *_exceptions((ExponentialBackoff,))]
    return "\n\n".join(filter(None, parts)) + "\n"


def _contents() -> str:
    titles = [chapter.title for chapter in CHAPTERS] + [
        "Steering an attempt",
        "Errors you can meet",
        "Back-off",
    ]
    return " · ".join(f"[{title}](#{title.lower().replace(' ', '-')})" for title in titles)


def _document_member(kind: type, name: str, member: str) -> Iterator[str]:
    found = inspect.getattr_static(kind, member)
    call = name if member == "__call__" else f"{name}.{member}"
    if isinstance(found, property):
        returns = inspect.signature(found.fget).return_annotation  # type: ignore[arg-type]
        yield f"### `{call}`"
        yield f"```python\n{call}: {_readable_annotation(returns)}\n```"
        yield _paragraphs(found)
        return
    if isinstance(found, classmethod):
        call = f"{kind.__name__}.{member}"
        signature = inspect.signature(getattr(kind, member))
    else:
        signature = _without_self(inspect.signature(found))
    taken = OPTIONS.get((kind, member))
    if (kind, member) == (App, "task"):
        signature = inspect.Signature([signature.parameters["options"]])
    yield f"### `{call}`"
    yield _signature_block(call, signature)
    yield _paragraphs(found)
    if twin := async_twin(kind, member):
        is_iterator = inspect.isasyncgenfunction(getattr(kind, twin))
        yield f"For asyncio: `{'async for … in' if is_iterator else 'await'} {name}.{twin}(…)`."
    if (kind, member) == (Job, "refresh"):
        names = ", ".join(f"`{field.name}`" for field in fields(JobView))
        yield f"It has {names}."
    if taken is not None:
        yield _options(*taken)


def async_twin(kind: type, member: str) -> str | None:
    """Name of the member that does the same in an event loop."""
    twin = "await_end" if member == "wait" else f"a{member}"
    found = getattr(kind, twin, None)
    return twin if inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found) else None


def _without_self(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _signature_block(call: str, signature: inspect.Signature) -> str:
    """A signature on one line, or with one line per parameter if it is long."""
    text = str(signature).replace("'", "")  # annotations are texts
    for name, parameter in signature.parameters.items():  # but defaults that are texts keep their quotes
        if isinstance(parameter.default, str):
            text = re.sub(
                rf"(\b{name}: [^=,]*= ){re.escape(parameter.default)}", rf'\1"{parameter.default}"', text
            )
    text = text.replace(" -> None", "")
    text = re.sub(r"\*args: P\.args, \*\*kwargs: P\.kwargs", "*args, **kwargs", text)
    text = re.sub(r"\*args: Any, \*\*kwargs: Any\) -> Any", "*args, **kwargs)", text)
    text = re.sub(r"(\*\*\w+): (Unpack\[\w+\]|Any)", r"\1", text)
    text = _readable_annotation(text)
    line = f"{call}{text}"
    if len(line) > MAX_SIGNATURE_CHARACTERS:
        inside, _, returns = text[1:].rpartition(")")
        line = f"{call}(\n" + "".join(f"    {part},\n" for part in _split(inside)) + f"){returns}"
    return f"```python\n{line}\n```"


def _readable_annotation(annotation: str) -> str:
    for name, words in _ANNOTATION_NAMES.items():
        annotation = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w)", words, annotation)
    return annotation


def _split(text: str) -> Iterator[str]:
    """Split a parameter list at the commas outside of brackets."""
    depth, begin = 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            yield text[begin:place].strip()
            begin = place + 1
    yield text[begin:].strip()


def _paragraphs(documented: Any) -> str:
    """A docstring as Markdown, with lines joined and paragraphs and lists kept."""
    text = re.sub(r"\bdocs/([\w/-]+\.md)", r"[\1](../\1)", inspect.getdoc(documented) or "")
    return "\n\n".join(re.sub(r"\s*\n(?!- )\s*", " ", block) for block in re.split(r"\n\s*\n", text))


def attributes_with_comments(kind: type) -> list[tuple[str, str]]:
    """The fields of a struct, or the attributes that `__init__` sets, with the `#:` comment that explains each."""
    assignment = (
        r"^ +(?:#: (?P<above>.+)\n +)?self\.(?P<name>\w+)(?:: [^=\n]+)? = (?:.*?  #: (?P<behind>.+))?"
    )
    field = r"^    (?P<name>\w+): [^=\n#]+?(?: = [^#\n]+?)?  #: (?P<behind>.+)(?P<above>)$"
    pattern = field if issubclass(kind, msgspec.Struct) else assignment
    found = re.finditer(pattern, inspect.getsource(kind), re.MULTILINE)
    return [(match["name"], text) for match in found if (text := match["above"] or match["behind"])]


def _attributes(kind: type) -> Iterator[str]:
    if found := attributes_with_comments(kind):
        rows = [f"| `{name}` | {_table_cell(text)} |" for name, text in found]
        yield "\n".join(["| attribute | meaning |", "|---|---|", *rows])


def _options(taken: type, declared: Callable[..., Any]) -> str:
    defaults = inspect.signature(declared).parameters
    rows = ["| option | kind | default | meaning |", "|---|---|---|---|"]
    for name, kind, meaning in options_with_comments(taken):
        default: Any = defaults[name].default if name in defaults else None
        shown = "" if default is None or default == () else f"`{default!r}`".replace("'", '"')
        if name == "missed_window":
            shown = f'`"{format_duration(default)}"`'
        rows.append(
            f"| `{name}` | `{_table_cell(_readable_annotation(kind))}` | {shown} | {_table_cell(meaning)} |"
        )
    return "\n".join(rows)


def options_with_comments(taken: type) -> list[tuple[str, str, str]]:
    """The keys of a TypedDict with their kinds and the comments behind them."""
    source = re.sub(r"\[\n\s+([^\n]+)\n\s+\]", r"[\1]", inspect.getsource(taken))
    found = re.findall(r"^    (\w+): ([^#\n]+?)(?:  # (.+))?$", source, re.MULTILINE)
    return [(name, kind, meaning) for name, kind, meaning in found]


def _exceptions(kinds: tuple[type, ...]) -> Iterator[str]:
    for kind in kinds:
        yield f"### `{kind.__name__}`"
        if kind in CONTROL_EXCEPTIONS or kind is ExponentialBackoff:
            yield _signature_block(kind.__name__, inspect.signature(kind))
        yield _paragraphs(kind)


def _errors() -> str:
    rows = [f"| `{kind.__name__}` | {_table_cell(_paragraphs(kind))} |" for kind in ERRORS]
    return "\n".join(["| error | meaning |", "|---|---|", *rows])


def _backoff_table() -> str:
    attempts = range(1, 10)
    waits = [format_duration(backoff_delay(BackoffSpec(), attempt, 0.5)) for attempt in attempts]
    head = " | ".join(str(attempt) for attempt in attempts)
    return (
        "The default in numbers, without the spread; the tenth attempt is the last one unless `retries=` says otherwise:\n\n"
        f"| after attempt | {head} |\n|---|{'---|' * len(attempts)}\n| wait | {' | '.join(waits)} |"
    )


def _table_cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")
