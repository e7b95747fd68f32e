"""Cleaning: what handlers leave behind, made fit for Postgres, without recursion and without surprises."""

from __future__ import annotations

import json
import random

import pytest

from pgworkers.job import sanitize

R = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("value", "limit", "expected"),
    [
        ("plain", 10, "plain"),
        ("", 10, ""),
        ("a\x00b", 10, f"a{R}b"),
        ("\ud800x\udfff", 10, f"{R}x{R}"),
        ("😀" * 5, 5, "😀" * 5),
        ("😀" * 6, 5, "😀" * 4 + "…"),
        ("abc", 0, "…"),
        ("new\nline\ttab", 20, "new\nline\ttab"),
    ],
)
def test_text(value: str, limit: int, expected: str) -> None:
    assert sanitize.clean_text(value, limit) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("two\nlines", "two lines"),
        ("\r\n  forged \x1b[31m\u2028line\x85end\x7f ", "forged  [31m line end"),
        ("\x00", ""),
        ("x" * 400, "x" * 299 + "…"),
        ("\ud800", R),
    ],
)
def test_a_line_is_one_line(value: str, expected: str) -> None:
    assert sanitize.one_line(value) == expected


@pytest.mark.parametrize(
    "raw",
    [
        "1",
        '{"a": [1, 2.5, null, true, "x"]}',
        ' "spaces around" ',
        '"\\ud83d\\ude00"',
        '"\\\\u0000"',
        '"\\\\\\\\ud800"',
        "1180591620717411303424",
        "1e300",
        "-1E-300",
        '"NaN and Infinity in a string, 1e9999 too"',
        '"\u2028 \ufffe \x7f"',
        "[" * 500 + "]" * 500,
        '{"a": 1, "a": 2}',
    ],
)
def test_what_jsonb_takes_is_left_as_it_is(raw: str) -> None:
    assert sanitize.clean_json(raw) == raw
    assert sanitize.clean_json(raw.encode()) == raw


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ('"a\\u0000b"', f"a{R}b"),
        ('{"\\u0000": "\\u0000"}', {R: R}),
        ('"\\ud800"', R),
        ('"\\udc00\\ud800"', R + R),
        ('"\\ud800\\ud83d\\ude00"', f"{R}😀"),
        ('"\\ud800\\n"', f"{R}\n"),
        ('"\\\\\\u0000"', f"\\{R}"),
        ('"\ud800 \x00 raw"', f"{R} {R} raw"),
        (b'"\xff\xfe"', R * 2),
        ('"\x01\n"', "\x01\n"),
        ('"\\q \\u12"', f"{R}q {R}u12"),
        ("[NaN, Infinity, -Infinity, 1]", [None, None, None, 1]),
        ("1e400000", None),
        ("-1e99999999999999999999", None),
        ("[1e-400000, 0.0e-99999, 0e99999, -0e5000]", [0, 0, 0, 0]),
        ("9" * 200_000, None),
        ("0." + "3" * 20_000, 1 / 3),
        ("0." + "0" * 10_000 + "1", 0),
    ],
)
def test_what_jsonb_refuses_is_repaired(raw: str | bytes, value: object) -> None:
    cleaned = sanitize.clean_json(raw)
    assert cleaned is not None
    assert json.loads(cleaned) == value


@pytest.mark.parametrize(
    "raw",
    [
        "",
        " ",
        "nope",
        "{",
        "[1,]",
        "{'a': 1}",
        "01",
        "1 2",
        '"open',
        "]",
        "[" * 501 + "]" * 501,
        "[" * 100_000,
        "\\u0000",
    ],
)
def test_invalid_json_is_none_and_as_a_value_a_string(raw: str) -> None:
    assert sanitize.clean_json(raw) is None
    value = sanitize.clean_json_or_string(raw, 1000)
    assert value is not None
    assert json.loads(value) == sanitize.clean_text(raw, 1000)


def test_none_stays_none() -> None:
    assert sanitize.clean_json(None) is None
    assert sanitize.clean_json_or_string(None) is None


def test_a_long_text_that_needs_cleaning_is_cleaned_whole() -> None:
    raw = '{"a": "' + "x\\u0000" * 200_000 + '"}'
    cleaned = sanitize.clean_json(raw)
    assert cleaned is not None
    assert json.loads(cleaned)["a"] == f"x{R}" * 200_000


def test_random_texts_come_out_as_json_or_none_and_cleaning_twice_changes_nothing() -> None:
    rand = random.Random(7)
    pieces = [
        *'[]{}:,"\\/ \t\n\x00\x01-+.eE0123456789',
        *(
            "\\u0000",
            "\\ud800",
            "\\udc00",
            "\\ud83d\\ude00",
            "NaN",
            "Infinity",
            "true",
            "null",
            "1e999999",
            '"a"',
            "\ud800",
        ),
    ]
    understood = 0
    for _ in range(30_000):
        raw = "".join(rand.choice(pieces) for _ in range(rand.randint(1, 9)))
        cleaned = sanitize.clean_json(raw if rand.random() < 0.5 else f"[{raw}]")
        if cleaned is None:
            continue
        understood += 1
        json.loads(cleaned)
        assert sanitize.clean_json(cleaned) == cleaned
        cleaned.encode("utf-8")
        assert "\\u0000" not in cleaned.replace("\\\\", "")
    assert understood > 500, "the table of pieces no longer makes any JSON"


def test_random_values_survive_unchanged() -> None:
    rand = random.Random(8)

    def value(depth: int) -> object:
        kind = rand.randrange(7 if depth else 5)
        match kind:
            case 0:
                return rand.randint(-(2**70), 2**70)
            case 1:
                return rand.uniform(-1e30, 1e30)
            case 2:
                return "".join(
                    chr(rand.choice([rand.randint(1, 0x2FF), rand.randint(0x1F300, 0x1F600)]))
                    for _ in range(8)
                )
            case 3:
                return rand.choice([True, False, None])
            case 4:
                return rand.choice(["\\u0000", "\\", '"', "NaN", "1e9999"])
            case 5:
                return [value(depth - 1) for _ in range(rand.randrange(4))]
            case _:
                return {str(value(0)): value(depth - 1) for _ in range(rand.randrange(4))}

    for _ in range(3000):
        meant = value(4)
        for ascii_only in (True, False):
            cleaned = sanitize.clean_json(json.dumps(meant, ensure_ascii=ascii_only))
            assert cleaned is not None
            assert json.loads(cleaned) == meant
