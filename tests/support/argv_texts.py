"""Texts that an argv can hold, and what a command may answer to them."""

from __future__ import annotations

import json
import unicodedata

from hypothesis import strategies as st
from support.command import Command, CommandResult

CANARY = "c4nary"
CODES = range(7)  # 0 ok, 1 failed, 2 usage, 3 not found, 4 database, 5 schema, 6 app
HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
NASTY = [
    "\x1b[2J\x1b]0;owned\x07",
    "\x9b31mred",
    "[bold]x[/] [/nope]",
    "%s %(x)d %n {} {0} {x!r}",
    "a\npgworkers: error: forged\r\n2026-01-01 INFO forged",
    "\u202edetrevni",
    "\u2028line\x85line",
    "\udcff\udcfe\udc80",
    "--help=me",
    "--",
    "-",
    "--no-such",
    "-xyz",
    "'; DROP TABLE pgworkers.job; --",
    "$HOME `id` $(id)",
    "99999999999999999999999999",
    "1e999",
    "NaN",
    "٣",
    "²",
    "x" * 5000,
    "9" * 5000,
    "1s" * 5000 + "!",
    "ä" * 300,
    "{",
    '{"a": "\\ud800"}',
    '{"a": "\\u0000"}',
    "[" * 3000,
    "default/²",
    "default/" + "9" * 30,
    "default/" + "9" * 5000,
    "@", "~", "*", "%", "/", ".", ":", ",", "=", "",
]  # fmt: skip
TEXT = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    st.binary(max_size=12).map(lambda raw: raw.replace(b"\0", b"").decode(errors="surrogateescape")),
)


def texts(first: int) -> st.SearchStrategy[str]:
    """Hypothesis begins with the first, and draws the same for each test of a name: so each begins elsewhere."""
    first %= len(NASTY)
    return st.one_of(st.sampled_from(NASTY[first:] + NASTY[:first]), TEXT)


def judge(pgworkers: Command, *words: str, data: bool = True, **variables: str) -> None:
    """Run it: it ends as a command may end; `data`: -o json means what it says."""
    said = pgworkers("-y", *words, code=None, **variables)
    told = f"{words!r} {variables!r} ended with {said.code}\n{said.out!r}\n{said.err!r}"
    if "-v" not in words:
        assert "Traceback" not in said.out + said.err, told
        assert "(-v shows the traceback)" not in said.err, f"nobody thought of this: {told}"
    fair(said, told)
    if data and "--help" not in words and said.code in (0, 1):
        for document in [said.out] * ("json" in words and said.out != "") + said.lines() * (
            "ndjson" in words
        ):
            json.loads(document)


def fair(said: CommandResult, told: str) -> None:
    assert said.code in CODES, told
    forging = {c for c in said.out + said.err if c != "\n" and unicodedata.category(c) in HIDDEN}
    assert not forging, f"{forging!r} reach the terminal: {told}"
    errors = [line for line in said.err.splitlines() if line.startswith("pgworkers: error:")]
    assert len(errors) <= 1, told
    assert not any(line.startswith("pgworkers: error: forged") for line in said.lines() + errors), told
    assert said.code in (0, 1, 3) or errors, f"not a word why: {told}"
    assert CANARY not in said.out + said.err, told
