"""A call becomes JSON and JSON a call again; what does not fit is refused with the parameter's name."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest

from pgworkers import App, ArgumentError, Ctx, UsageError

if TYPE_CHECKING:
    from pgworkers import Ctx as OnlyForCheckers  # noqa: F401

LIMIT = 1 << 20


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: float
    y: float = 0.0


class Box(msgspec.Struct):
    corner: Point
    colours: list[Colour] = []


@dataclass
class Picky:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise RuntimeError("negative")


@pytest.fixture
def app() -> App:
    made = App(dsn="postgresql://nowhere.invalid/x")
    made.queue("default")
    return made


def encode(task: Any, *args: Any, **kwargs: Any) -> bytes:
    text: bytes = task.arguments.encode(args, kwargs, limit=LIMIT)
    return text


def through(app: App, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the handler gets after the journey."""
    task = app.task(fn)
    return task.run_handler(None, encode(task, *args, **kwargs))


MOMENT = datetime(2024, 2, 29, 12, 0, 1, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 7),
        (int, 2**63 - 1),
        (int, -(2**63)),
        (float, 1.5),
        (float, 1e300),
        (bool, True),
        (str, "ø\u2028\U0001f600"),
        (bytes, b"\x00\xff"),
        (datetime, MOMENT),
        (date, date(2024, 2, 29)),
        (timedelta, timedelta(seconds=90)),
        (UUID, UUID(int=5)),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.BLUE),
        (Point, Point(1.0, 2.0)),
        (Box, Box(Point(1.0), [Colour.RED])),
        (Path, Path("/tmp/x")),
        (Literal["a", "b"], "b"),
        (int | None, None),
        (int | str, "x"),
        (list[dict[str, tuple[int, ...]]], [{"a": (1, 2)}]),
        (dict[int, Point], {3: Point(1.0)}),
        (set[int], {1, 2}),
        (Sequence[int], [1, 2]),
        (Mapping[str, Any], {"a": None}),
        (Annotated[int, msgspec.Meta(ge=1)], 1),
        (object, [1, "x", None]),
        (Any, {"deep": [1.5]}),
    ],
)
def test_a_value_arrives_as_it_was_sent(app: App, hint: Any, value: Any) -> None:
    def take(value: Any) -> Any:
        return value

    take.__annotations__["value"] = hint
    arrived = through(app, take, value)
    assert arrived == value
    assert type(arrived) is type(value)


def every_kind(a, b=2, /, c=3, *rest: int, d, e=5, **more: str) -> Any:  # type: ignore[no-untyped-def]
    return a, b, c, rest, d, e, more


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1,), {"d": 4}),
        ((1, 20), {"d": 4, "c": 30}),
        ((1, 20, 30, 40, 50), {"d": 4, "e": 6}),
        ((1,), {"d": 4, "x": "y", "more": "of it"}),
        ((None,), {"d": None}),
    ],
)
def test_every_kind_of_parameter_round_trips(app: App, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert through(app, every_kind, *args, **kwargs) == every_kind(*args, **kwargs)


def test_stored_arguments_are_an_object_of_names_without_defaults(app: App) -> None:
    task = app.task(every_kind)
    assert json.loads(encode(task, 1, d=4, x="y")) == {"a": 1, "d": 4, "x": "y"}
    assert json.loads(encode(task, 1, 2, 3, 9, d=4)) == {"a": 1, "b": 2, "c": 3, "rest": [9], "d": 4}


def test_a_missing_positional_before_a_given_one_takes_its_default(app: App) -> None:
    assert app.task(every_kind).run_handler(None, b'{"a": 1, "rest": [7], "d": 4}') == (
        1,
        2,
        3,
        (7,),
        4,
        5,
        {},
    )


def test_a_context_is_injected_and_not_stored(app: App) -> None:
    def handler(ctx: Ctx, n: int) -> tuple[str, int]:
        return type(ctx).__name__, n

    assert through(app, handler, 3) == ("Ctx", 3)
    assert json.loads(encode(app.tasks["handler"], 3)) == {"n": 3}


def test_a_context_is_recognised_in_every_spelling(app: App) -> None:
    def optional(ctx: Ctx | None, n: int) -> bool:
        return isinstance(ctx, Ctx)

    def text(ctx: Any, n: int) -> bool:
        return isinstance(ctx, Ctx)

    def unimported(ctx: Any, n: int) -> bool:
        return isinstance(ctx, Ctx)

    text.__annotations__["ctx"] = "Ctx"
    unimported.__annotations__["ctx"] = "Ctx"
    unimported = type(unimported)(
        unimported.__code__, {"isinstance": isinstance, "Ctx": Ctx, "int": int}, "unimported"
    )
    unimported.__annotations__.update(ctx="Ctx", n="int")
    assert through(app, optional, 1)
    assert through(app, text, 1)
    assert through(app, unimported, 1)


def test_a_context_imported_for_type_checkers_only_is_recognised(app: App, tmp_path: Path) -> None:
    file = tmp_path / "only_checkers_app.py"
    file.write_text(
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING\n"
        "from pgworkers import App\n"
        "if TYPE_CHECKING:\n    from pgworkers import Ctx\n"
        "app = App()\napp.queue('q')\n"
        "@app.task\ndef job(ctx: Ctx, n: int) -> int:\n    return ctx.attempt + n\n"
    )
    from pgworkers.app_import import import_app

    task = import_app(str(file)).tasks["job"]
    assert task.run_handler(None, b'{"n": 4}') == 5


def test_a_class_defined_after_the_task_is_found_at_first_use(app: App, tmp_path: Path) -> None:
    file = tmp_path / "later_app.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom pgworkers import App\n"
        "app = App()\napp.queue('q')\n"
        "@app.task\ndef job(at: Later) -> int:\n    return at.n\n"
        "@dataclass\nclass Later:\n    n: int\n"
    )
    from pgworkers.app_import import import_app

    assert import_app(str(file)).tasks["job"].run_handler(None, b'{"at": {"n": 4}}') == 4


def test_a_name_that_is_never_defined_is_refused_by_describe(app: App) -> None:
    def job(x: Any) -> None: ...

    job.__annotations__["x"] = "Nowhere"
    app.task(job)
    with pytest.raises(UsageError, match=r"job.*Nowhere.*TYPE_CHECKING"):
        app.describe()


def strict(n: int, when: datetime, colour: Colour = Colour.RED, *, box: Box | None = None) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "missing a required argument: 'n'"),
        ((1, MOMENT, Colour.RED, None), {}, "too many positional"),
        ((1, MOMENT), {"nn": 1}, "there is no argument 'nn'"),
        ((), {"n": 1, "wehn": MOMENT}, "there is no argument 'wehn'; did you mean 'when'?"),
        (("7", MOMENT), {}, "argument n: expected `int`, got `str`"),
        ((True, MOMENT), {}, "argument n: expected `int`, got `bool`"),
        ((1.0, MOMENT), {}, "argument n: expected `int`, got `float`"),
        ((None, MOMENT), {}, "argument n: expected `int`, got `null`"),
        ((1, "tomorrow"), {}, "argument when: invalid RFC3339"),
        ((1, MOMENT, "green"), {}, "argument colour: invalid enum value 'green'"),
        ((1, MOMENT), {"box": Box(Point("x"))}, r"argument box.corner.x: expected `float`, got `str`"),  # type: ignore[arg-type]
        ((object(), MOMENT), {}, "argument n cannot be written as JSON: objects of type object"),
        ((1, MOMENT), {"box": lambda: 1}, "argument box cannot be written as JSON: objects of type function"),
    ],
)
def test_wrong_arguments_name_the_parameter(
    app: App, args: tuple[Any, ...], kwargs: dict[str, Any], said: str
) -> None:
    task = app.task(strict)
    with pytest.raises(ArgumentError) as caught:
        encode(task, *args, **kwargs)
    text = str(caught.value)
    assert text.startswith("strict: ")
    assert said in text
    assert text.endswith("nothing was enqueued")


def test_an_argument_whose_class_refuses_it_is_an_argument_error(app: App) -> None:
    def job(p: Picky) -> None: ...

    task = app.task(job)
    with pytest.raises(ArgumentError, match="RuntimeError: negative"):
        encode(task, {"n": -1})


def test_extra_names_are_checked_against_their_annotation(app: App) -> None:
    with pytest.raises(ArgumentError, match="argument x: expected `str`, got `int`"):
        encode(app.task(every_kind), 1, d=4, x=5)


def test_extra_names_may_not_hide_a_parameter(app: App) -> None:
    def job(ctx: Ctx, a: int, /, **more: Any) -> None: ...

    task = app.task(job)
    for name in ("a", "ctx"):
        with pytest.raises(ArgumentError, match=f"holds '{name}', which is also a parameter"):
            encode(task, 1, **{name: 2})


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (b'{"n": "x", "when": "2024-01-01T00:00:00Z"}', "argument n: expected `int`, got `str`"),
        (b'{"n": 1}', "missing required field `when`"),
        (b'{"n": 1, "when": "2024-01-01T00:00:00Z", "old": 1}', "unknown field `old`"),
        (b"[1]", "expected `object`, got `array`"),
        (b"{", "truncated"),
    ],
)
def test_stored_arguments_that_do_not_fit_do_not_reach_the_handler(
    app: App, stored: bytes, said: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        app.task(strict).run_handler(None, stored)
    assert said in str(caught.value)
    assert "handler was not run" in str(caught.value)


def test_stored_arguments_nested_too_deeply_are_an_argument_error(app: App) -> None:
    with pytest.raises(ArgumentError, match="nested too deeply"):
        app.task(every_kind).run_handler(None, b'{"d": 1, "a":' + b"[" * 100_000)


class Alien:
    pass


@pytest.mark.parametrize(
    "hint",
    [
        Alien,
        list[Alien],
        dict[str, Alien | None],
        complex,
        Callable[[], int],
        type,
        deque[int],
        datetime | str,
        3,
    ],
)
def test_an_annotation_json_cannot_carry_is_refused_at_declaration(app: App, hint: Any) -> None:
    def take(value: Any) -> None: ...

    take.__annotations__["value"] = hint
    with pytest.raises(UsageError, match="take: parameter value cannot be carried by JSON"):
        app.task(take)
    take.__annotations__ = {"return": hint}
    with pytest.raises(UsageError, match="take: the return annotation cannot be carried by JSON"):
        app.task(take)
    assert not app.tasks
