"""Arguments and results whose annotation mentions pydantic: pydantic itself writes, checks and rebuilds them.

msgspec cannot read unions of models, `Field(...)` in an annotation, or types such as `HttpUrl`. So the whole annotation of
such a parameter is given to a pydantic `TypeAdapter`. pydantic is never imported here: only an app that has imported it can
mention it.

A `SecretStr` is written with its real value, because the handler needs it. Parameters that hold one are secret
(`secret_arguments`).
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from typing import Any

from pgworkers.payload import NotJson
from pgworkers.type_codecs import holds_pydantic_mask

_PYDANTIC_ATTRIBUTES = (
    "__pydantic_core_schema__",
    "__pydantic_validator__",
    "__get_pydantic_core_schema__",
)
_PYDANTIC_PACKAGES = ("pydantic", "annotated_types", "pydantic_extra_types")


def mentions_pydantic(hint: Any) -> bool:
    """True if an annotation has a part that only pydantic understands."""
    return "pydantic" in sys.modules and _mentions_pydantic(hint, set())


class UnsupportedByPydantic(TypeError):
    """pydantic cannot make a schema of an annotation."""


class PydanticValue:
    """One annotation, read and written by pydantic."""

    def __init__(self, hint: Any) -> None:
        pydantic = sys.modules["pydantic"]
        try:
            self._adapter = pydantic.TypeAdapter(hint)
            self._adapter.rebuild(raise_errors=True)  # a model may name a class that is defined later
        except pydantic.errors.PydanticUndefinedAnnotation as exc:
            raise NameError(str(exc)) from None
        except pydantic.errors.PydanticUserError as exc:
            raise UnsupportedByPydantic(exc.message) from None
        self._error = pydantic.ValidationError
        self._secret_types = (pydantic.SecretStr, pydantic.SecretBytes)
        self.holds_secret = _has_secret_schema(self.schema_or_none())

    def dump(self, value: Any) -> Any:
        """Return plain data. A value that is not of the annotated type is returned as it is: the check refuses it."""
        options: dict[str, Any] = {"by_alias": True, "round_trip": True, "warnings": "error"}
        try:
            plain = self._adapter.dump_python(value, mode="json", **options)
        except Exception:
            return value
        if holds_pydantic_mask(plain):
            return self._reveal(plain, self._adapter.dump_python(value, mode="python", **options))
        return plain

    def load(self, raw: bytes) -> Any:
        """Rebuild a value. ValueError describes the part that does not fit, without the value that was found."""
        try:
            return self._adapter.validate_json(raw)
        except self._error as exc:
            first = exc.errors(include_input=False, include_url=False, include_context=False)[0]
            raise ValueErrorAt(tuple(first["loc"]), first["msg"]) from None

    def schema(self, ref_template: str) -> dict[str, Any]:
        """Return the JSON Schema of what is stored."""
        found: dict[str, Any] = self._adapter.json_schema(ref_template=ref_template, mode="validation")
        return found

    def schema_or_none(self) -> dict[str, Any] | None:
        try:
            return self.schema("#/$defs/{model}")
        except Exception:  # custom types need not have a schema
            return None

    def _reveal(self, plain: Any, value: Any) -> Any:
        """Replace the masks in `plain` by the secrets at the same place in `value`."""
        if isinstance(value, self._secret_types):
            found = value.get_secret_value()
            return found.decode() if isinstance(found, bytes) else found
        if isinstance(plain, dict) and isinstance(value, dict) and len(plain) == len(value):
            return {
                key: self._reveal(part, whole)
                for (key, part), whole in zip(plain.items(), value.values(), strict=True)
            }
        if isinstance(plain, list) and isinstance(value, (list, tuple)) and len(plain) == len(value):
            return [self._reveal(part, whole) for part, whole in zip(plain, value, strict=True)]
        if holds_pydantic_mask(plain) and plain != value:
            raise NotJson(
                "", "holds a SecretStr where its value cannot be found; use a list or a dict around it"
            )
        return plain


class ValueErrorAt(ValueError):
    """A value that does not fit, and where."""

    def __init__(self, location: tuple[int | str, ...], reason: str) -> None:
        super().__init__(reason)
        self.location = location


def _mentions_pydantic(hint: Any, seen: set[int]) -> bool:
    if id(hint) in seen:
        return False
    seen.add(id(hint))
    metadata = getattr(hint, "__metadata__", ())
    if any(type(part).__module__.partition(".")[0] in _PYDANTIC_PACKAGES for part in metadata):
        return True
    inner = getattr(hint, "__value__", None) or getattr(hint, "__supertype__", None)
    if inner is not None and not isinstance(hint, type):
        return _mentions_pydantic(inner, seen)
    if any(_mentions_pydantic(part, seen) for part in typing.get_args(hint)):
        return True
    if not isinstance(hint, type):
        return False
    if any(hasattr(hint, name) for name in _PYDANTIC_ATTRIBUTES):
        return True
    if dataclasses.is_dataclass(hint) or typing.is_typeddict(hint) or hasattr(hint, "_fields"):
        try:
            fields = typing.get_type_hints(hint, include_extras=True)
        except (NameError, TypeError):
            return False
        return any(_mentions_pydantic(part, seen) for part in fields.values())
    return False


def _has_secret_schema(schema: Any) -> bool:
    """True if a part of the schema is that of a SecretStr or SecretBytes."""
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            if part.get("format") == "password" and part.get("writeOnly"):
                return True
            todo.extend(part.values())
        elif isinstance(part, list):
            todo.extend(part)
    return False
