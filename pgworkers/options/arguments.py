"""A task's parameters: how a call becomes the JSON object of a job, and how that object becomes a call again.

The object maps parameter names to values, so that SQL, the command line and a later deploy can read and write it. `*args`
is a list under its own name. `**kwargs` are further keys of the same object. Defaults are not stored: a job that was
enqueued without an argument gets the default of the code that runs it.

Values are checked at enqueue by the decoder that will read them: encode, then decode strictly by the annotations. What
passes here cannot fail to decode in a worker of the same version.

The signature is read where the task is declared, as soon as its annotations can be resolved: one may name something that is
defined further down. The worker passes a first parameter `Ctx`, so it is not among the arguments. A type that JSON cannot
carry is refused at the declaration.

Most parameters are decoded together, as the fields of one msgspec struct. A parameter that is secret, or whose annotation
mentions pydantic, has a `ParameterCodec`: in the struct its field is raw JSON.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, Signature
from typing import Any, NoReturn

import msgspec

from pgworkers.context import Ctx
from pgworkers.errors import ArgumentError, StoredArgumentsError, UsageError
from pgworkers.payload import NotJson, encode, explain_unsupported
from pgworkers.pydantic_values import PydanticValue, UnsupportedByPydantic, ValueErrorAt, mentions_pydantic
from pgworkers.secret_arguments import Secret, SecretCipher, secret_texts, unwrap_secret, wrap_secret
from pgworkers.type_codecs import BUILTIN_TYPES, TypeCodecs

_POSITIONAL_KINDS = (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL)
_RAW_OBJECT_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True)
class ParameterCodec:
    """How one parameter is written and read that is not decoded together with the others."""

    is_secret: bool
    pydantic: PydanticValue | None
    decoder: msgspec.json.Decoder[Any] | None  #: without pydantic

    def dump(self, value: Any) -> Any:
        """Return plain data, or a value that msgspec and the app's codecs can write."""
        return value if self.pydantic is None else self.pydantic.dump(value)

    def load(self, raw: bytes) -> Any:
        if self.pydantic is not None:
            return self.pydantic.load(raw)
        assert self.decoder is not None
        return self.decoder.decode(raw)


@dataclass(frozen=True)
class Arguments:
    """The parameters of one task, without `Ctx`, and what it returns."""

    task: str
    signature: Signature  #: without Ctx, annotations resolved
    context_parameter: str | None  #: the name of the Ctx parameter
    returns: Any
    types: TypeCodecs = BUILTIN_TYPES
    secret: tuple[str, ...] = ()  #: names of secret parameters
    cipher: SecretCipher | None = None  #: encrypts them
    shown: Signature | None = None  #: for people: without `Annotated` and the defaults of secrets

    @classmethod
    def from_function(
        cls,
        task: str,
        fn: Callable[..., Any],
        local_names: Mapping[str, Any],
        *,
        types: TypeCodecs = BUILTIN_TYPES,
        secret: Sequence[str] = (),
        cipher: SecretCipher | None = None,
    ) -> Arguments:
        """Read the signature of a function. `secret` names parameters that are secret without a mark.

        UsageError if JSON cannot carry an annotation, NameError if one names something that is not defined yet.
        """
        hints = resolve_annotations(fn, local_names)
        parameters = [
            parameter.replace(annotation=hints.get(parameter.name, Any))
            for parameter in inspect.signature(fn).parameters.values()
        ]
        context_parameter = None
        if parameters and is_context_annotation(parameters[0].annotation):
            context_parameter = parameters.pop(0).name
        _check_parameters(task, parameters, types, has_context=context_parameter is not None)
        found = _secret_parameters(task, parameters, secret)
        plain_hints = resolve_annotations(fn, local_names, include_extras=False)
        return cls(
            task=task,
            signature=Signature(parameters),
            context_parameter=context_parameter,
            returns=_read_return_annotation(task, hints.get("return", Any), types),
            types=types,
            secret=found,
            cipher=cipher,
            shown=Signature(
                [
                    parameter.replace(
                        annotation=plain_hints.get(parameter.name, Any),
                        default=_shown_default(parameter) if parameter.name in found else parameter.default,
                    )
                    for parameter in parameters
                ]
            ),
        )

    @property
    def signature_text(self) -> str:
        """The signature for people: `(report_id: int, *, fmt: str = 'pdf')`."""
        try:
            return str(self.shown or self.signature)[:1000]
        except Exception:  # a default whose repr raises
            return "(" + ", ".join(self.signature.parameters) + ")"

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, limit: int) -> bytes:
        """Return a call as JSON. ArgumentError names the parameter that does not fit.

        A call with all arguments by position skips `Signature.bind`: bulk enqueueing encodes one call per row, and binding
        takes about as long as everything else.
        """
        if not kwargs and len(args) == self._positional_count and not self._codecs:
            try:
                text = encode(self._struct_type(*args), limit=limit, types=self.types)
                self._decoder.decode(text)
                return text
            except Exception:
                pass  # the code below finds out what is wrong
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
            bound = self._dump_values(bound, limit)
            text = encode(bound, limit=limit, types=self.types)
        except NotJson as exc:
            self._refuse(self._explain_not_json(bound, exc, limit))
        try:
            if self._codecs:
                self._decode_values(text)
            else:
                self._decoder.decode(text)
                if rest is not None:
                    self._decode_var_keywords(text, rest.name)
        except msgspec.ValidationError as exc:
            self._refuse(f"{_format_validation_error(exc)}; it takes {self.signature_text}")
        except Exception as exc:  # a dataclass's own __post_init__
            self._refuse(f"{type(exc).__name__}: {exc}; it takes {self.signature_text}")
        return text

    def decode(self, text: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return JSON as a call. StoredArgumentsError if it does not fit (enqueued by SQL, or by an older deploy)."""
        try:
            values = self._decode_values(text)
        except msgspec.ValidationError as exc:
            reason = _format_validation_error(exc)
        except RecursionError:
            reason = "the arguments are nested too deeply"
        except MemoryError:
            raise  # not an error of the arguments
        except Exception as exc:
            reason = f"{type(exc).__name__}: {exc}"
        else:
            return self._to_call(values)
        raise StoredArgumentsError(
            f"{self.task}: the stored arguments do not fit: {reason}; the task takes {self.signature_text}. "
            "The handler was not run; was the job enqueued by SQL or by another version of the app?"
        )

    def build_decoders(self) -> None:
        """Build the decoders now, in the supervisor: its workers share them."""
        _ = self._is_called_by_position, self._accepts_keywords, self._decoder, self._codecs
        if self._var_keyword is not None:
            _ = self._var_keyword_codec

    def accepts(self, name: str, value: Any) -> bool:
        """True if this parameter could be given this plain value."""
        parameter = self.signature.parameters.get(name) or self._var_keyword
        if parameter is None:
            return False
        codec = self._codecs.get(name)
        try:
            raw = msgspec.json.encode(value)
            if codec is not None:
                codec.load(raw)
            else:
                self.types.make_decoder(any_for_object(parameter.annotation)).decode(raw)
        except Exception:  # a dataclass's own __post_init__ may raise anything
            return False
        return True

    def codec_of(self, name: str) -> ParameterCodec | None:
        """Return the codec of a parameter. None: msgspec decodes it together with the others."""
        if self._var_keyword is not None and name == self._var_keyword.name:
            return self._var_keyword_codec
        return self._codecs.get(name)

    def secret_texts(self, args_json: bytes) -> list[str]:
        """Return the texts within the secret arguments of a job, to be removed from its errors."""
        return secret_texts(args_json, self.secret, self._open_secret) if self.secret else []

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by name. A call with all arguments by keyword skips `Signature.bind`."""
        if self._simple_names is not None and not args and kwargs.keys() == set(self._simple_names):
            return dict(kwargs)
        try:
            return self.signature.bind(*args, **kwargs).arguments
        except TypeError as exc:
            wrong = self._explain_unknown_name(kwargs) or f"{exc};"
            self._refuse(f"{wrong} it takes {self.signature_text}")

    def _explain_unknown_name(self, kwargs: Mapping[str, Any]) -> str | None:
        """Explain an argument with an unknown name. None: all names are known.

        A misspelt name is more useful to the caller than the parameter that is missing because of it.
        """
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
        """Explain which parameter cannot be written as JSON."""
        if exc.path:
            return f"argument {exc}"
        for name, value in bound.items():
            try:
                encode({name: value}, limit=limit, types=self.types)
            except NotJson as inner:
                return f"argument {name} {inner.reason}"
        return f"the arguments together {exc.reason.replace('takes', 'take', 1)}"

    def _dump_values(self, bound: dict[str, Any], limit: int) -> dict[str, Any]:
        """Return the arguments with those as plain data that have a codec, and with secrets wrapped."""
        dumped = dict(bound)
        if self._var_keyword is not None and self._var_keyword_codec.pydantic is not None:
            for name in bound.keys() - self.signature.parameters.keys():
                dumped[name] = self._var_keyword_codec.dump(bound[name])
        for name, codec in self._codecs.items():
            if name not in bound:
                continue
            if not codec.is_secret:
                dumped[name] = codec.dump(bound[name])
                continue
            try:
                plain = msgspec.json.decode(encode(codec.dump(bound[name]), limit=limit, types=self.types))
            except NotJson as exc:
                raise NotJson(
                    name, f"{exc.reason}" if "bytes as JSON" in exc.reason else "(a secret) has no JSON form"
                ) from None
            dumped[name] = wrap_secret(self.task, name, plain, self.cipher)
        return dumped

    def _load(self, name: str, codec: ParameterCodec, raw: bytes) -> Any:
        """Rebuild one parameter. msgspec.ValidationError names it, and shows nothing of a secret."""
        if codec.is_secret:
            try:
                raw = self._open_secret(name, raw)
            except ValueError as exc:
                raise msgspec.ValidationError(f"{exc} - at `$.{name}`") from None
            try:
                return codec.load(raw)
            except Exception:
                raise msgspec.ValidationError(
                    f"the secret value does not fit its annotation - at `$.{name}`"
                ) from None
        try:
            return codec.load(raw)
        except ValueErrorAt as exc:
            place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in exc.location)
            raise msgspec.ValidationError(f"{exc} - at `$.{name}{place}`") from None

    def _open_secret(self, name: str, raw: bytes) -> bytes:
        return unwrap_secret(self.task, name, raw, self.cipher)

    @cached_property
    def _codecs(self) -> dict[str, ParameterCodec]:
        """The parameters that are not decoded together with the others."""
        found = {}
        for name, parameter in self.signature.parameters.items():
            if parameter is self._var_keyword:
                continue
            hint = any_for_object(parameter.annotation)
            if parameter.kind is Parameter.VAR_POSITIONAL:
                hint = list[hint]  # type: ignore[valid-type]
            pydantic = _pydantic_value(hint)
            is_secret = name in self.secret
            if pydantic is not None or is_secret:
                decoder = self.types.make_decoder(hint) if pydantic is None else None
                found[name] = ParameterCodec(is_secret, pydantic, decoder)
        return found

    @cached_property
    def _is_called_by_position(self) -> bool:
        """True if all parameters are plain and required, so that all are stored.

        A decorator around such a handler may take only `*args`.
        """
        parameters = self.signature.parameters.values()
        return self._simple_names is not None and all(p.default is Parameter.empty for p in parameters)

    @cached_property
    def _accepts_keywords(self) -> bool:
        """True if all parameters can be passed by name, as they are stored."""
        return self._var_keyword is None and not any(
            p.kind in _POSITIONAL_KINDS for p in self.signature.parameters.values()
        )

    @cached_property
    def _var_keyword(self) -> Parameter | None:
        return next((p for p in self.signature.parameters.values() if p.kind is Parameter.VAR_KEYWORD), None)

    @cached_property
    def _simple_names(self) -> tuple[str, ...] | None:
        """The names of all parameters, if each can be passed by position and by name."""
        parameters = self.signature.parameters
        plain = all(p.kind is Parameter.POSITIONAL_OR_KEYWORD for p in parameters.values())
        return tuple(parameters) if plain else None

    @cached_property
    def _positional_count(self) -> int | None:
        """How many positional arguments can be passed to `_struct_type` as they are. None: none can."""
        return None if self._simple_names is None else len(self._simple_names)

    @cached_property
    def _struct_fields(self) -> dict[str, str]:
        """Struct attribute -> parameter. Attributes are numbered, so that no parameter name can collide with another."""
        named = [name for name, p in self.signature.parameters.items() if p is not self._var_keyword]
        return {f"a{number}": name for number, name in enumerate(named)}

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        return self.types.make_decoder(self._struct_type)

    @cached_property
    def _struct_type(self) -> type[msgspec.Struct]:
        """The arguments as a struct whose fields have the names of the parameters in JSON."""
        fields: list[tuple[str, Any, Any] | tuple[str, Any]] = []
        for attribute, name in self._struct_fields.items():
            parameter = self.signature.parameters[name]
            hint = any_for_object(parameter.annotation)
            if name in self._codecs:
                hint = msgspec.Raw
            if parameter.kind is Parameter.VAR_POSITIONAL:
                hint = hint if name in self._codecs else list[hint]  # type: ignore[valid-type]
                fields.append((attribute, hint, msgspec.UNSET))
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
    def _var_keyword_codec(self) -> ParameterCodec:
        assert self._var_keyword is not None
        hint = any_for_object(self._var_keyword.annotation)
        pydantic = _pydantic_value(hint)
        decoder = self.types.make_decoder(hint) if pydantic is None else None
        return ParameterCodec(is_secret=False, pydantic=pydantic, decoder=decoder)

    def _decode_values(self, text: bytes) -> dict[str, Any]:
        struct = self._decoder.decode(text)
        values = {}
        for attribute, name in self._struct_fields.items():
            value = getattr(struct, attribute)
            if value is not msgspec.UNSET:
                codec = self._codecs.get(name)
                values[name] = value if codec is None else self._load(name, codec, bytes(value))
        if self._var_keyword is not None:
            values[self._var_keyword.name] = self._decode_var_keywords(text, self._var_keyword.name)
        return values

    def _decode_var_keywords(self, text: bytes, rest: str) -> dict[str, Any]:
        known = self.signature.parameters.keys() - {rest} | {self.context_parameter}
        found: dict[str, Any] = {}
        for key, raw in _RAW_OBJECT_DECODER.decode(text).items():
            if key not in known:
                try:
                    found[key] = self._load(key, self._var_keyword_codec, bytes(raw))
                except msgspec.ValidationError as exc:
                    if " - at `$." in str(exc):
                        raise
                    raise msgspec.ValidationError(f"{exc} - at `$.{key}`") from None
        return found

    def _to_call(self, values: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._is_called_by_position:
            return tuple(values.values()), {}
        if self._accepts_keywords:
            return (), values
        bound = inspect.BoundArguments(self.signature, values)
        bound.apply_defaults()
        return bound.args, bound.kwargs


def _format_validation_error(exc: msgspec.ValidationError) -> str:
    """Rewrite msgspec's "Expected `int`, got `str` - at `$.page[0]`" with the parameter first."""
    text, found, path = str(exc).partition(" - at `$.")
    if not found:
        return text[:1].lower() + text[1:]
    return f"argument {path.rstrip('`')}: {text[:1].lower()}{text[1:]}"


def _check_parameters(
    task: str, parameters: list[Parameter], types: TypeCodecs, *, has_context: bool
) -> None:
    if parameters and not has_context and parameters[0].name in ("self", "cls"):
        raise UsageError(f"task {task}: methods cannot be tasks; declare a function")
    for parameter in parameters:
        if is_context_annotation(parameter.annotation):
            raise UsageError(
                f"task {task}: {parameter.name} is a Ctx but not the first parameter; put it first"
            )
        reason = _explain_unsupported_annotation(parameter.annotation, types)
        if reason is not None:
            raise UsageError(
                f"task {task}: parameter {parameter.name} cannot be carried by JSON: {reason}. {_ALTERNATIVES}"
            )


_ALTERNATIVES = (
    "Pass an id, a path, a dataclass, a msgspec.Struct or a pydantic model instead, declare the type above the task with "
    "app.codec(Type, encode, decode), or annotate it Any if it is plain data"
)


def _secret_parameters(task: str, parameters: list[Parameter], given: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the parameters that are secret by `secret=`, by their mark or by a SecretStr in them."""
    by_name = {parameter.name: parameter for parameter in parameters}
    for name in given:
        if name not in by_name:
            known = ", ".join(by_name) or "none"
            raise UsageError(f"task {task}: secret={name!r} is not one of its parameters ({known})")
    found = []
    for name, parameter in by_name.items():
        pydantic = _pydantic_value(any_for_object(parameter.annotation))
        if (
            name in given
            or _has_secret_mark(parameter.annotation)
            or (pydantic is not None and pydantic.holds_secret)
        ):
            if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
                raise UsageError(
                    f"task {task}: *{name} and **{name} cannot be secret; give the secret a parameter of its own"
                )
            found.append(name)
    return tuple(found)


def _shown_default(parameter: Parameter) -> Any:
    return parameter.default if parameter.default in (Parameter.empty, None, "") else _HIDDEN_DEFAULT


class _HiddenDefault:
    def __repr__(self) -> str:
        return "…"


_HIDDEN_DEFAULT = _HiddenDefault()


def _has_secret_mark(hint: Any) -> bool:
    """True if a part of an annotation is marked with `Secret()`, or with the class itself."""
    marks = getattr(hint, "__metadata__", ())
    return any(isinstance(mark, Secret) or mark is Secret for mark in marks) or any(
        _has_secret_mark(part) for part in typing.get_args(hint)
    )


def _pydantic_value(hint: Any) -> PydanticValue | None:
    """Return how pydantic reads an annotation. None: it mentions nothing of pydantic, or msgspec reads it."""
    if not mentions_pydantic(hint):
        return None
    try:
        return PydanticValue(hint)
    except UnsupportedByPydantic:
        return None


def _explain_unsupported_annotation(hint: Any, types: TypeCodecs) -> str | None:
    hint = any_for_object(hint)
    reason = None
    if mentions_pydantic(hint):
        try:
            PydanticValue(hint)
        except UnsupportedByPydantic as exc:
            reason = str(exc).partition("\n")[0]
        else:
            return None
    explained = explain_unsupported(hint, types)
    return None if explained is None else reason or explained


def _read_return_annotation(task: str, returns: Any, types: TypeCodecs) -> Any:
    if returns in (None, type(None), typing.NoReturn, typing.Never):
        returns = None
    reason = _explain_unsupported_annotation(returns, types)
    if reason is not None:
        raise UsageError(
            f"task {task}: the return annotation cannot be carried by JSON: {reason}. "
            "Return plain data, or the place where the result was written"
        )
    pydantic = _pydantic_value(returns)
    if _has_secret_mark(returns) or (pydantic is not None and pydantic.holds_secret):
        raise UsageError(f"task {task}: a result cannot be secret; return where the secret was written")
    return returns


def read_result_codec(returns: Any, types: TypeCodecs) -> ParameterCodec:
    """Return how results with this annotation are written and read."""
    hint = any_for_object(returns)
    pydantic = _pydantic_value(hint)
    decoder = types.make_decoder(hint) if pydantic is None else None
    return ParameterCodec(is_secret=False, pydantic=pydantic, decoder=decoder)


def resolve_annotations(
    fn: Callable[..., Any], local_names: Mapping[str, Any], *, include_extras: bool = True
) -> dict[str, Any]:
    """Return the annotations of `fn`, resolved. NameError if one names something that is not defined yet."""
    names = dict(local_names)
    inner = inspect.unwrap(fn)
    if "Ctx" not in names and "Ctx" not in getattr(inner, "__globals__", {}):
        names["Ctx"] = Ctx  # imported under TYPE_CHECKING only
    return typing.get_type_hints(fn, localns=names, include_extras=include_extras)


def takes_context(fn: Callable[..., Any], local_names: Mapping[str, Any]) -> bool:
    """True if the first parameter is a context. Other annotations need not be resolvable yet."""
    first = next(iter(inspect.signature(fn).parameters.values()), None)
    if first is None:
        return False

    def first_only() -> None: ...  # get_type_hints resolves all annotations of a function, or none

    if first.annotation is not Parameter.empty:
        first_only.__annotations__ = {first.name: first.annotation}
    first_only.__wrapped__ = fn  # type: ignore[attr-defined]  # its globals are used
    try:
        return is_context_annotation(resolve_annotations(first_only, local_names).get(first.name))
    except NameError:
        return False


def is_context_annotation(hint: Any) -> bool:
    """True if this annotation is `Ctx` or a subclass, also as `Ctx | None`."""
    members = (
        [arg for arg in typing.get_args(hint) if arg is not type(None)] if typing.get_args(hint) else [hint]
    )
    return len(members) == 1 and isinstance(members[0], type) and issubclass(members[0], Ctx)


def any_for_object(hint: Any) -> Any:
    """Replace `object` by `Any`: both accept whatever JSON carries."""
    return Any if hint is object else hint
