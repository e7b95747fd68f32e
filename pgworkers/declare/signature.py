"""What a task's function takes and returns, read off its signature where it is declared.

Annotations are resolved as soon as they can be: one may name something that is defined further down. A first parameter
`Ctx` is the worker's to give, so it is set apart. What JSON cannot carry is refused here, before there is a job.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import Any

from pgworkers.context import Ctx
from pgworkers.errors import UsageError
from pgworkers.payload import carries


def read_signature(
    task: str, fn: Callable[..., Any], local: Mapping[str, Any]
) -> tuple[Signature, str | None, Any]:
    """The parameters without `Ctx`, the name of the `Ctx` parameter, and what is returned; UsageError says what is wrong."""
    hints = hints_of(fn, local)
    given = [p.replace(annotation=hints.get(p.name, Any)) for p in inspect.signature(fn).parameters.values()]
    reserved = given[0].name if given and wants_ctx(given[0].annotation) else None
    kept = given[1:] if reserved else given
    if kept and not reserved and kept[0].name in ("self", "cls"):
        raise UsageError(f"task {task}: methods cannot be tasks; declare a function")
    for parameter in kept:
        if wants_ctx(parameter.annotation):
            raise UsageError(
                f"task {task}: {parameter.name} is a Ctx but not the first parameter; put it first"
            )
        reason = carries(any_for_object(parameter.annotation))
        if reason is not None:
            raise UsageError(
                f"task {task}: parameter {parameter.name} cannot be carried by JSON: {reason}; "
                "pass an id, a path, a dataclass or a msgspec.Struct instead, or annotate it Any if it is plain data"
            )
    returns = hints.get("return", Any)
    if returns in (None, type(None), typing.NoReturn, typing.Never):
        returns = None
    reason = carries(any_for_object(returns))
    if reason is not None:
        raise UsageError(
            f"task {task}: the return annotation cannot be carried by JSON: {reason}; "
            "return plain data, or the place where the result was written"
        )
    return Signature(kept), reserved, returns


def hints_of(fn: Callable[..., Any], local: Mapping[str, Any]) -> dict[str, Any]:
    """The annotations of `fn`, resolved; NameError when one names something not defined yet."""
    names = dict(local)
    inner = inspect.unwrap(fn)
    if "Ctx" not in names and "Ctx" not in getattr(inner, "__globals__", {}):
        names["Ctx"] = Ctx  # imported under TYPE_CHECKING only
    return typing.get_type_hints(fn, localns=names, include_extras=True)


def takes_ctx(fn: Callable[..., Any], local: Mapping[str, Any]) -> bool:
    """Is the first parameter a context? Answered even when other annotations cannot be resolved yet."""
    first = next(iter(inspect.signature(fn).parameters.values()), None)
    if first is None:
        return False

    def only() -> None: ...

    only.__annotations__ = {first.name: first.annotation} if first.annotation is not Parameter.empty else {}
    only.__wrapped__ = fn  # type: ignore[attr-defined]  # its globals
    try:
        return wants_ctx(hints_of(only, local).get(first.name))
    except NameError:
        return False


def wants_ctx(hint: Any) -> bool:
    """Is this annotation `Ctx`, a subclass, or one of them or None?"""
    members = (
        [arg for arg in typing.get_args(hint) if arg is not type(None)] if typing.get_args(hint) else [hint]
    )
    return len(members) == 1 and isinstance(members[0], type) and issubclass(members[0], Ctx)


def any_for_object(hint: Any) -> Any:
    """`object` takes whatever JSON carries, as `Any` does."""
    return Any if hint is object else hint
