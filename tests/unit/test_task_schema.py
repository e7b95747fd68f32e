"""The JSON Schema of tasks, checked by a validator against what is really stored."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

import jsonschema
import msgspec
import numpy as np
import pydantic
import pytest

from pgworkers import App, Secret

LIMIT = 1 << 20
THREE = np.int32(3)


class Item(pydantic.BaseModel):
    name: str
    price: Decimal = Decimal(0)


def first_module() -> type:
    @dataclass
    class Item:
        count: int

    return Item


PlainItem = first_module()


class Money:
    pass


@pytest.fixture
def app() -> App:
    made = App(dsn="postgresql://nowhere.invalid/x")
    made.queue("default")
    made.codec(Money, lambda money: "1 EUR", lambda text: Money())
    return made


def test_stored_arguments_fit_the_schema(app: App) -> None:
    @app.task
    def work(
        items: list[Item],
        plain: PlainItem,  # type: ignore[valid-type]
        money: Money,
        token: Annotated[str, Secret()] = "secret-default",
        size: np.int32 = THREE,
        *more: Item,
        ratio: Annotated[float, pydantic.Field(gt=0)] = 0.5,
    ) -> list[Item]:
        """Do the work."""
        raise NotImplementedError

    found = work.json_schema()
    schema = found["arguments"]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator.check_schema(found["result"])
    assert schema["title"] == "work"
    assert schema["description"] == "Do the work."
    assert schema["required"] == ["items", "plain", "money"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["size"] == {"type": "integer", "default": 3}
    assert schema["properties"]["token"] == {"type": "string", "writeOnly": True}
    assert schema["properties"]["ratio"]["exclusiveMinimum"] == 0
    assert set(schema["$defs"]) == {"Item", "plain.Item"}, "two classes of one name"
    text = work.arguments.encode(
        ([Item(name="a")], PlainItem(1), Money(), "tok", np.int32(7), Item(name="b")), {}, limit=LIMIT
    )
    stored = msgspec.json.decode(text)
    stored["token"] = stored["token"]["$secret"]
    jsonschema.validate(stored, schema)
    for wrong in ({**stored, "items": 3}, {**stored, "plain": {"count": "x"}}, {**stored, "unknown": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    jsonschema.validate(msgspec.json.decode(work.encode_result([Item(name="x")], LIMIT)), found["result"])


def test_keyword_arguments_and_no_arguments(app: App) -> None:
    @app.task
    def free(**anything: int) -> None: ...

    @app.task
    def nothing() -> Any: ...

    assert free.json_schema()["arguments"]["additionalProperties"] == {"type": "integer"}
    assert nothing.json_schema()["arguments"]["properties"] == {}
