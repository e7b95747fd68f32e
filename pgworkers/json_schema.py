"""The JSON Schema of a task: what its stored arguments and its result look like to SQL and to other languages.

Schemas come from msgspec, or from pydantic for a parameter that mentions it. Types with a codec of the app are described as
any value, because only the codec knows their form.
"""

from __future__ import annotations

from inspect import Parameter
from pathlib import PurePath
from typing import Any

import msgspec

from pgworkers.options.arguments import Arguments, ParameterCodec, any_for_object
from pgworkers.payload import NotJson, encode
from pgworkers.type_codecs import TypeCodecs, is_pydantic_model

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def task_arguments_schema(arguments: Arguments, description: str = "") -> dict[str, Any]:
    """Return the schema of the object of a job's arguments."""
    definitions: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    rest: Any = False
    for name, parameter in arguments.signature.parameters.items():
        hint = any_for_object(parameter.annotation)
        if parameter.kind is Parameter.VAR_KEYWORD:
            rest = _schema(name, hint, arguments.codec_of(name), arguments.types, definitions)
            continue
        if parameter.kind is Parameter.VAR_POSITIONAL:
            hint = list[hint]  # type: ignore[valid-type]
        schema = _schema(name, hint, arguments.codec_of(name), arguments.types, definitions)
        if parameter.kind is not Parameter.VAR_POSITIONAL:
            if parameter.default is Parameter.empty:
                required.append(name)
            elif name not in arguments.secret:
                schema = schema | _default(parameter.default, arguments.types)
        if name in arguments.secret:
            schema = schema | {"writeOnly": True}
        properties[name] = schema
    found: dict[str, Any] = {"$schema": DIALECT, "title": arguments.task, "type": "object"}
    if description:
        found["description"] = description
    found |= {"properties": properties, "required": required, "additionalProperties": rest}
    return found | ({"$defs": definitions} if definitions else {})


def result_schema(task: str, codec: ParameterCodec, arguments: Arguments) -> dict[str, Any]:
    """Return the schema of a task's result."""
    definitions: dict[str, Any] = {}
    schema = _schema("result", any_for_object(arguments.returns), codec, arguments.types, definitions)
    found = {"$schema": DIALECT, "title": f"{task} result"} | schema
    return found | ({"$defs": definitions} if definitions else {})


def _schema(
    name: str, hint: Any, codec: ParameterCodec | None, types: TypeCodecs, definitions: dict[str, Any]
) -> dict[str, Any]:
    """Return the schema of one annotation. The classes that it refers to are added to `definitions`."""
    found, classes = _describe(hint, codec, types, "#/$defs/{%s}")
    if any(definitions.get(key, value) != value for key, value in classes.items()):
        # Another class of the same name is there already.
        found, classes = _describe(hint, codec, types, "#/$defs/" + name + ".{%s}")
        classes = {f"{name}.{key}": value for key, value in classes.items()}
    definitions.update(classes)
    return found


def _describe(
    hint: Any, codec: ParameterCodec | None, types: TypeCodecs, reference: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    if codec is not None and codec.pydantic is not None:
        try:
            schema = codec.pydantic.schema(reference % "model")
        except Exception:  # a type in it has no schema
            return {}, {}
        return schema, schema.pop("$defs", {})

    def describe_custom_type(kind: Any) -> dict[str, Any]:
        return _custom_type_schema(kind, types)

    (schema,), classes = msgspec.json.schema_components(
        (hint,), schema_hook=describe_custom_type, ref_template=reference % "name"
    )
    return schema, classes


def _custom_type_schema(kind: Any, types: TypeCodecs) -> dict[str, Any]:
    if types.find(kind) is not None:
        return {"title": kind.__name__}
    if issubclass(kind, PurePath):
        return {"type": "string", "format": "path"}
    if is_pydantic_model(kind):
        schema: dict[str, Any] = kind.model_json_schema()
        return schema
    for letters, found in (("b", "boolean"), ("iu", "integer"), ("f", "number")):
        if getattr(_numpy_dtype(kind), "kind", "") in letters:
            return {"type": found}
    return {"type": "string"}


def _numpy_dtype(kind: Any) -> Any:
    import sys

    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.dtype(kind)


def _default(value: Any, types: TypeCodecs) -> dict[str, Any]:
    try:
        return {"default": msgspec.json.decode(encode(value, limit=10_000, types=types))}
    except NotJson:
        return {}
