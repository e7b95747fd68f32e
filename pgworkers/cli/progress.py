"""How far bulk work is, on stderr: a bar on a terminal, now and then a line elsewhere, nothing with -q."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pgworkers.cli.invocation import Invocation

EVERY = 5.0


@contextmanager
def counted(said: Invocation, label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yields `done(n)`, to be called with the number of rows done so far."""
    if said.quiet:
        yield lambda done: None
    elif sys.stderr.isatty():
        with _bar(label, total) as done:
            yield done
    else:
        yield _lines(label, total)


@contextmanager
def _bar(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.update(task, completed=done)


def _lines(label: str, total: int | None) -> Callable[[int], None]:
    said_at = time.monotonic()

    def done(count: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= EVERY:
            said_at = time.monotonic()
            print(f"{label} {count:,}" + (f" of {total:,}" if total else ""), file=sys.stderr, flush=True)

    return done
