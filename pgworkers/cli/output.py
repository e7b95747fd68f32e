"""Rows as a table, as one JSON document, or as NDJSON.

A table on a terminal is drawn by rich and fits its width. Anywhere else it is plain: aligned columns, no
colours, nothing cut to a width, so that grep and awk see all of it.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import click

from pgworkers.cli.invocation import Invocation
from pgworkers.cli.wording import plain
from pgworkers.observe.escape import json_data, json_text

#: A column: its heading and how a row's cell reads.
Column = tuple[str, Callable[[Any], str]]
_COLOURS = {
    "succeeded": "green",
    "dead": "red",
    "cancelled": "magenta",
    "running": "cyan",
    "claimed": "cyan",
    "scheduled": "yellow",
    "suspended": "magenta",
}
_NUMBERS = frozenset(
    {"id", "pid", "priority", "ready", "scheduled", "running", "dead", "workers", "jobs", "master"}
)
#: Columns of free text: the ones that are shortened when a terminal is narrow, down to _LEAST.
_TEXTS = frozenset({"arguments", "error", "result", "meaning", "queues"})
_LEAST = 12
_GAP = 3  #: blanks between two columns that rich draws


def rows(
    said: Invocation, found: Sequence[Any], columns: Sequence[Column], *, empty: str, key: str | None = None
) -> None:
    """Print rows the way `-o` says; `-q` prints only the column `key` of each."""
    if said.output == "json":
        document([record(row) for row in found])
    elif said.output == "ndjson":
        for row in found:
            line(row)
    elif said.quiet and key is not None:
        for row in found:
            say(str(record(row)[key]))
    elif not found:
        note(said, empty)
    else:
        cells = [[plain(cell(row)) for _, cell in columns] for row in found]
        headings = [heading for heading, _ in columns]
        if sys.stdout.isatty():
            _drawn(headings, cells)
        else:
            say("\n".join(aligned(headings, cells)), lines=True)


def record(row: Any) -> dict[str, Any]:
    """A row as JSON sees it."""
    if is_dataclass(row) and not isinstance(row, type):
        return asdict(row)
    if isinstance(row, Mapping):
        return dict(row)
    import msgspec

    found = msgspec.to_builtins(row)
    assert isinstance(found, dict)
    return found


def document(found: Any) -> None:
    """One JSON document."""
    import msgspec

    click.echo(json_text(msgspec.json.format(json_data(found), indent=2).decode(), "\n"))


def line(row: Any) -> None:
    """One line of NDJSON."""
    value(record(row))


def value(found: Any) -> None:
    """Any value as JSON in one line."""
    click.echo(json_text(json_data(found).decode()))


def say(text: str, *, lines: bool = False, head: str = "", colour: str | None = None) -> None:
    """What was asked for, to stdout: one line, whatever is in it, or all its lines. A terminal shows `head` in colour."""
    click.echo((click.style(plain(head), fg=colour) if head else "") + plain(text, lines=lines))


def script(text: str) -> None:
    """A file for another program, to stdout."""
    click.echo(plain(text, lines=True), nl=False)


def note(said: Invocation, text: str) -> None:
    """Something worth knowing that is not data: to stderr, and silent with -q."""
    if not said.quiet:
        click.echo(plain(text), err=True)


def warn(said: Invocation, text: str) -> None:
    note(said, f"pgworkers: warning: {text}")


def aligned(headings: Sequence[str], cells: Iterable[Sequence[str]]) -> list[str]:
    """Columns padded to their widest cell, two spaces apart, no trailing blanks."""
    table = [[heading.upper() for heading in headings], *cells]
    widths = [max(map(_width, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            " " * (width - _width(cell)) + cell
            if heading in _NUMBERS
            else cell + " " * (width - _width(cell))
            for heading, cell, width in zip(headings, row, widths, strict=True)
        ).rstrip()
        for row in table
    ]


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def fitted(headings: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """The cells, with the long texts among them shortened so that a line fits the width, if that is enough."""
    widths = [max(map(_width, column)) for column in zip(headings, *cells, strict=True)]
    over = sum(widths) + _GAP * len(widths) - width
    for at in sorted(range(len(widths)), key=lambda at: -widths[at]):
        if over > 0 and headings[at] in _TEXTS:
            cut = min(over, max(0, widths[at] - _LEAST))
            widths[at] -= cut
            over -= cut
    return [
        [cell if _width(cell) <= most else _cut(cell, most) for cell, most in zip(row, widths, strict=True)]
        for row in cells
    ]


def _cut(text: str, most: int) -> str:
    while text and _width(text) > most - 1:
        text = text[: min(len(text) - 1, most - 1)]
    return text + "…"


def _drawn(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False)
    filled = [
        at for at in range(len(headings)) if any(row[at] for row in cells)
    ]  # an empty column is only noise
    headings, cells = [headings[at] for at in filled], [[row[at] for at in filled] for row in cells]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in _NUMBERS else "left", no_wrap=True)
    for row in fitted(headings, cells, console.width):
        styles = (
            _COLOURS.get(cell, "") if at == "state" else "" for at, cell in zip(headings, row, strict=True)
        )
        table.add_row(*(Text(cell, style=style) for cell, style in zip(row, styles, strict=True)))
    console.print(table)
