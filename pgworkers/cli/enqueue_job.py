"""Make a job from typed words. If there is an app, its task checks the arguments.

The app is imported in the process of the command, not in a child first as `run` does, because that would import it twice
for each enqueue. A slow import is announced, and it is interrupted after the setting `import_timeout`. If the import ends
the process by a signal, its Python line is printed to stderr.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, get_origin

from pgworkers import app_import, settings
from pgworkers.app import App
from pgworkers.bounds import MAX_NAME_BYTES
from pgworkers.cli import database
from pgworkers.cli.invocation import Invocation, no_such
from pgworkers.cli.output import print_note
from pgworkers.cli.parameters import parse_scalar
from pgworkers.errors import AppNotLoaded, NotFound, UsageError
from pgworkers.supervisor.describe import SLOW_IMPORT_SECONDS
from pgworkers.units import format_duration

if TYPE_CHECKING:
    from pgworkers.app import App
    from pgworkers.job.model import NewJob


@dataclass(frozen=True, slots=True)
class JobBuilder:
    """How this command line makes jobs of one task."""

    task: str
    loaded_settings: settings.LoadedSettings
    read_argument: Callable[[str, str], Any]  # parameter, text -> value
    build: Callable[[dict[str, Any]], NewJob]


def job_builder(invocation: Invocation, task: str, how: dict[str, Any], *, no_app: bool) -> JobBuilder:
    """A builder from the app if there is one: it has the task's parameters, queue and limits."""
    config = None if no_app else database.find_config(invocation)
    return (
        _builder_by_name(invocation, task, how)
        if config is None
        else _builder_from_app(invocation, config, task, how)
    )


def _builder_from_app(invocation: Invocation, config: str, name: str, how: dict[str, Any]) -> JobBuilder:
    app: App = import_app_in_time(
        invocation, config, database.load_command_settings(invocation).settings.import_timeout
    )
    loaded = settings.load_settings(flags=invocation.flags(), app=app.settings)
    task = app.tasks.get(name)
    if task is None:
        raise NotFound(no_such("task", name, list(app.tasks)) + f" (in {config}); nothing was enqueued")
    signature = task.arguments.signature
    bound = task.using(**how)

    def prepare(args: dict[str, Any]) -> NewJob:
        positional, named = split_arguments(signature, args)
        return bound.prepare(*positional, **named).job

    return JobBuilder(
        name,
        loaded,
        lambda parameter, text: read_typed_argument(signature, parameter, text, task.arguments.accepts),
        prepare,
    )


def _builder_by_name(invocation: Invocation, name: str, how: dict[str, Any]) -> JobBuilder:
    """A builder without an app. The table of tasks fills in queue and limits if it has this task."""
    from pgworkers import payload
    from pgworkers.job.model import NewJob
    from pgworkers.options import enqueue, values

    loaded = database.load_command_settings(invocation)
    found = enqueue.read_enqueue_options(**how)
    values.read_cli_name(name, what="task", limit=MAX_NAME_BYTES)

    def prepare(args: dict[str, Any]) -> NewJob:
        try:
            text = payload.encode(args, limit=loaded.settings.payload_limit).decode()
        except payload.NotJson as exc:
            raise UsageError(f"{name}: argument {exc}; nothing was enqueued") from None
        return NewJob(
            task=name,
            args_json=text,
            queue=found.queue,
            priority=found.priority,
            run_at=found.at,
            delay=found.delay,
            unique_key=found.unique,
            on_conflict=found.on_conflict,
            max_attempts=found.max_attempts,
            max_crashes=None,
            timeout=found.timeout,
            memory=found.memory,
            deadline=found.deadline,
            expires=found.expires,
            concurrency_key=found.concurrency_key,
            meta_json=found.meta_json,
            idempotency_key=found.idempotency_key,
            idempotency_window=found.idempotency_window,
        )

    return JobBuilder(name, loaded, lambda parameter, text: parse_scalar(text), prepare)


def read_typed_argument(
    signature: Signature, parameter: str, text: str, accepts: Callable[[str, Any], bool] | None = None
) -> Any:
    """A typed word as its parameter takes it: `7` is text for a `str`, a number for an `int`.

    `accepts(parameter, value)` says whether the parameter could be given a value.
    """
    declared = signature.parameters.get(parameter) or _var_keyword(signature)
    if declared is None or declared.kind is Parameter.VAR_POSITIONAL:
        return parse_scalar(text)
    hint = declared.annotation
    if get_origin(hint) is Annotated:
        hint = hint.__origin__
    if hint is str or hint == (str | None):
        return text
    value = parse_scalar(text)
    if isinstance(value, str):
        return value
    fits = accepts or (lambda _, value: _is_valid(hint, value))
    return text if not fits(parameter, value) and fits(parameter, text) else value


def _var_keyword(signature: Signature) -> Parameter | None:
    """`**kw`, which takes every other name."""
    kinds = (one for one in signature.parameters.values() if one.kind is Parameter.VAR_KEYWORD)
    return next(kinds, None)


def _is_valid(hint: Any, value: Any) -> bool:
    import msgspec

    from pgworkers.type_codecs import BUILTIN_TYPES

    try:
        BUILTIN_TYPES.make_decoder(hint).decode(msgspec.json.encode(value))
    except Exception:  # a dataclass's own __post_init__ may raise anything
        return False
    return True


def split_arguments(signature: Signature, args: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments by name as a call, for parameters that can only be given by position too."""
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if Parameter.POSITIONAL_ONLY not in kinds and Parameter.VAR_POSITIONAL not in kinds:
        return [], args
    named = dict(args)
    positional: list[Any] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind is Parameter.VAR_POSITIONAL:
            rest = named.pop(name, [])
            if not isinstance(rest, list):
                raise UsageError(f"{name} takes a list, e.g. {name}=[1,2]; nothing was enqueued")
            positional.extend(rest)
        elif parameter.kind is Parameter.POSITIONAL_ONLY or (
            Parameter.VAR_POSITIONAL in kinds and parameter.kind is Parameter.POSITIONAL_OR_KEYWORD
        ):
            if name not in named:
                break
            positional.append(named.pop(name))
    return positional, named


class _AppImportTimedOut(BaseException):
    """Not an Exception: an app that catches those while it is imported must not go on."""


def import_app_in_time(
    invocation: Invocation, config: str, timeout: float, *, not_done: str = "nothing was enqueued"
) -> App:
    try:
        with (
            redirect_stdout(sys.stderr),
            _dump_stack_on_crash(),
            _import_timeout(invocation, config, timeout),
        ):
            return app_import.import_app(config)  # what an app prints while it is imported is not our data
    except _AppImportTimedOut:
        raise AppNotLoaded(
            f"importing {config} took longer than {format_duration(timeout)}; {not_done}. Move slow work to "
            "@app.on_worker_start, raise the setting `import_timeout`, or enqueue by name with --no-app"
        ) from None


@contextmanager
def _dump_stack_on_crash() -> Iterator[None]:
    """Print the Python stack if a signal ends the process."""
    if faulthandler.is_enabled() or sys.__stderr__ is None:
        yield
        return
    faulthandler.enable(file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.disable()


@contextmanager
def _import_timeout(invocation: Invocation, config: str, timeout: float) -> Iterator[None]:
    """Limit the time of an import with SIGALRM. A thread would be seen by apps that look for threads."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first = min(SLOW_IMPORT_SECONDS, timeout)
    is_reported = False

    def rings(*_: Any) -> None:
        nonlocal is_reported
        if is_reported or timeout <= SLOW_IMPORT_SECONDS:
            raise _AppImportTimedOut
        is_reported = True
        print_note(invocation, f"importing {config} …")
        signal.setitimer(signal.ITIMER_REAL, timeout - first)

    before = signal.signal(signal.SIGALRM, rings)
    signal.setitimer(signal.ITIMER_REAL, first)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
