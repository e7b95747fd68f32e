"""A task's parameters: how a call becomes a JSON object, and how that object becomes a call again.

The object maps parameter names to values, so that SQL, the command line and a later deploy can read and write
it. `*args` is a list under its own name; `**kwargs` are further keys of the same object. Defaults are not
stored: a job that was enqueued without an argument takes the default of the code that runs it.

Values are checked at enqueue by the very decoder that will read them: encode, then decode strictly by the
annotations. What passes here cannot fail to decode in a worker of the same version.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, Signature
from typing import Any, NoReturn

import msgspec

from pgworkers.declare.signature import any_for_object, read_signature
from pgworkers.errors import ArgumentError, UnfitArguments
from pgworkers.payload import NotJson, decoder, encode

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL)
_NONE: dict[str, Any] = {}
_astuple = msgspec.structs.astuple
_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True)
class Arguments:
    """The parameters of one task, `Ctx` left out."""

    task: str
    signature: Signature  # without Ctx, annotations resolved
    reserved: str | None  # the name of the Ctx parameter
    returns: Any

    @classmethod
    def of(cls, task: str, fn: Callable[..., Any], local: Mapping[str, Any]) -> Arguments:
        """Read them off a function; UsageError when an annotation cannot be carried by JSON."""
        return cls(task, *read_signature(task, fn, local))

    @property
    def shown(self) -> str:
        """The signature as people read it."""
        try:
            return str(self.signature)[:1000]
        except Exception:  # a default whose repr raises
            return "(" + ", ".join(self.signature.parameters) + ")"

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, limit: int) -> bytes:
        """A call as JSON; ArgumentError names the parameter when it does not fit."""
        if not kwargs and len(args) == self._placed:
            try:
                text = encode(self._shape(*args), limit=limit)
                self._struct.decode(text)
                return text
            except Exception:
                pass  # what is wrong is said below
        bound = self._bound(args, kwargs)
        rest = self._rest
        if rest is not None and rest.name in bound:
            extra = bound.pop(rest.name)
            names = self.signature.parameters.keys() - {rest.name} | {self.reserved}
            taken = [key for key in extra if key in names]
            if taken:
                self._refuse(
                    f"**{rest.name} holds {taken[0]!r}, which is also a parameter; give it another name"
                )
            bound.update(extra)
        try:
            text = encode(bound, limit=limit)
        except NotJson as exc:
            self._refuse(self._blame(bound, exc, limit))
        try:
            self._struct.decode(text)
            if rest is not None:
                self._extras(text, rest.name)
        except msgspec.ValidationError as exc:
            self._refuse(f"{_where(exc)}; it takes {self.shown}")
        except Exception as exc:  # a dataclass's own __post_init__
            self._refuse(f"{type(exc).__name__}: {exc}; it takes {self.shown}")
        return text

    def decode(self, text: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """JSON as a call; UnfitArguments when it does not fit (enqueued by SQL, or by an older deploy)."""
        try:
            if self._by_place:
                return _astuple(self._struct.decode(text)), _NONE
            values = self._decode(text)
        except msgspec.ValidationError as exc:
            reason = _where(exc)
        except RecursionError:
            reason = "the arguments are nested too deeply"
        except MemoryError:
            raise  # says nothing about the arguments
        except Exception as exc:
            reason = f"{type(exc).__name__}: {exc}"
        else:
            return self._call(values)
        raise UnfitArguments(
            f"{self.task}: the stored arguments do not fit: {reason}; the task takes {self.shown}. "
            "The handler was not run; was the job enqueued by SQL or by another version of the app?"
        )

    def prepare(self) -> None:
        """Make now what the first job would make: in a supervisor, whose workers share it."""
        _ = self._by_place, self._by_name, self._struct
        if self._rest is not None:
            _ = self._extra

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name. `Signature.bind` takes as long as all the rest, so what is plain goes past it."""
        if self._plain is not None and not args and kwargs.keys() == self._plain_names:
            return dict(kwargs)
        try:
            return self.signature.bind(*args, **kwargs).arguments
        except TypeError as exc:
            wrong = self._misnamed(kwargs) or f"{exc};"
            self._refuse(f"{wrong} it takes {self.shown}")

    def _misnamed(self, kwargs: Mapping[str, Any]) -> str | None:
        """An argument that is not there, named before the one that is missing for it; None: there is none."""
        known = [name for name, p in self.signature.parameters.items() if p.kind not in _POSITIONAL]
        wrong = next((name for name in kwargs if name not in known), None)
        if wrong is None or self._rest is not None:
            return None
        from difflib import get_close_matches

        near = get_close_matches(wrong, known, n=1)
        return f"there is no argument {wrong!r};" + (f" did you mean {near[0]!r}?" if near else "")

    def _refuse(self, reason: str) -> NoReturn:
        raise ArgumentError(f"{self.task}: {reason}; nothing was enqueued") from None

    def _blame(self, bound: Mapping[str, Any], exc: NotJson, limit: int) -> str:
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
    def _by_name(self) -> bool:
        """Can all of them be given by name, as they are stored?"""
        return self._rest is None and not any(
            p.kind in _POSITIONAL for p in self.signature.parameters.values()
        )

    @cached_property
    def _by_place(self) -> bool:
        """Are all of them stored, and can they be given by place?"""
        given = self.signature.parameters.values()
        return self._plain is not None and all(p.default is Parameter.empty for p in given)

    @cached_property
    def _rest(self) -> Parameter | None:
        return next((p for p in self.signature.parameters.values() if p.kind is Parameter.VAR_KEYWORD), None)

    @cached_property
    def _plain(self) -> tuple[str, ...] | None:
        """The names, when each parameter can be given by place and by name."""
        parameters = self.signature.parameters
        plain = all(p.kind is Parameter.POSITIONAL_OR_KEYWORD for p in parameters.values())
        return tuple(parameters) if plain else None

    @cached_property
    def _placed(self) -> int | None:
        """How many arguments, given by place, are a struct of `_shape` as they are."""
        return None if self._plain is None else len(self._plain)

    @cached_property
    def _plain_names(self) -> frozenset[str]:
        return frozenset(self._plain or ())

    @cached_property
    def _fields(self) -> dict[str, str]:
        """Struct attribute -> parameter: attributes are numbered so that no parameter name can collide."""
        named = [name for name, p in self.signature.parameters.items() if p is not self._rest]
        return {f"a{number}": name for number, name in enumerate(named)}

    @cached_property
    def _struct(self) -> msgspec.json.Decoder[Any]:
        return decoder(self._shape)

    @cached_property
    def _shape(self) -> type[msgspec.Struct]:
        """The arguments as a struct. What is given by place goes in by place, and is written without a dict."""
        fields: list[tuple[str, Any, Any] | tuple[str, Any]] = []
        for attribute, name in self._fields.items():
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
            kw_only=self._plain is None,
            rename=self._fields,
            forbid_unknown_fields=self._rest is None,
        )

    @cached_property
    def _extra(self) -> msgspec.json.Decoder[Any]:
        assert self._rest is not None
        return decoder(any_for_object(self._rest.annotation))

    def _decode(self, text: bytes) -> dict[str, Any]:
        struct = self._struct.decode(text)
        values = {}
        for attribute, name in self._fields.items():
            value = getattr(struct, attribute)
            if value is not msgspec.UNSET:
                values[name] = value
        if self._rest is not None:
            values[self._rest.name] = self._extras(text, self._rest.name)
        return values

    def _extras(self, text: bytes, rest: str) -> dict[str, Any]:
        known = self.signature.parameters.keys() - {rest} | {self.reserved}
        found: dict[str, Any] = {}
        for key, raw in _RAW.decode(text).items():
            if key not in known:
                try:
                    found[key] = self._extra.decode(raw)
                except msgspec.ValidationError as exc:
                    raise msgspec.ValidationError(f"{exc} - at `$.{key}`") from None
        return found

    def _call(self, values: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._by_name:
            return (), values
        bound = inspect.BoundArguments(self.signature, values)
        bound.apply_defaults()
        return bound.args, bound.kwargs


def _where(exc: msgspec.ValidationError) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.page[0]`" with the parameter first."""
    text, found, path = str(exc).partition(" - at `$.")
    if not found:
        return text[:1].lower() + text[1:]
    return f"argument {path.rstrip('`')}: {text[:1].lower()}{text[1:]}"
