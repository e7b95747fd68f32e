"""Types that msgspec does not know, as JSON: those of the app (`app.codec`), paths, numbers of numpy, pydantic models.

msgspec calls the two hooks for values and annotations of such types. numpy and pydantic are never imported here: a value or
an annotation of theirs can exist only after the app has imported them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import msgspec

from pgworkers.errors import UsageError

#: What pydantic writes in place of the value of a SecretStr.
PYDANTIC_MASK = "**********"


@dataclass(frozen=True, slots=True)
class TypeCodec:
    """How values of one class are written and read."""

    kind: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class TypeCodecs:
    """The types of one app. `BUILTIN_TYPES` has those that every app can use."""

    def __init__(self) -> None:
        self._codecs: dict[type, TypeCodec] = {}
        self.encoder = msgspec.json.Encoder(enc_hook=self.encode_hook)

    def add(self, kind: type, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
        """Add a class. UsageError if it needs no codec, because its codec would not be used."""
        what = f"app.codec({getattr(kind, '__name__', kind)!s})"
        if not isinstance(kind, type):
            raise UsageError(f"{what}: {kind!r} is not a class")
        if not callable(encode) or not callable(decode):
            raise UsageError(f"{what}: encode and decode must be functions of one value")
        if kind in self._codecs:
            raise UsageError(f"{what}: this class has a codec already; keep one of the two")
        if self.supports(kind) or not _is_unknown_to_msgspec(kind):
            raise UsageError(
                f"{what}: arguments and results of this class are carried without a codec; if one of its fields has a "
                "type that is not, give the type of that field a codec"
            )
        self._codecs[kind] = TypeCodec(kind, encode, decode)

    def find(self, kind: type) -> TypeCodec | None:
        """Return the codec of a class or of its nearest base class."""
        if not self._codecs:
            return None
        return next((codec for base in kind.__mro__ if (codec := self._codecs.get(base))), None)

    def supports(self, kind: Any) -> bool:
        """True if the hooks know this class, which msgspec does not."""
        return isinstance(kind, type) and (
            self.find(kind) is not None
            or issubclass(kind, PurePath)
            or _is_numpy_scalar_type(kind)
            or is_pydantic_model(kind)
        )

    def make_decoder(self, hint: Any) -> msgspec.json.Decoder[Any]:
        """Make a strict decoder for one annotation."""
        return msgspec.json.Decoder(hint, dec_hook=self.decode_hook)

    def encode_hook(self, value: Any) -> Any:
        """Return what is written for a value that msgspec does not know."""
        codec = self.find(type(value))
        if codec is not None:
            return codec.encode(value)
        if isinstance(value, PurePath):
            return os.fspath(value)
        for kind in (str, int, float):
            if isinstance(value, kind):
                return kind(value)
        if hasattr(type(value), "dtype"):
            return _encode_numpy(value)
        if is_pydantic_model(type(value)):
            return _dump_model(value)
        raise NotImplementedError(f"objects of type {type(value).__name__} have no JSON form")

    def decode_hook(self, kind: type, value: Any) -> Any:
        """Make a value of an annotated class from what was written."""
        codec = self.find(kind)
        if codec is not None:
            return codec.decode(value)
        if issubclass(kind, PurePath) and isinstance(value, str):
            return kind(value)
        if _is_numpy_scalar_type(kind):
            return _decode_numpy(kind, value)
        if is_pydantic_model(kind):
            return kind.model_validate_json(msgspec.json.encode(value))  # type: ignore[attr-defined]
        raise ValueError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")


BUILTIN_TYPES = TypeCodecs()


def is_pydantic_model(kind: type) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(kind, pydantic.BaseModel)


def holds_pydantic_mask(value: Any) -> bool:
    """True if pydantic has written a mask in place of a secret value somewhere in this plain value."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            if item == PYDANTIC_MASK:
                return True
        elif isinstance(item, dict):
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)
    return False


def _dump_model(model: Any) -> Any:
    dumped = model.model_dump(mode="json", by_alias=True, round_trip=True)
    if holds_pydantic_mask(dumped):
        raise ValueError(
            f"{type(model).__name__} holds a SecretStr, which pydantic would write as {PYDANTIC_MASK}; annotate the "
            "parameter with the model, so that its real value is passed on"
        )
    return dumped


def _is_unknown_to_msgspec(kind: type) -> bool:
    try:
        return isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)
    except TypeError:
        return False


def _is_numpy_scalar_type(kind: type) -> bool:
    numpy = sys.modules.get("numpy")
    return (
        numpy is not None
        and issubclass(kind, (numpy.bool_, numpy.integer, numpy.floating, numpy.str_, numpy.datetime64))
        and not issubclass(kind, numpy.timedelta64)
    )


def _encode_numpy(value: Any) -> Any:
    if getattr(value, "shape", None) != ():
        raise NotImplementedError(
            f"objects of type {type(value).__name__} have no JSON form; pass .tolist() of a small array, or the path of "
            "a file"
        )
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.datetime64):
        return str(value)
    if numpy is not None and isinstance(value, numpy.timedelta64):
        raise NotImplementedError("objects of type timedelta64 have no JSON form; pass a datetime.timedelta")
    return value.item()


def _decode_numpy(kind: Any, value: Any) -> Any:
    numpy = sys.modules["numpy"]
    accepted: dict[Any, tuple[type, ...]] = {
        numpy.bool_: (bool,),
        numpy.integer: (int,),
        numpy.floating: (int, float),
        numpy.str_: (str,),
        numpy.datetime64: (str,),
    }
    types = next(types for base, types in accepted.items() if issubclass(kind, base))
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise ValueError(f"Expected `{types[-1].__name__}`, got `{type(value).__name__}`")
    if issubclass(kind, numpy.integer) and not numpy.iinfo(kind).min <= value <= numpy.iinfo(kind).max:
        raise ValueError(f"Expected `{kind.__name__}`, got {value}, which it cannot hold")
    return kind(value)
