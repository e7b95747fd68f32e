"""Asleep: of which queues a host wants to be notified. Nobody else is; see docs/adr/1102."""

from __future__ import annotations

from collections.abc import Iterable

from pgworkers.postgres.statements import Query, Statement

_ASLEEP = Statement.beside(__file__, "asleep")


def asleep(host: str, queues: Iterable[str]) -> Query[None]:
    """Let `host` be notified of new jobs of exactly these queues."""
    return Query(_ASLEEP, {"host": host, "queues": sorted(queues)}, lambda rows: None)
