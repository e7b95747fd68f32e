"""Values that JSON, Postgres or other readers choke on: a clear error, or for results a cleaned text; never a crash."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from pgworkers import App, ArgumentError, ResultError
from pgworkers.payload import MAX_PAYLOAD_NESTING, NotJson, encode
from pgworkers.task import Task

LIMIT = 1 << 20


@pytest.fixture
def task() -> Task[..., Any]:
    app = App(dsn="postgresql://nowhere.invalid/x")
    app.queue("default")

    @app.task
    def anything(value: Any, other: Any = None) -> Any:
        return value

    return anything


def deep(levels: int, kind: str = "list") -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if kind == "list" else {"k": value}
    return value


def cycle() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


class Raises:
    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise RuntimeError("no")


class Str(str):
    __slots__ = ()


class Float(float):
    pass


class Scalar:
    """Looks like a number of numpy."""

    dtype = "float64"
    shape = ()

    def item(self) -> float:
        return 2.5


@pytest.mark.parametrize("value", [1e16, 1e25, -1e25, float(2**62), 1.7e308, [1e22], {"a": 1e17, "b": 1e-7}])
def test_large_floats_are_written_so_that_jsonb_keeps_them_floats(value: Any) -> None:
    text = encode(value, limit=LIMIT).decode()
    assert not re.search(r"e\d", text)
    assert json.loads(text) == value


#: name -> (the value, what an argument error says, what a result becomes or the error it gives)
HOSTILE: dict[str, tuple[Callable[[], Any], str, Any]] = {
    "nan": (lambda: math.nan, "argument value is nan", "the result is nan"),
    "inf inside": (lambda: {"a": [1, -math.inf]}, "argument value.a[1] is -inf", "result.a[1] is -inf"),
    "nan beside none": (lambda: [None, math.nan], "argument value[1] is nan", "result[1] is nan"),
    "nan in a subclass": (lambda: [Float("nan")], "argument value[0] is nan", "result[0] is nan"),
    "nul": (lambda: "a\0b", "argument value contains a NUL", ["a\ufffdb"]),
    "nul in a key": (lambda: {"a\0": 1}, "argument value.a\\x00 contains a NUL", [{"a\ufffd": 1}]),
    "surrogate": (lambda: ["\ud800"], "argument value[0] contains a lone surrogate", [["\ufffd"]]),
    "surrogate in a key": (lambda: {"\udfff": 1}, "contains a lone surrogate", [{"\ufffd": 1}]),
    "surrogate in a subclass": (lambda: Str("\ud800"), "contains a lone surrogate", ["\ufffd"]),
    "2^70": (
        lambda: 2**70,
        "argument value is an integer beyond 64 bits",
        "the result is an integer beyond 64 bits",
    ),
    "-2^63-1": (lambda: [-(2**63) - 1], "value[0] is an integer beyond", "result[0] is an integer beyond"),
    "2^63": (lambda: {"n": 2**63}, "value.n is an integer beyond", "result.n is an integer beyond"),
    "65 deep": (
        lambda: deep(MAX_PAYLOAD_NESTING + 1),
        "is nested deeper than 64",
        "is nested deeper than 64",
    ),
    "10,000 deep": (lambda: deep(10_000), "argument value is nested deeper", "the result is nested deeper"),
    "10,000 deep objects": (
        lambda: deep(10_000, "dict"),
        "value is nested deeper",
        "the result is nested deeper",
    ),
    "a million deep": (lambda: deep(1_000_000), "value is nested deeper", "the result is nested deeper"),
    "itself": (cycle, "contains itself", "contains itself"),
    "2 MB": (
        lambda: "x" * (2 << 20),
        "argument value takes 2,097,164 bytes",
        "the result takes 2,097,154 bytes",
    ),
    "2 MB of NUL": (lambda: "\0" * (2 << 20), "takes 12,582,924 bytes", "takes 12,582,914 bytes"),
    "object": (object, "objects of type object", "objects of type object"),
    "function": (lambda: print, "objects of type builtin", "objects of type builtin"),
    "generator": (lambda: (i for i in "x"), "objects of type generator", "objects of type generator"),
    "tuple keys": (lambda: {(1, 2): 3}, "argument value cannot be written", "the result cannot be written"),
    "raising object": (Raises, "argument value cannot be written", "the result cannot be written"),
    "exception": (lambda: ValueError("x"), "objects of type ValueError", "objects of type ValueError"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_arguments_are_refused(task: Task[..., Any], name: str) -> None:
    make, said, _ = HOSTILE[name]
    with pytest.raises(ArgumentError) as caught:
        task.arguments.encode((make(),), {}, limit=LIMIT)
    assert said in str(caught.value)
    assert str(caught.value).startswith("anything: ")
    assert str(caught.value).endswith("nothing was enqueued")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_results_are_cleaned_or_refused(task: Task[..., Any], name: str) -> None:
    make, _, becomes = HOSTILE[name]
    if isinstance(becomes, list):
        assert json.loads(task.encode_result(make(), LIMIT)) == becomes[0]
        return
    with pytest.raises(ResultError) as caught:
        task.encode_result(make(), LIMIT)
    assert becomes in str(caught.value)
    assert str(caught.value).startswith("anything: ")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, b"null"),
        ([None, {"a": None}], b'[null,{"a":null}]'),
        (2**63 - 1, b"9223372036854775807"),
        (-(2**63), b"-9223372036854775808"),
        ("9" * 30, b'"' + b"9" * 30 + b'"'),
        ("null", b'"null"'),
        ("\\u0000", b'"\\\\u0000"'),
        (Str("x"), b'"x"'),
        (Float(1.5), b"1.5"),
        (Scalar(), b"2.5"),
        (deep(MAX_PAYLOAD_NESTING), b"[" * MAX_PAYLOAD_NESTING + b"1" + b"]" * MAX_PAYLOAD_NESTING),
        ([[1]] * 100, b"[" + b",".join([b"[1]"] * 100) + b"]"),
        ({"ø": "\u2028"}, '{"ø":"\u2028"}'.encode()),
        ({3: 1, 2.5: 2}, b'{"3":1,"2.5":2}'),
    ],
)
def test_harmless_values_that_look_hostile_pass(value: Any, text: bytes) -> None:
    assert encode(value, limit=LIMIT) == text


def test_cleaned_keys_keep_their_values() -> None:
    assert json.loads(encode({"a\0": 1, "b": "\0"}, limit=LIMIT, clean=True)) == {"a\ufffd": 1, "b": "\ufffd"}


def test_cleaning_leaves_the_handlers_own_value_alone() -> None:
    value = {"a\0": ["\0"]}
    encode(value, limit=LIMIT, clean=True)
    assert value == {"a\0": ["\0"]}


def test_several_arguments_that_are_too_large_only_together(task: Task[..., Any]) -> None:
    with pytest.raises(
        ArgumentError, match=r"the arguments together take 1,200,[0-9]* bytes as JSON, more than 1MB"
    ):
        task.arguments.encode(("x" * 600_000, "y" * 600_000), {}, limit=LIMIT)


def test_the_path_to_the_spot_is_bounded() -> None:
    with pytest.raises(NotJson) as caught:
        encode({"k" * 100_000: math.nan}, limit=LIMIT)
    assert len(str(caught.value)) < 500


def test_a_result_over_the_tasks_own_limit_says_what_to_do() -> None:
    app = App(dsn="postgresql://nowhere.invalid/x")

    @app.task(result_limit="1KB")
    def small() -> str:
        return ""

    assert small.encode_result("x" * 1000, 10)
    with pytest.raises(ResultError, match=r"takes 2,002 bytes.*more than 1KB; return where it was written"):
        small.encode_result("x" * 2000, 1 << 20)
