"""`pgworkers bench`: how fast this database is for pgworkers, from this machine, in about a minute."""

from __future__ import annotations

import signal
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from pgworkers.cli import output, place
from pgworkers.cli.invocation import Command, Invocation, said
from pgworkers.cli.output import Column
from pgworkers.cli.progress import counted

if TYPE_CHECKING:
    from pgworkers.cli.measuring import Site
    from pgworkers.cli.place import Database


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the answer."""

    measure: str
    value: float
    unit: str
    meaning: str


@click.command(cls=Command)
@click.option("--jobs", metavar="N", type=click.IntRange(100, 1_000_000), default=20_000, show_default=True)
@click.option("-w", "--workers", metavar="N", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option(
    "--tries",
    metavar="N",
    type=click.IntRange(10, 10_000),
    default=200,
    show_default=True,
    help="How often round trips and pickups are tried.",
)
@click.pass_context
def bench(ctx: click.Context, *, jobs: int, workers: int, tries: int) -> None:
    """Measure this database for pgworkers: round trips, enqueueing, a host at work.

    It works in a schema of its own, pgworkers_bench_…, that it makes and drops again, also after Ctrl-C; your tables are
    not touched. It starts a real host with --workers processes and has it do --jobs empty jobs, so the server is busy for
    some seconds: think twice before you do that to a production database at noon.

    \b
    How to read it:
      round trip, notify   the way to the server; every other latency is a multiple of it
      enqueue single       one commit each: mostly the server's fsync
      enqueue bulk         app.enqueue_many, streamed by COPY
      drain                claim, run and finish of empty jobs: what pgworkers itself costs
      pickup               from the call of an enqueue to the start of its handler, nothing else to do
      wal per job          bytes of write-ahead log from enqueue to end, and what others wrote meanwhile

    \b
    Examples:
      pgworkers bench                         the database of app.py, DATABASE_URL or the embedded one
      pgworkers bench --dsn postgresql://db/shop -w 8
      pgworkers bench --jobs 2000 -o json     a quick look, for a script
    """
    invocation = said(ctx)
    with _stoppable(), place.database(invocation, create=True, check=False) as db:
        from pgworkers.cli.measuring import site

        output.note(
            invocation, f"measuring {_named(db)} in a schema of its own, about a minute; Ctrl-C ends it"
        )
        with site(db.conn, db.dsn, db.settings) as found:
            figures = _measure(invocation, found, jobs, workers, tries)
    output.rows(invocation, figures, _COLUMNS, empty="", key="value")


def _measure(said: Invocation, site: Site, jobs: int, workers: int, tries: int) -> list[Figure]:
    from pgworkers.cli import measuring

    figures = _spread("round trip", measuring.round_trips(site, tries), "SELECT 1")
    figures += _spread("notify", measuring.notifications(site, tries), "from NOTIFY to the listener")
    ones = min(jobs // 10, 2000)
    with measuring.bound(site) as app:
        before = measuring.wal(site)
        with counted(said, "enqueue, one by one", ones) as done:
            rate = measuring.singles(app, ones, done)
        figures.append(Figure("enqueue single", round(rate), "1/s", "one commit each"))
        output.note(said, f"enqueue {jobs:,} in bulk")
        rate = measuring.bulk(app, jobs)
        figures.append(Figure("enqueue bulk", round(rate), "1/s", f"{jobs:,} by COPY"))
        with measuring.host(site, workers) as host:
            with counted(said, f"drain with {workers} workers", ones + jobs) as done:
                drained = measuring.drain(site, host, ones + jobs, done)
            bytes_each = (measuring.wal(site) - before) / (ones + jobs)
            rate = drained.count / max(drained.seconds, 1e-3)
            figures.append(Figure("drain", round(rate), "1/s", f"empty jobs, {workers} workers"))
            with counted(said, "pickup", tries) as done:
                waits = measuring.pickups(site, app, tries, done)
    figures += _spread("pickup", waits, "from enqueue to handler, idle host")
    figures.append(Figure("wal per job", round(bytes_each), "bytes", "enqueue, claim and finish"))
    return figures


def _spread(name: str, found: list[float], meaning: str) -> list[Figure]:
    ordered = sorted(found) or [0.0]
    last = ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]
    return [
        Figure(f"{name} p50", round(statistics.median(ordered), 3), "ms", meaning),
        Figure(f"{name} p99", round(last, 3), "ms", meaning),
    ]


def _named(db: Database) -> str:
    from pgworkers.postgres.dsn import shown

    return f"the embedded server in {db.chosen.home}" if db.chosen.embedded else shown(db.chosen.dsn)


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does: with the schema dropped."""

    def stop(_signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before: Any = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


_COLUMNS: list[Column] = [
    ("measure", lambda row: row.measure),
    ("value", lambda row: f"{row.value:,}"),
    ("unit", lambda row: row.unit),
    ("meaning", lambda row: row.meaning),
]
