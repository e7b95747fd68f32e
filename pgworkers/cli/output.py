"""Print rows as a table, as one JSON document, or as NDJSON; and the progress of bulk work.

A table on a terminal is drawn by rich and fits its width. Elsewhere it is plain: aligned columns, no colours, nothing
shortened, so that grep and awk see everything. Progress goes to stderr: a bar on a terminal, a line every few seconds
elsewhere, nothing with -q.
"""

from __future__ import annotations

import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import Any

import click

from pgworkers.cli.formatting import terminal_safe
from pgworkers.cli.invocation import Invocation, OutputFormat
from pgworkers.observe.escape import encode_json, escape_json

#: A column: its heading and how a row's cell reads.
Column = tuple[str, Callable[[Any], str]]
_STATE_COLOURS = {
    "succeeded": "green",
    "dead": "red",
    "cancelled": "magenta",
    "running": "cyan",
    "claimed": "cyan",
    "scheduled": "yellow",
    "suspended": "magenta",
}
_NUMBER_COLUMNS = frozenset(
    {"id", "pid", "priority", "ready", "scheduled", "running", "dead", "workers", "jobs", "master"}
)
#: Columns of free text: the ones that are shortened when a terminal is narrow, down to _LEAST.
_TEXT_COLUMNS = frozenset({"arguments", "error", "result", "meaning", "queues"})
_MIN_TEXT_CHARACTERS = 12
_COLUMN_GAP_CHARACTERS = 3  #: blanks between two columns that rich draws


def print_rows(
    invocation: Invocation,
    found: Sequence[Any],
    columns: Sequence[Column],
    *,
    if_empty: str,
    quiet_column: str | None = None,
) -> None:
    """Print rows in the format of `-o`. With `-q`, print only `quiet_column` of each."""
    if invocation.output == OutputFormat.JSON:
        print_json([as_record(row) for row in found])
    elif invocation.output == OutputFormat.NDJSON:
        for row in found:
            print_json_line(row)
    elif invocation.is_quiet and quiet_column is not None:
        for row in found:
            print_text(str(as_record(row)[quiet_column]))
    elif not found:
        print_note(invocation, if_empty)
    else:
        cells = [[terminal_safe(cell(row)) for _, cell in columns] for row in found]
        headings = [heading for heading, _ in columns]
        if sys.stdout.isatty():
            _print_rich_table(headings, cells)
        else:
            print_text("\n".join(align_columns(headings, cells)), should_keep_lines=True)


def print_record(invocation: Invocation, row: Any) -> None:
    """Print one record as JSON, indented with `-o json` and in one line with `-o ndjson`."""
    if invocation.output == OutputFormat.JSON:
        print_json(as_record(row))
    else:
        print_json_line(row)


def as_record(row: Any) -> dict[str, Any]:
    """A row as a dict for JSON."""
    if is_dataclass(row) and not isinstance(row, type):
        return asdict(row)
    if isinstance(row, Mapping):
        return dict(row)
    import msgspec

    found = msgspec.to_builtins(row)
    assert isinstance(found, dict)
    return found


def print_json(found: Any) -> None:
    """Print one JSON document."""
    import msgspec

    click.echo(escape_json(msgspec.json.format(encode_json(found), indent=2).decode(), "\n"))


def print_json_line(row: Any) -> None:
    """Print one line of NDJSON."""
    print_json_value(as_record(row))


def print_json_value(found: Any) -> None:
    """Print any value as JSON in one line."""
    click.echo(escape_json(encode_json(found).decode()))


def print_text(
    text: str, *, should_keep_lines: bool = False, head: str = "", colour: str | None = None
) -> None:
    """Print requested data to stdout, as one line or with its lines. A terminal shows `head` in colour."""
    click.echo(
        (click.style(terminal_safe(head), fg=colour) if head else "")
        + terminal_safe(text, should_keep_lines=should_keep_lines)
    )


def print_script(text: str) -> None:
    """Print a file for another program to stdout."""
    click.echo(terminal_safe(text, should_keep_lines=True), nl=False)


def print_note(invocation: Invocation, text: str) -> None:
    """Print a note to stderr, unless -q is given."""
    if not invocation.is_quiet:
        click.echo(terminal_safe(text), err=True)


def print_warning(invocation: Invocation, text: str) -> None:
    print_note(invocation, f"pgworkers: warning: {text}")


def align_columns(headings: Sequence[str], cells: Iterable[Sequence[str]]) -> list[str]:
    """Columns padded to their widest cell, two spaces apart, no trailing blanks."""
    table = [[heading.upper() for heading in headings], *cells]
    widths = [max(map(_cell_width, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            " " * (width - _cell_width(cell)) + cell
            if heading in _NUMBER_COLUMNS
            else cell + " " * (width - _cell_width(cell))
            for heading, cell, width in zip(headings, row, widths, strict=True)
        ).rstrip()
        for row in table
    ]


def _cell_width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def fit_columns(headings: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """The cells, with the long texts among them shortened so that a line fits the width, if that is enough."""
    widths = [max(map(_cell_width, column)) for column in zip(headings, *cells, strict=True)]
    over = sum(widths) + _COLUMN_GAP_CHARACTERS * len(widths) - width
    for at in sorted(range(len(widths)), key=lambda at: -widths[at]):
        if over > 0 and headings[at] in _TEXT_COLUMNS:
            cut = min(over, max(0, widths[at] - _MIN_TEXT_CHARACTERS))
            widths[at] -= cut
            over -= cut
    return [
        [
            cell if _cell_width(cell) <= max_width else _cut(cell, max_width)
            for cell, max_width in zip(row, widths, strict=True)
        ]
        for row in cells
    ]


def _cut(text: str, max_width: int) -> str:
    while text and _cell_width(text) > max_width - 1:
        text = text[: min(len(text) - 1, max_width - 1)]
    return text + "…"


def _print_rich_table(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
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
        table.add_column(heading, justify="right" if heading in _NUMBER_COLUMNS else "left", no_wrap=True)
    for row in fit_columns(headings, cells, console.width):
        styles = (
            _STATE_COLOURS.get(cell, "") if at == "state" else ""
            for at, cell in zip(headings, row, strict=True)
        )
        table.add_row(*(Text(cell, style=style) for cell, style in zip(row, styles, strict=True)))
    console.print(table)


PROGRESS_LINE_SECONDS = 5.0


@contextmanager
def show_progress(invocation: Invocation, label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yields `done(n)`, to be called with the number of rows done so far."""
    if invocation.is_quiet:
        yield lambda done: None
    elif sys.stderr.isatty():
        with _progress_bar(label, total) as done:
            yield done
    else:
        yield _progress_lines(label, total)


@contextmanager
def _progress_bar(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.update(task, completed=done)


def _progress_lines(label: str, total: int | None) -> Callable[[int], None]:
    said_at = time.monotonic()

    def done(count: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= PROGRESS_LINE_SECONDS:
            said_at = time.monotonic()
            print(f"{label} {count:,}" + (f" of {total:,}" if total else ""), file=sys.stderr, flush=True)

    return done
