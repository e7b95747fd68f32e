"""Look: what the leader has to do, and when, in one statement."""

from __future__ import annotations

from typing import Any

from pgworkers.postgres.statements import Query, Statement

_LOOK = Statement.beside(__file__, "look")

#: The duties that are performed when a look says so.
SEEN = ("promote", "ticks", "expire", "link", "batches", "split")


def look() -> Query[dict[str, float | None]]:
    """In how many seconds each of these duties has something to do; None: nothing that is known."""

    def read(rows: list[tuple[Any, ...]]) -> dict[str, float | None]:
        return {
            name: None if within is None else float(within)
            for name, within in zip(SEEN, rows[0], strict=True)
        }

    return Query(_LOOK, {}, read)
