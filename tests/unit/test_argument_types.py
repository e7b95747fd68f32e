"""Arguments and results: pydantic, attrs, dataclasses, msgspec, numpy, and types of the app itself."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, is_typeddict
from uuid import UUID

import attrs
import msgspec
import numpy as np
import pydantic
import pytest
from pydantic.dataclasses import dataclass as pydantic_dataclass

from pgworkers import App, ArgumentError, ResultError, Task, UsageError
from pgworkers.errors import StoredArgumentsError

LIMIT = 1 << 20


class Address(pydantic.BaseModel):
    street: str
    zip_code: str = pydantic.Field(alias="zipCode")


class Customer(pydantic.BaseModel):
    name: str
    addresses: list[Address] = []
    since: datetime
    balance: Decimal = Decimal(0)
    website: pydantic.HttpUrl | None = None

    @pydantic.computed_field
    def initials(self) -> str:
        return self.name[:1]


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


@pydantic_dataclass
class Size:
    width: Annotated[int, pydantic.Field(gt=0)]


@attrs.define
class Crate:
    weight: int = attrs.field(validator=attrs.validators.gt(0))
    labels: list[str] = attrs.field(factory=list)


@attrs.define
class Shipment:
    crates: list[Crate]
    customer: Customer


@dataclass
class Order:
    id: UUID
    lines: dict[str, Decimal] = field(default_factory=dict)


@dataclass
class Visit:
    pet: Dog
    at: datetime


class Row(TypedDict):
    key: str
    owner: Dog


class Pair(NamedTuple):
    left: Path
    right: bytes


class Circle(msgspec.Struct, tag="circle"):
    radius: float


class Square(msgspec.Struct, tag="square"):
    side: float


class Money:
    """A type of the app that nothing knows."""

    def __init__(self, cents: int, currency: str) -> None:
        self.cents, self.currency = cents, currency

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class Tip(Money):
    """A subclass, which is written by the codec of its base class."""


def write_money(money: Money) -> list[Any]:
    return [money.cents, money.currency]


def read_money(value: Any) -> Money:
    cents, currency = value
    if not isinstance(cents, int):
        raise ValueError("cents must be a whole number")
    return Money(cents, currency)


NOON = datetime(2030, 1, 2, 12, tzinfo=UTC)
ANNA = Customer(
    name="Anna",
    addresses=[Address(street="Long Lane", zipCode="04711")],
    since=NOON,
    balance=Decimal("12.50"),
    website=pydantic.HttpUrl("https://example.com/"),
)


@pytest.fixture
def app() -> App:
    made = App(dsn="postgresql://nowhere.invalid/x")
    made.queue("default")
    made.codec(Money, write_money, read_money)
    return made


def declare(app: App, hint: Any) -> Task[..., Any]:
    """A task whose argument and result have this type."""

    def work(value: Any) -> Any: ...

    work.__annotations__ = {"value": hint, "return": hint}
    return app.task(work)


CASES: list[tuple[Any, Any]] = [
    (Customer, ANNA),
    (list[Customer], [ANNA, ANNA]),
    (dict[str, Customer | None], {"a": ANNA, "b": None}),
    (Customer | None, None),
    (Pet, Cat(lives=3)),
    (list[Pet], [Cat(), Dog(name="Rex")]),
    (Cat | int, 7),
    (pydantic.RootModel[list[int]], pydantic.RootModel[list[int]]([1, 2])),
    (Annotated[int, pydantic.Field(ge=1)], 1),
    (pydantic.HttpUrl, pydantic.HttpUrl("https://example.com/x")),
    (Size, Size(width=3)),
    (Visit, Visit(Dog(name="Rex"), NOON)),
    (Row, {"key": "x", "owner": Dog(name="Rex")}),
    (Crate, Crate(3, ["a"])),
    (Shipment, Shipment([Crate(1)], ANNA)),
    (Order, Order(UUID(int=1), {"a": Decimal("0.10")})),
    (list[Order], [Order(UUID(int=1))]),
    (Pair, Pair(Path("/tmp/x"), b"\x00\xff")),
    (Circle | Square, Square(2.0)),
    (dict[str, Circle | Square], {"a": Circle(1.0)}),
    (PurePosixPath, PurePosixPath("a/b")),
    (bytes, b"\x00\xfe binary"),
    (Decimal, Decimal("0.1000")),
    (set[int], {1, 2}),
    (Annotated[int, msgspec.Meta(gt=0)], 1),
    (np.float32, np.float32(1.5)),
    (np.int64, np.int64(-7)),
    (np.uint8, np.uint8(200)),
    (np.bool_, np.bool_(True)),
    (np.datetime64, np.datetime64("2030-01-02T12:00:00.000000001")),
    (list[np.float64], [np.float64(0.5)]),
    (int, np.int32(7)),
    (float, np.float64(7.5)),
    (Money, Money(100, "EUR")),
    (list[Money], [Money(1, "EUR"), Money(2, "USD")]),
    (dict[str, Money | None], {"a": None, "b": Money(5, "EUR")}),
]


@pytest.mark.parametrize(("hint", "value"), CASES, ids=lambda part: str(part)[:40])
def test_a_value_arrives_as_the_annotated_type(app: App, hint: Any, value: Any) -> None:
    task = declare(app, hint)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = task.arguments.encode((value,), {}, limit=LIMIT)
        assert text == task.arguments.encode((), {"value": value}, limit=LIMIT)
        args, kwargs = task.arguments.decode(text)
        found = [*args, *kwargs.values()][0]
        assert found == value
        if isinstance(hint, type) and not is_typeddict(hint):
            assert type(found) is hint
        assert task.decode_result(task.encode_result(value, LIMIT)) == value


def test_a_model_is_stored_by_alias_and_without_computed_fields(app: App) -> None:
    text = declare(app, Customer).arguments.encode((ANNA,), {}, limit=LIMIT)
    stored = msgspec.json.decode(text)["value"]
    assert stored == {
        "name": "Anna",
        "addresses": [{"street": "Long Lane", "zipCode": "04711"}],
        "since": "2030-01-02T12:00:00Z",
        "balance": "12.50",
        "website": "https://example.com/",
    }


def test_models_in_every_kind_of_parameter(app: App) -> None:
    @app.task
    def work(first: Cat, /, *more: Pet, key: Dog, **rest: Cat) -> None: ...

    text = work.arguments.encode(
        (Cat(lives=1), Cat(lives=2), Dog(name="a")), {"key": Dog(name="b"), "x": Cat(lives=3)}, limit=LIMIT
    )
    args, kwargs = work.arguments.decode(text)
    assert args == (Cat(lives=1), Cat(lives=2), Dog(name="a"))
    assert kwargs == {"key": Dog(name="b"), "x": Cat(lives=3)}
    with pytest.raises(ArgumentError, match=r"argument x.lives: input should be a valid integer"):
        work.arguments.encode((Cat(),), {"key": Dog(name="b"), "x": {"lives": "many"}}, limit=LIMIT)


@pytest.mark.parametrize(
    ("hint", "value", "said"),
    [
        (list[Pet], [{"kind": "cow"}], r"argument value\[0\]: input tag 'cow'"),
        (Customer, {"name": "x"}, r"argument value.since: field required"),
        (Annotated[int, pydantic.Field(gt=0)], 0, "argument value: input should be greater than 0"),
        (Crate, {"weight": 0}, "argument value"),
        (np.uint8, 300, "argument value"),
        (np.int32, 1.5, "argument value: expected `int`, got `float`"),
        (np.int32, True, "argument value: expected `int`, got `bool`"),
        (np.float64, "1", "argument value: expected `float`, got `str`"),
        (Money, ["x", "EUR"], "argument value: cents must be a whole number"),
        (Circle | Square, {"type": "line"}, "argument value"),
        (list[float], np.zeros(3), "pass .tolist\\(\\) of a small array, or the path of a file"),
        (float, np.timedelta64(1, "s"), "pass a datetime.timedelta"),
        (Any, {1 + 2j}, "objects of type complex have no JSON form"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_at_the_enqueue(
    app: App, hint: Any, value: Any, said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        declare(app, hint).arguments.encode((value,), {}, limit=LIMIT)


@pytest.mark.parametrize("stored", [b'{"value":{"kind":"cow"}}', b'{"value":7}', b'{"value":null}', b"{}"])
def test_stored_json_that_does_not_fit_a_model_does_not_reach_the_handler(app: App, stored: bytes) -> None:
    with pytest.raises(StoredArgumentsError, match="the stored arguments do not fit"):
        declare(app, Pet).arguments.decode(stored)


def test_a_result_of_another_shape_is_refused_by_the_reader(app: App) -> None:
    task = declare(app, Pet)
    with pytest.raises(ResultError, match="does not fit the return annotation"):
        task.decode_result(b'{"kind":"cow"}')


def test_object_in_an_annotation_is_explained_with_the_fix(app: App) -> None:
    with pytest.raises(
        UsageError, match=r"parameter value .* write Any in its place, as in dict\[str, Any\]"
    ):
        declare(app, dict[str, object])


@pytest.mark.parametrize("hint", [complex, np.ndarray, Money, list[Money], Money | str, type])
def test_an_unknown_type_is_refused_with_the_ways_out(hint: Any) -> None:
    app = App(dsn="postgresql://nowhere.invalid/x")
    app.queue("default")
    with pytest.raises(UsageError, match=r"app\.codec\(Type, encode, decode\)"):
        declare(app, hint)


class Holder(pydantic.BaseModel):
    model_config = {"arbitrary_types_allowed": True}
    money: Money


def test_a_model_that_pydantic_cannot_write_is_refused_at_the_enqueue(app: App) -> None:
    task = declare(app, Holder)
    with pytest.raises(ArgumentError, match="argument value"):
        task.arguments.encode((Holder(money=Money(1, "EUR")),), {}, limit=LIMIT)


def test_codecs_that_would_not_be_used_are_refused(app: App) -> None:
    for kind in (Order, Crate, Cat, int, Path, np.float32, Circle):
        with pytest.raises(UsageError, match="carried without a codec"):
            app.codec(kind, str, kind)
    with pytest.raises(UsageError, match="has a codec already"):
        app.codec(Money, write_money, read_money)
    with pytest.raises(UsageError, match="is not a class"):
        app.codec("Money", str, str)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must be functions"):
        app.codec(complex, None, complex)  # type: ignore[arg-type]


def test_a_subclass_is_written_by_the_codec_of_its_base(app: App) -> None:
    text = declare(app, Any).arguments.encode((Tip(5, "EUR"),), {}, limit=LIMIT)
    assert msgspec.json.decode(text) == {"value": [5, "EUR"]}


def test_apps_do_not_share_codecs(app: App) -> None:
    other = App(dsn="postgresql://nowhere.invalid/x")
    other.queue("default")
    with pytest.raises(ArgumentError, match="objects of type Money have no JSON form"):
        declare(other, Any).arguments.encode((Money(1, "EUR"),), {}, limit=LIMIT)


def test_a_codec_that_raises_is_an_argument_error() -> None:
    app = App(dsn="postgresql://nowhere.invalid/x")
    app.queue("default")

    def broken(money: Money) -> Any:
        raise RuntimeError("no rates today")

    app.codec(Money, broken, read_money)
    with pytest.raises(ArgumentError, match="no rates today; nothing was enqueued"):
        declare(app, Money).arguments.encode((Money(1, "EUR"),), {}, limit=LIMIT)
