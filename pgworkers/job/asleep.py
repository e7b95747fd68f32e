"""Asleep: of which queues a host is notified, and what it does about a notification that was for another host.

One sleeping host is notified of each new job (`pgworkers.tell_ready`). See docs/adr/1102 and docs/adr/2911.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pgworkers.postgres.statements import Query, Statement

_ASLEEP = Statement.beside(__file__, "asleep")
_PASS_ON = Statement.beside(__file__, "pass_on")
_NOTIFY_ALL = Statement.beside(__file__, "notify_all")


def asleep(host: str, queues: Iterable[str]) -> Query[frozenset[str]]:
    """Let `host` be notified of new jobs of exactly these queues. Answers those for which no other host sleeps."""
    return Query(_ASLEEP, {"host": host, "queues": sorted(queues)}, _names)


def pass_on(host: str, queues: Iterable[str], tasks: Iterable[str]) -> Query[None]:
    """Take back the sleep of a host that is full, and notify another host that knows these tasks of each queue."""
    params = {"host": host, "queues": sorted(queues), "tasks": sorted(tasks)}
    return Query(_PASS_ON, params, lambda rows: None)


def notify_all(host: str, queues: Iterable[str]) -> Query[None]:
    """For a while, let every sleeping host be notified of new jobs of these queues."""
    return Query(_NOTIFY_ALL, {"host": host, "queues": sorted(queues)}, lambda rows: None)


def _names(rows: list[tuple[Any, ...]]) -> frozenset[str]:
    return frozenset(row[0] for row in rows)
