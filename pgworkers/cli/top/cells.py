"""The cells of `top`: texts and times that fit their column and cannot control the terminal. Pure."""

from __future__ import annotations

import unicodedata

from rich.cells import cell_len, set_cell_size

from pgworkers.observe.escape import printable
from pgworkers.units import format_duration

#: A line: pieces of text with a style of rich each.
Line = list[tuple[str, str]]


def cell_text(text: str, limit: int = 200) -> str:
    """Text of a job that can neither steer a terminal nor paint outside its cell."""
    shown = printable(text[:limit])
    if shown.isascii():
        return shown
    return "".join(c for c in shown if not unicodedata.category(c).startswith("M"))


def fit_line(line: Line, width: int) -> Line:
    """Exactly `width` cells: cut or filled with blanks."""
    fitted: Line = []
    left = width
    for text, style in line:
        if left <= 0:
            break
        cells = cell_len(text)
        fitted.append((text if cells <= left else set_cell_size(text, left), style))
        left -= min(cells, left)
    if left > 0:
        fitted.append((" " * left, ""))
    return fitted


def pad_cell(text: str, size: int, right: bool) -> str:
    """Exactly `size` cells: a longer text ends in …, a shorter one stands left or right."""
    cells = cell_len(text)
    if cells > size:
        return set_cell_size(text, max(0, size - 1)) + "…" if size else ""
    blank = " " * (size - cells)
    return blank + text if right else text + blank


def short_duration(seconds: float | None) -> str:
    """A time in at most six characters: 0.4s, 42s, 3m12s, 2h05m, 12d."""
    if seconds is None:
        return ""
    if seconds < 0:
        return "0s"
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < 60:
        return f"{seconds:.0f}s"
    text = format_duration(seconds)
    return text if len(text) <= 6 else f"{seconds / 86400:.0f}d"


def wrap_text(body: str, width: int) -> str:
    """A long text for a pane: printable lines that fit, a longer one goes on indented."""
    width = max(width, 20)
    lines: list[str] = []
    for line in body.splitlines():
        rest = cell_text(line, 2000)
        while cell_len(rest) > width:
            piece = set_cell_size(rest, width).rstrip()
            lines.append(piece)
            rest = (
                "      " + rest[len(piece) :].lstrip()
            )  # else blanks as wide as the pane would come back for ever
        lines.append(rest)
    return "\n".join(lines)
