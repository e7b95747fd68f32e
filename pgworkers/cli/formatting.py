"""Format times, arguments and texts of jobs for people. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pgworkers.observe.escape import printable
from pgworkers.units import format_duration

MAX_CELL_CHARACTERS = 200  #: the longest text in a cell of a table
_PROGRESS_KEYS = {"done", "total", "note"}


def relative_time(moment: datetime | None, now: datetime) -> str:
    """`2m ago`, `in 5s`, `now`; empty for None."""
    if moment is None:
        return ""
    away = (now - moment).total_seconds()
    if abs(away) < 1:
        return "now"
    return f"{_largest_unit(away)} ago" if away > 0 else f"in {_largest_unit(-away)}"


def _largest_unit(seconds: float) -> str:
    """A distance in its largest unit, as people say it: 42s, 2m, 3h, 5d."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{int(seconds // unit)}{name}"
    return f"{int(seconds)}s"


def local_time(value: datetime | None) -> str:
    """A time of day in the reader's own zone, with the date."""
    return "" if value is None else value.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def show_duration(seconds: float | timedelta | None) -> str:
    """A duration; empty for None."""
    if seconds is None:
        return ""
    return format_duration(seconds.total_seconds() if isinstance(seconds, timedelta) else seconds)


def show_arguments(args: Mapping[str, Any] | str) -> str:
    """`report_id=7, fmt="png"`; a text says why they cannot be read."""
    if isinstance(args, str):
        return args
    return ", ".join(f"{name}={compact_json(value)}" for name, value in args.items())


def compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def show_progress_value(progress: Any) -> str:
    """`43% (86499 of 199998), page 7`, as `ctx.progress` writes it; anything else as JSON. Empty for None."""
    if progress is None:
        return ""
    done = progress.get("done") if isinstance(progress, Mapping) else None
    if (
        not isinstance(progress, Mapping)
        or not isinstance(done, int | float)
        or progress.keys() - _PROGRESS_KEYS
    ):
        return compact_json(progress)
    total = progress.get("total")
    text = compact_json(done)
    if isinstance(total, int | float) and total > 0:
        text = f"{min(max(done / total, 0), 1):.0%} ({text} of {compact_json(total)})"
    return f"{text}, {progress['note']}" if progress.get("note") else text


def shorten(text: str, limit: int = MAX_CELL_CHARACTERS) -> str:
    """At most `limit` characters of the first line; what was cut shows as an ellipsis."""
    line, _, rest = text.strip().partition("\n")
    if len(line) > limit:
        return line[: limit - 1] + "…"
    return line + " …" if rest.strip() else line


def terminal_safe(text: str, *, should_keep_lines: bool = False) -> str:
    """Escape control characters, so that a text of a job cannot control the terminal."""
    return printable(text, "\n\t" if should_keep_lines else "")


def plural(count: int, word: str) -> str:
    """`1 job`, `10,000 jobs`."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def utcnow() -> datetime:
    return datetime.now(UTC)
