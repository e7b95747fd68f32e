"""How times, arguments and texts from jobs read. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pgworkers.clock import show_seconds
from pgworkers.observe.escape import printable

CELL = 200  #: the longest text in a cell of a table
_PROGRESS = {"done", "total", "note"}


def ago(moment: datetime | None, now: datetime) -> str:
    """`2m ago`, `in 5s`, `now`; empty for None."""
    if moment is None:
        return ""
    away = (now - moment).total_seconds()
    if abs(away) < 1:
        return "now"
    return f"{_rough(away)} ago" if away > 0 else f"in {_rough(-away)}"


def _rough(seconds: float) -> str:
    """A distance in its largest unit, as people say it: 42s, 2m, 3h, 5d."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{int(seconds // unit)}{name}"
    return f"{int(seconds)}s"


def moment(value: datetime | None) -> str:
    """A time of day in the reader's own zone, with the date."""
    return "" if value is None else value.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def lasting(seconds: float | timedelta | None) -> str:
    """A duration; empty for None."""
    if seconds is None:
        return ""
    return show_seconds(seconds.total_seconds() if isinstance(seconds, timedelta) else seconds)


def arguments(args: Mapping[str, Any] | str) -> str:
    """`report_id=7, fmt="png"`; a text says why they cannot be read."""
    if isinstance(args, str):
        return args
    return ", ".join(f"{name}={compact(value)}" for name, value in args.items())


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def progress(said: Any) -> str:
    """`43% (86499 of 199998), page 7`, as `ctx.progress` writes it; anything else as JSON. Empty for None."""
    if said is None:
        return ""
    done = said.get("done") if isinstance(said, Mapping) else None
    if not isinstance(said, Mapping) or not isinstance(done, int | float) or said.keys() - _PROGRESS:
        return compact(said)
    total = said.get("total")
    told = compact(done)
    if isinstance(total, int | float) and total > 0:
        told = f"{min(max(done / total, 0), 1):.0%} ({told} of {compact(total)})"
    return f"{told}, {said['note']}" if said.get("note") else told


def short(text: str, limit: int = CELL) -> str:
    """At most `limit` characters of the first line; what was cut shows as an ellipsis."""
    line, _, rest = text.strip().partition("\n")
    if len(line) > limit:
        return line[: limit - 1] + "…"
    return line + " …" if rest.strip() else line


def plain(text: str, *, lines: bool = False) -> str:
    """Text from a job, unable to steer a terminal: control characters are shown, not sent."""
    return printable(text, "\n\t" if lines else "")


def plural(count: int, word: str) -> str:
    """`1 job`, `10,000 jobs`."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def utcnow() -> datetime:
    return datetime.now(UTC)
