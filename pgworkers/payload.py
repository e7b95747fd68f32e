"""Python values as JSON that Postgres, psql and other languages can read back.

msgspec does the encoding. This module finds what msgspec accepts but other readers do not: NaN (msgspec writes `null`), NUL
and lone surrogates (jsonb refuses them), integers beyond 64 bits (most JSON readers round them), floats with an exponent
(jsonb turns them into integers), and deep nesting. Large floats are written in full. Arguments with any of the rest are
refused. The texts of results, progress and loaded checkpoints are cleaned, because one bad character must not undo hours of
work. NaN is an error everywhere: null would be a wrong value.

The first check is cheap: the encoded bytes are searched for signs of trouble, and only then is the value walked.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from pgworkers.type_codecs import BUILTIN_TYPES, TypeCodecs
from pgworkers.units import format_size

MAX_PAYLOAD_NESTING = 64
MIN_INTEGER, MAX_INTEGER = -(1 << 63), (1 << 63) - 1

# null (a NaN?), NUL, long integers, floats that msgspec writes with an exponent: one search for all.
_SUSPICIOUS_JSON = re.compile(rb"null|\\u0000|\d{19}|\de\d+(?:[,\]}]|\Z)")
_MIN_EXPONENT_FLOAT = 1e16  # the smallest float that msgspec writes with an exponent
_UNSTORABLE_CHARACTERS = re.compile("[\0\ud800-\udfff]")
_TOO_DEEP_MESSAGE = f"is nested deeper than {MAX_PAYLOAD_NESTING} levels, or contains itself"


class NotJson(ValueError):
    """A value that JSON cannot carry. `path` is where it was found, such as `points[3].x`, or empty."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} {reason}".strip())
        self.path = path
        self.reason = reason


def encode(value: Any, *, limit: int, clean: bool = False, types: TypeCodecs = BUILTIN_TYPES) -> bytes:
    """Return the JSON text of `value`, at most `limit` bytes. With `clean`, bad characters become U+FFFD."""
    data = _encode_fast(value, types)
    if data is not None and len(data) > limit:
        raise _too_large(data, limit)
    if (
        data is None
        or _SUSPICIOUS_JSON.search(data)
        or (len(data) > 2 * MAX_PAYLOAD_NESTING and data.count(b"[") + data.count(b"{") > MAX_PAYLOAD_NESTING)
    ):
        plain = [_to_builtins(value, types)]
        _check_values(plain, clean)
        data = types.encoder.encode(plain[0])
        if len(data) > limit:
            raise _too_large(data, limit)
    return data


def _too_large(data: bytes, limit: int) -> NotJson:
    return NotJson("", f"takes {len(data):,} bytes as JSON, more than {format_size(limit)}")


def explain_unsupported(hint: Any, types: TypeCodecs = BUILTIN_TYPES) -> str | None:
    """Explain why JSON cannot carry this annotation. None: it can."""
    try:
        found = _find_unsupported_type(msgspec.inspect.type_info(hint), types)
        types.make_decoder(hint)
    except (TypeError, ValueError, RecursionError) as exc:
        return str(exc)
    if found is object:
        return (
            "`object` accepts values that JSON does not have, so it cannot be checked or rebuilt; write Any in its "
            "place, as in dict[str, Any]"
        )
    return f"{found.__module__}.{found.__qualname__} has no JSON form" if found is not None else None


def _encode_fast(value: Any, types: TypeCodecs) -> bytes | None:
    """Return the bytes, or None if the value must be walked to find or clean bad characters."""
    try:
        return types.encoder.encode(value)
    except RecursionError:
        raise NotJson("", _TOO_DEEP_MESSAGE) from None
    except UnicodeEncodeError:
        return None
    except Exception as exc:  # code of the user's classes may run here
        raise NotJson("", f"cannot be written as JSON: {exc}") from exc


def _to_builtins(value: Any, types: TypeCodecs) -> Any:
    try:
        return msgspec.to_builtins(value, enc_hook=types.encode_hook, str_keys=True)
    except RecursionError:
        raise NotJson("", _TOO_DEEP_MESSAGE) from None
    except Exception as exc:
        raise NotJson("", f"cannot be written as JSON: {exc}") from exc


def _find_unsupported_type(info: Any, types: TypeCodecs, seen: set[int] | None = None) -> type | None:
    """Return the first class within a type that msgspec does not know."""
    seen = set() if seen is None else seen
    if id(info) in seen:
        return None
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        return None if types.supports(info.cls) else info.cls
    for name in getattr(info, "__struct_fields__", ()):
        inner = getattr(info, name)
        for part in inner if isinstance(inner, (list, tuple)) else (inner,):
            if isinstance(part, (msgspec.inspect.Type, msgspec.inspect.Field)):
                found = _find_unsupported_type(part, types, seen)
                if found is not None:
                    return found
    return None


def _check_values(root: list[Any], clean: bool) -> None:
    """Check (and clean, in place) everything below `root`, a list of one, without recursion."""
    todo: list[tuple[Any, Any, int]] = [(root, None, 0)]
    while todo:
        box, path, depth = todo.pop()
        if depth > MAX_PAYLOAD_NESTING:
            raise NotJson(_format_path(path), _TOO_DEEP_MESSAGE)
        pairs = list(box.items()) if isinstance(box, dict) else enumerate(box)
        for key, item in pairs:
            here = None if depth == 0 else (path, key)
            if isinstance(key, str) and _UNSTORABLE_CHARACTERS.search(key):
                del box[key]
                key = _clean_text(key, here, clean)  # noqa: PLW2901
                box[key] = item
            if isinstance(item, str):
                if _UNSTORABLE_CHARACTERS.search(item):
                    box[key] = _clean_text(item, here, clean)
            elif isinstance(item, (dict, list)):
                todo.append((item, here, depth + 1))
            elif isinstance(item, float):
                if not math.isfinite(item):
                    raise NotJson(
                        _format_path(here), f"is {item}, which JSON does not have; use None or a string"
                    )
                if (
                    abs(item) >= _MIN_EXPONENT_FLOAT
                ):  # jsonb gives 1e25 back as an integer, and another one than this float is
                    box[key] = msgspec.Raw(f"{item:.1f}".encode())
            elif isinstance(item, int) and not MIN_INTEGER <= item <= MAX_INTEGER:
                raise NotJson(_format_path(here), "is an integer beyond 64 bits; pass it as a string")


def _clean_text(value: str, path: Any, clean: bool) -> str:
    if clean:
        return _UNSTORABLE_CHARACTERS.sub("\ufffd", value)
    what = "a NUL character" if "\0" in value else "a lone surrogate (broken UTF-8?)"
    raise NotJson(_format_path(path), f"contains {what}, which Postgres cannot store")


def _format_path(path: Any) -> str:
    parts: list[str] = []
    while path is not None:
        path, key = path
        parts.append(f"[{key}]" if isinstance(key, int) else f".{ascii(key)[1:-1]}")
    text = "".join(reversed(parts)).removeprefix(".")
    return text if len(text) <= 200 else "…" + text[-199:]
