"""From typed words to a job that may be inserted: checked by the task itself when there is an app."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any

from pgworkers import settings
from pgworkers.bounds import NAME_BYTES
from pgworkers.cli import place
from pgworkers.cli.invocation import Invocation, unknown
from pgworkers.cli.values import scalar
from pgworkers.errors import NotFound, UsageError

if TYPE_CHECKING:
    from pgworkers.app import App
    from pgworkers.job.new import NewJob


@dataclass(frozen=True, slots=True)
class Preparer:
    """How this command line makes jobs of one task."""

    task: str
    loaded: settings.Loaded
    read: Callable[[str, str], Any]  # parameter, text -> value
    prepare: Callable[[dict[str, Any]], NewJob]


def preparer(said: Invocation, task: str, how: dict[str, Any], *, no_app: bool) -> Preparer:
    """With the app if there is one: it knows the task's parameters, queue and budgets."""
    config = None if no_app else place.config(said)
    return _by_name(said, task, how) if config is None else _by_app(said, config, task, how)


def _by_app(said: Invocation, config: str, name: str, how: dict[str, Any]) -> Preparer:
    from pgworkers.cli.importing import imported

    app: App = imported(said, config, place.load(said).settings.boot)
    loaded = settings.load(flags=said.flags(), app=app.settings)
    task = app.tasks.get(name)
    if task is None:
        raise NotFound(unknown("task", name, list(app.tasks)) + f" (in {config}); nothing was enqueued")
    signature = task.arguments.signature
    bound = task.using(**how)

    def prepare(args: dict[str, Any]) -> NewJob:
        positional, named = as_call(signature, args)
        return bound.prepare(*positional, **named).new

    return Preparer(name, loaded, lambda parameter, text: typed(signature, parameter, text), prepare)


def _by_name(said: Invocation, name: str, how: dict[str, Any]) -> Preparer:
    """Without an app: the database's own table of tasks, if it knows this one, fills in queue and budgets."""
    from pgworkers import payload
    from pgworkers.declare import options
    from pgworkers.job.new import NewJob

    loaded = place.load(said)
    found = options.options(**how)
    options.read_listed_name(name, what="task", limit=NAME_BYTES)

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
            unique=found.unique,
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

    return Preparer(name, loaded, lambda parameter, text: scalar(text), prepare)


def typed(signature: Signature, parameter: str, text: str) -> Any:
    """A typed word as its parameter takes it: `7` is text for a `str`, a number for an `int`."""
    declared = signature.parameters.get(parameter) or _rest(signature)
    if declared is None or declared.kind is Parameter.VAR_POSITIONAL:
        return scalar(text)
    hint = declared.annotation
    if hint is str or hint == (str | None):
        return text
    value = scalar(text)
    if not isinstance(value, str) and not _fits(hint, value) and _fits(hint, text):
        return text
    return value


def _rest(signature: Signature) -> Parameter | None:
    """`**kw`, which takes every other name."""
    kinds = (one for one in signature.parameters.values() if one.kind is Parameter.VAR_KEYWORD)
    return next(kinds, None)


def _fits(hint: Any, value: Any) -> bool:
    import msgspec

    from pgworkers.payload import decoder

    try:
        decoder(hint).decode(msgspec.json.encode(value))
    except Exception:  # a dataclass's own __post_init__ may raise anything
        return False
    return True


def as_call(signature: Signature, args: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
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
