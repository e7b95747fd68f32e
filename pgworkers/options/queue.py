"""What `app.queue(...)` and `app.route(...)` accept.

A route chooses the queue of tasks without one, by a pattern for the task's name. The first route that matches is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgworkers import bounds
from pgworkers.bounds import MAX_NAME_BYTES
from pgworkers.errors import UsageError
from pgworkers.options.values import (
    Duration,
    read_cli_name,
    read_count,
    read_duration,
    read_memory,
    read_name,
    read_optional_count,
)
from pgworkers.specs import QueueSpec


def read_queue_options(
    name: str,
    *,
    workers: int,
    cluster_workers: int | None,
    memory: int | str | None,
    nice: int,
    threads: int | None,
    cores: Sequence[int],
    pin: bool,
    address_space: int | str | None,
    max_jobs: int | None,
    max_rss: int | str | None,
    preload: Sequence[str],
    lookahead: bool,
    reload_overlap: bool,
    retention: Duration | None,
) -> QueueSpec:
    """Check and convert the options of `app.queue(...)`. UsageError says what to write instead."""
    name = read_cli_name(name, what="queue name", limit=bounds.MAX_NAME_BYTES)
    what = f"queue {name}:"
    if isinstance(preload, str) or not all(isinstance(module, str) for module in preload):
        raise UsageError(f'{what} preload must be a list of module names: preload=["numpy"]')
    return QueueSpec(
        name=name,
        workers=read_count(workers, what=f"{what} workers", minimum=1, maximum=1024),
        cluster_workers=read_optional_count(cluster_workers, f"{what} cluster_workers"),
        memory=read_memory(memory, what=f"{what} memory"),
        nice=read_count(nice, what=f"{what} nice", minimum=-20, maximum=19),
        threads=read_optional_count(threads, f"{what} threads"),
        cores=tuple(read_count(core, what=f"{what} cores", maximum=4095) for core in cores),
        pin=bool(pin),
        address_space=read_memory(address_space, what=f"{what} address_space"),
        max_jobs=read_optional_count(max_jobs, f"{what} max_jobs"),
        max_rss=read_memory(max_rss, what=f"{what} max_rss"),
        preload=tuple(preload),
        lookahead=bool(lookahead),
        reload_overlap=bool(reload_overlap),
        retention=read_duration(retention, what=f"{what} retention", positive=False),
    )


@dataclass(frozen=True, slots=True)
class Route:
    """Sends the tasks whose name begins with `prefix`, or is exactly it, to a queue."""

    prefix: str
    is_exact: bool
    queue: str

    def matches(self, task: str) -> bool:
        return task == self.prefix if self.is_exact else task.startswith(self.prefix)


def read_route(pattern: str, queue: str) -> Route:
    """Read a pattern: `img.*` is every name that begins with `img.`, `*` every name, and without a star one name."""
    read_name(pattern, what="route", limit=MAX_NAME_BYTES)
    prefix, star, rest = pattern.partition("*")
    if rest:
        raise UsageError(f"route {pattern!r}: the star comes last, as in img.*; nothing else is a pattern")
    return Route(prefix=prefix, is_exact=not star, queue=queue)
