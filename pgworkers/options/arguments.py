"""A task's parameters: how a call becomes a JSON object, and how that object becomes a call again.

The object maps parameter names to values, so that SQL, the command line and a later deploy can read and write
it. `*args` is a list under its own name; `**kwargs` are further keys of the same object. Defaults are not
stored: a job that was enqueued without an argument takes the default of the code that runs it.

Values are checked at enqueue by the very decoder that will read them: encode, then decode strictly by the
annotations. What passes here cannot fail to decode in a worker of the same version.

What a task's function takes and returns, read off its signature where it is declared.

Annotations are resolved as soon as they can be: one may name something that is defined further down. A first parameter
`Ctx` is the worker's to give, so it is set apart. What JSON cannot carry is refused here, before there is a job.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, Signature
from typing import Any, NoReturn

import msgspec

from pgworkers.context import Ctx
from pgworkers.errors import ArgumentError, StoredArgumentsError, UsageError
from pgworkers.payload import NotJson, encode, explain_unsupported, make_decoder

_POSITIONAL_KINDS = (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL)
_NONE: dict[str, Any] = {}
_astuple = msgspec.structs.astuple
_RAW_OBJECT_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True)
class Arguments:
    """The parameters of one task, `Ctx` left out."""

    task: str
    signature: Signature  # without Ctx, annotations resolved
    context_parameter: str | None  # the name of the Ctx parameter
    returns: Any

    @classmethod
    def from_function(cls, task: str, fn: Callable[..., Any], local: Mapping[str, Any]) -> Arguments:
        """Read them off a function; UsageError when an annotation cannot be carried by JSON."""
        return cls(task, *read_signature(task, fn, local))

    @property
    def signature_text(self) -> str:
        """The signature as people read it."""
        try:
            return str(self.signature)[:1000]
        except Exception:  # a default whose repr raises
            return "(" + ", ".join(self.signature.parameters) + ")"

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, limit: int) -> bytes:
        """A call as JSON; ArgumentError names the parameter when it does not fit."""
        if not kwargs and len(args) == self._placed:
            try:
                text = encode(self._struct_type(*args), limit=limit)
                self._decoder.decode(text)
                return text
            except Exception:
                pass  # what is wrong is said below
        bound = self._bind(args, kwargs)
        rest = self._var_keyword
        if rest is not None and rest.name in bound:
            extra = bound.pop(rest.name)
            names = self.signature.parameters.keys() - {rest.name} | {self.context_parameter}
            taken = [key for key in extra if key in names]
            if taken:
                self._refuse(
                    f"**{rest.name} holds {taken[0]!r}, which is also a parameter; give it another name"
                )
            bound.update(extra)
        try:
            text = encode(bound, limit=limit)
        except NotJson as exc:
            self._refuse(self._explain_not_json(bound, exc, limit))
        try:
            self._decoder.decode(text)
            if rest is not None:
                self._decode_var_keywords(text, rest.name)
        except msgspec.ValidationError as exc:
            self._refuse(f"{_format_validation_error(exc)}; it takes {self.signature_text}")
        except Exception as exc:  # a dataclass's own __post_init__
            self._refuse(f"{type(exc).__name__}: {exc}; it takes {self.signature_text}")
        return text

    def decode(self, text: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """JSON as a call; UnfitArguments when it does not fit (enqueued by SQL, or by an older deploy)."""
        try:
            if self._by_place:
                return _astuple(self._decoder.decode(text)), _NONE
            values = self._decode_values(text)
        except msgspec.ValidationError as exc:
            reason = _format_validation_error(exc)
        except RecursionError:
            reason = "the arguments are nested too deeply"
        except MemoryError:
            raise  # says nothing about the arguments
        except Exception as exc:
            reason = f"{type(exc).__name__}: {exc}"
        else:
            return self._to_call(values)
        raise StoredArgumentsError(
            f"{self.task}: the stored arguments do not fit: {reason}; the task takes {self.signature_text}. "
            "The handler was not run; was the job enqueued by SQL or by another version of the app?"
        )

    def build_decoders(self) -> None:
        """Make now what the first job would make: in a supervisor, whose workers share it."""
        _ = self._by_place, self._accepts_keywords, self._decoder
        if self._var_keyword is not None:
            _ = self._var_keyword_decoder

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name. `Signature.bind` takes as long as all the rest, so what is plain goes past it."""
        if self._simple_names is not None and not args and kwargs.keys() == self._plain_names:
            return dict(kwargs)
        try:
            return self.signature.bind(*args, **kwargs).arguments
        except TypeError as exc:
            wrong = self._explain_unknown_name(kwargs) or f"{exc};"
            self._refuse(f"{wrong} it takes {self.signature_text}")

    def _explain_unknown_name(self, kwargs: Mapping[str, Any]) -> str | None:
        """An argument that is not there, named before the one that is missing for it; None: there is none."""
        known = [name for name, p in self.signature.parameters.items() if p.kind not in _POSITIONAL_KINDS]
        wrong = next((name for name in kwargs if name not in known), None)
        if wrong is None or self._var_keyword is not None:
            return None
        from difflib import get_close_matches

        near = get_close_matches(wrong, known, n=1)
        return f"there is no argument {wrong!r};" + (f" did you mean {near[0]!r}?" if near else "")

    def _refuse(self, reason: str) -> NoReturn:
        raise ArgumentError(f"{self.task}: {reason}; nothing was enqueued") from None

    def _explain_not_json(self, bound: Mapping[str, Any], exc: NotJson, limit: int) -> str:
        """Which parameter it was."""
        if exc.path:
            return f"argument {exc}"
        for name, value in bound.items():
            try:
                encode({name: value}, limit=limit)
            except NotJson as inner:
                return f"argument {name} {inner.reason}"
        return f"the arguments together {exc.reason.replace('takes', 'take', 1)}"

    @cached_property
    def _accepts_keywords(self) -> bool:
        """Can all of them be given by name, as they are stored?"""
        return self._var_keyword is None and not any(
            p.kind in _POSITIONAL_KINDS for p in self.signature.parameters.values()
        )

    @cached_property
    def _by_place(self) -> bool:
        """Are all of them stored, and can they be given by place?"""
        given = self.signature.parameters.values()
        return self._simple_names is not None and all(p.default is Parameter.empty for p in given)

    @cached_property
    def _var_keyword(self) -> Parameter | None:
        return next((p for p in self.signature.parameters.values() if p.kind is Parameter.VAR_KEYWORD), None)

    @cached_property
    def _simple_names(self) -> tuple[str, ...] | None:
        """The names, when each parameter can be given by place and by name."""
        parameters = self.signature.parameters
        plain = all(p.kind is Parameter.POSITIONAL_OR_KEYWORD for p in parameters.values())
        return tuple(parameters) if plain else None

    @cached_property
    def _placed(self) -> int | None:
        """How many arguments, given by place, are a struct of `_struct_type` as they are."""
        return None if self._simple_names is None else len(self._simple_names)

    @cached_property
    def _plain_names(self) -> frozenset[str]:
        return frozenset(self._simple_names or ())

    @cached_property
    def _struct_fields(self) -> dict[str, str]:
        """Struct attribute -> parameter: attributes are numbered so that no parameter name can collide."""
        named = [name for name, p in self.signature.parameters.items() if p is not self._var_keyword]
        return {f"a{number}": name for number, name in enumerate(named)}

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        return make_decoder(self._struct_type)

    @cached_property
    def _struct_type(self) -> type[msgspec.Struct]:
        """The arguments as a struct. What is given by place goes in by place, and is written without a dict."""
        fields: list[tuple[str, Any, Any] | tuple[str, Any]] = []
        for attribute, name in self._struct_fields.items():
            parameter = self.signature.parameters[name]
            hint = any_for_object(parameter.annotation)
            if parameter.kind is Parameter.VAR_POSITIONAL:
                fields.append((attribute, list[hint], msgspec.UNSET))  # type: ignore[valid-type]
            elif parameter.default is Parameter.empty:
                fields.append((attribute, hint))
            else:
                fields.append((attribute, hint, msgspec.UNSET))
        return msgspec.defstruct(
            "Arguments",
            fields,
            kw_only=self._simple_names is None,
            rename=self._struct_fields,
            forbid_unknown_fields=self._var_keyword is None,
        )

    @cached_property
    def _var_keyword_decoder(self) -> msgspec.json.Decoder[Any]:
        assert self._var_keyword is not None
        return make_decoder(any_for_object(self._var_keyword.annotation))

    def _decode_values(self, text: bytes) -> dict[str, Any]:
        struct = self._decoder.decode(text)
        values = {}
        for attribute, name in self._struct_fields.items():
            value = getattr(struct, attribute)
            if value is not msgspec.UNSET:
                values[name] = value
        if self._var_keyword is not None:
            values[self._var_keyword.name] = self._decode_var_keywords(text, self._var_keyword.name)
        return values

    def _decode_var_keywords(self, text: bytes, rest: str) -> dict[str, Any]:
        known = self.signature.parameters.keys() - {rest} | {self.context_parameter}
        found: dict[str, Any] = {}
        for key, raw in _RAW_OBJECT_DECODER.decode(text).items():
            if key not in known:
                try:
                    found[key] = self._var_keyword_decoder.decode(raw)
                except msgspec.ValidationError as exc:
                    raise msgspec.ValidationError(f"{exc} - at `$.{key}`") from None
        return found

    def _to_call(self, values: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._accepts_keywords:
            return (), values
        bound = inspect.BoundArguments(self.signature, values)
        bound.apply_defaults()
        return bound.args, bound.kwargs


def _format_validation_error(exc: msgspec.ValidationError) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.page[0]`" with the parameter first."""
    text, found, path = str(exc).partition(" - at `$.")
    if not found:
        return text[:1].lower() + text[1:]
    return f"argument {path.rstrip('`')}: {text[:1].lower()}{text[1:]}"


def read_signature(
    task: str, fn: Callable[..., Any], local: Mapping[str, Any]
) -> tuple[Signature, str | None, Any]:
    """The parameters without `Ctx`, the name of the `Ctx` parameter, and what is returned; UsageError says what is wrong."""
    hints = resolve_annotations(fn, local)
    given = [p.replace(annotation=hints.get(p.name, Any)) for p in inspect.signature(fn).parameters.values()]
    reserved = given[0].name if given and is_context_annotation(given[0].annotation) else None
    kept = given[1:] if reserved else given
    if kept and not reserved and kept[0].name in ("self", "cls"):
        raise UsageError(f"task {task}: methods cannot be tasks; declare a function")
    for parameter in kept:
        if is_context_annotation(parameter.annotation):
            raise UsageError(
                f"task {task}: {parameter.name} is a Ctx but not the first parameter; put it first"
            )
        reason = explain_unsupported(any_for_object(parameter.annotation))
        if reason is not None:
            raise UsageError(
                f"task {task}: parameter {parameter.name} cannot be carried by JSON: {reason}; "
                "pass an id, a path, a dataclass or a msgspec.Struct instead, or annotate it Any if it is plain data"
            )
    returns = hints.get("return", Any)
    if returns in (None, type(None), typing.NoReturn, typing.Never):
        returns = None
    reason = explain_unsupported(any_for_object(returns))
    if reason is not None:
        raise UsageError(
            f"task {task}: the return annotation cannot be carried by JSON: {reason}; "
            "return plain data, or the place where the result was written"
        )
    return Signature(kept), reserved, returns


def resolve_annotations(fn: Callable[..., Any], local: Mapping[str, Any]) -> dict[str, Any]:
    """The annotations of `fn`, resolved; NameError when one names something not defined yet."""
    names = dict(local)
    inner = inspect.unwrap(fn)
    if "Ctx" not in names and "Ctx" not in getattr(inner, "__globals__", {}):
        names["Ctx"] = Ctx  # imported under TYPE_CHECKING only
    return typing.get_type_hints(fn, localns=names, include_extras=True)


def takes_context(fn: Callable[..., Any], local: Mapping[str, Any]) -> bool:
    """Is the first parameter a context? Answered even when other annotations cannot be resolved yet."""
    first = next(iter(inspect.signature(fn).parameters.values()), None)
    if first is None:
        return False

    def only() -> None: ...

    only.__annotations__ = {first.name: first.annotation} if first.annotation is not Parameter.empty else {}
    only.__wrapped__ = fn  # type: ignore[attr-defined]  # its globals
    try:
        return is_context_annotation(resolve_annotations(only, local).get(first.name))
    except NameError:
        return False


def is_context_annotation(hint: Any) -> bool:
    """Is this annotation `Ctx`, a subclass, or one of them or None?"""
    members = (
        [arg for arg in typing.get_args(hint) if arg is not type(None)] if typing.get_args(hint) else [hint]
    )
    return len(members) == 1 and isinstance(members[0], type) and issubclass(members[0], Ctx)


def any_for_object(hint: Any) -> Any:
    """`object` takes whatever JSON carries, as `Any` does."""
    return Any if hint is object else hint
